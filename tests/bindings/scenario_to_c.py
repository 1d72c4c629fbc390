#!/usr/bin/env python3
"""Writes the scenario as a C99 program that uses kvc.h alone: scenario_to_c.py SCENARIO OUT.c"""
import json
import sys

HEAD = '''/* Generated from scenario.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"
#include "tests/bindings/scenario_threads.h"

enum { MOST = 65536 };
static const char* folder;
static char path_text[4096], text[MOST];
static int32_t list[MOST], n_list;
static float logits[MOST];

static const char* in_folder(const char* name) {
  snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
  return path_text;
}

static int failed(int step, const char* what) {
  fprintf(stderr, "step %d: %s (%s)\\n", step, what, kvc_last_error());
  return 1;
}

static int copy_file(const char* from, const char* to) {
  FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
  size_t n, good = in != NULL && out != NULL;
  while (good && (n = fread(text, 1, sizeof text, in)) > 0) good = fwrite(text, 1, n, out) == n;
  if (in != NULL) fclose(in);
  if (out != NULL && fclose(out) != 0) good = 0;
  return !good;
}

static int differs(const int32_t* expected, int32_t n) {
  return n != n_list || memcmp(expected, list, (size_t)n * sizeof *list) != 0;
}

static int32_t best_of(int32_t n) {
  int32_t i, best = 0;
  for (i = 1; i < n; ++i) best = logits[i] > logits[best] ? i : best;
  return best;
}
'''


def quoted(text):
    """A C string of the bytes of a text."""
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
                         for b in text.encode()) + '"'


class Program:
    def __init__(self):
        self.globals, self.lines = {}, []

    def handle(self, kind, name):
        identifier = f"{kind}_{name}"
        self.globals.setdefault(identifier, f"static kvc_{kind}* {identifier};")
        return identifier

    def model(self, s): return self.handle("model", s["model"])
    def session(self, s): return self.handle("session", s["session"])
    def policy(self, s): return self.handle("policy", s["policy"]) if "policy" in s else "NULL"

    def array(self, values, kind="int32_t", suffix=""):
        """A place in the block: its name and count."""
        if not values:
            return "NULL", 0
        self.lines.append(f"    static const {kind} values[] = {{{', '.join(str(v) + suffix for v in values)}}};")
        return "values", len(values)

    def tokens(self, s):
        if isinstance(s["tokens"], str):
            return f"tokens_{s['tokens']}", f"n_tokens_{s['tokens']}"
        return self.array(s["tokens"])

    def struct(self, kind, s, fields):
        self.lines.append(f"    kvc_{kind} params;")
        self.lines.append("    kvc_params_init(&params, (int32_t)sizeof params);")
        for field in fields:
            if field in s:
                self.lines.append(f"    params.{field} = {s[field]};")

    # A step each: the call that gives a status, then how its outcome is compared (or None).
    def open(self, s):
        out = self.handle("model", s["as"])
        self.lines.append("    kvc_model_params params = {sizeof params, 2, 0, NULL, 0, 0};")
        return f"kvc_model_open(in_folder({quoted(s['path'])}), \"cpu\", &params, &{out})", None

    def load(self, s):
        out = self.handle("model", s["as"])
        self.lines += ["    kvc_loader* loader = NULL;", "    double share = 0;", "    kvc_status opened;",
                       "    if (kvc_loader_create(&loader) != KVC_OK) return failed(step, \"no loader\");",
                       f"    opened = kvc_loader_open(loader, in_folder({quoted(s['path'])}), \"cpu\", NULL, &{out});",
                       "    if (kvc_loader_get_progress(loader, &share) != KVC_OK || share != 1)",
                       "      return failed(step, \"the loader still opens\");", "    kvc_loader_close(loader);"]
        return "opened", None

    def copy(self, s):
        return f"copy_file(argv[1], in_folder({quoted(s['to'])})) ? KVC_E_IO : KVC_OK", None

    def info(self, s):
        self.lines += ["    kvc_model_info out;", "    kvc_params_init(&out, (int32_t)sizeof out);"]
        return f"kvc_model_get_info({self.model(s)}, &out)", f"out.{s['field']} != {s.get('expect')}"

    def stats(self, s):
        self.lines += ["    kvc_session_stats out;", "    kvc_params_init(&out, (int32_t)sizeof out);"]
        return f"kvc_session_get_stats({self.session(s)}, &out)", f"out.{s['field']} != {s.get('expect')}"

    def tokenize(self, s):
        name = s["as"]
        self.globals[f"tokens_{name}"] = f"static int32_t tokens_{name}[8192], n_tokens_{name};"
        self.lines.append(f"    static const char input[] = {quoted(s['text'])};")
        call = (f"kvc_tokenize({self.model(s)}, (const uint8_t*)input, (int32_t)sizeof input - 1, {s['flags']}, "
                f"tokens_{name}, 8192, &n_tokens_{name})")
        return call, self.same_list(s, f"n_list = n_tokens_{name}, memcpy(list, tokens_{name}, "
                                       f"(size_t)n_list * sizeof *list)")

    def same_list(self, s, prepare=None):
        if "expect" not in s:
            return None
        values = s["expect"]
        self.lines.append(f"    static const int32_t expected[] = {{{', '.join(map(str, values or [0]))}}};")
        return (f"({prepare}, differs(expected, {len(values)}))" if prepare else f"differs(expected, {len(values)})")

    def same_text(self, s):
        size = len(s["expect"].encode())
        return f"n_list != {size} || memcmp(text, {quoted(s['expect'])}, {size}) != 0"

    def detokenize(self, s):
        at, n = self.tokens(s)
        call = f"kvc_detokenize({self.model(s)}, {at}, {n}, (uint8_t*)text, MOST, &n_list)"
        return call, self.same_text(s) if "expect" in s else None

    def describe_policy(self, s):
        return f"kvc_policy_describe({self.policy(s)}, text, MOST, &n_list)", self.same_text(s)

    def read_text(self, s):
        return f"kvc_session_read_text({self.session(s)}, (uint8_t*)text, MOST, &n_list)", self.same_text(s)

    def make_policy(self, s):
        return f"kvc_policy_create({quoted(s['spec'])}, &{self.handle('policy', s['as'])})", None

    def make_session(self, s):
        self.struct("session_params", s, ["max_tokens", "on_full", "top_k", "top_p", "temperature", "seed"])
        out = self.handle("session", s["as"])
        return f"kvc_session_create({self.model(s)}, {self.policy(s)}, &params, &{out})", None

    def feed(self, s):
        at, n = self.tokens(s)
        more = ", 1" if s["do"] == "enqueue" else ""
        return f"kvc_session_{s['do']}({self.session(s)}, {at}, {n}{more})", None

    def plain(self, s):
        return f"kvc_session_{s['do']}({self.session(s)})", None

    def trim(self, s): return f"kvc_session_trim({self.session(s)}, {s['budget']}, NULL)", None
    def rewind(self, s): return f"kvc_session_rewind({self.session(s)}, {s['n']})", None
    def accept(self, s): return f"kvc_session_accept({self.session(s)}, {s['token']})", None

    def step(self, s):
        call = f"scenario_steps({self.session(s)}, {s['n']}, list, &n_list)"
        return call, self.same_list(s)

    def step_draft(self, s):
        at, n = self.tokens(s)
        return f"kvc_session_step_draft({self.session(s)}, {at}, {n}, list, MOST, &n_list)", self.same_list(s)

    def draft_lookup(self, s):
        at, n = self.tokens(s)
        return f"kvc_draft_lookup({at}, {n}, {s['n_gram']}, list, {s['most']}, &n_list)", self.same_list(s)

    def kept(self, s):
        call = f"kvc_session_get_kept({self.session(s)}, {s['layer']}, {s['kv_head']}, list, MOST, &n_list)"
        return call, self.same_list(s)

    def best(self, s):
        return (f"kvc_session_get_logits({self.session(s)}, logits, MOST, &n_list)",
                f"best_of(n_list) != {s['expect']}" if "expect" in s else None)

    def sampling(self, s):
        self.struct("sampling", s, ["top_k", "top_p", "temperature", "seed", "min_p", "repeat_penalty",
                                    "repeat_window"])
        return f"kvc_session_set_sampling({self.session(s)}, &params)", None

    def bias(self, s):
        biases = ", ".join(f"{b}f" if "." in str(b) else f"{b}.0f" for b in s["biases"])
        if biases:
            self.lines.append(f"    static const float biases[] = {{{biases}}};")
        at, n = self.tokens(s)
        return f"kvc_session_set_logit_bias({self.session(s)}, {at}, {'biases' if biases else 'NULL'}, {n})", None

    def mask(self, s):
        words = [0] * 64 if s["tokens"] else []
        for token in s["tokens"]:
            words[token // 32] |= 1 << token % 32
        at, n = self.array([w - (w >> 31 << 32) if w != 1 << 31 else "INT32_MIN" for w in words])
        return f"kvc_session_set_token_mask({self.session(s)}, {at}, {n})", None

    def turn_marks(self, s):
        return (f"kvc_session_set_turn_marks({self.session(s)}, {s['role']}, {quoted(s['prefix'])}, "
                f"{quoted(s['suffix'])})"), None

    def say(self, s):
        size = len(s["text"].encode())
        return (f"kvc_session_say({self.session(s)}, {s['role']}, (const uint8_t*){quoted(s['text'])}, {size}, "
                f"{s['flags']})"), None

    def fork(self, s):
        return f"kvc_session_fork({self.session(s)}, &{self.handle('session', s['as'])})", None

    def save(self, s): return f"kvc_session_save({self.session(s)}, in_folder({quoted(s['path'])}))", None

    def restore(self, s):
        out = self.handle("session", s["as"])
        return f"kvc_session_restore({self.model(s)}, in_folder({quoted(s['path'])}), &{out})", None

    def save_memory(self, s):
        name = s["as"]
        self.globals[f"data_{name}"] = f"static uint8_t* data_{name};\nstatic int64_t n_data_{name};"
        self.lines += [f"    if (kvc_session_save_memory({self.session(s)}, NULL, 0, &n_data_{name}) != KVC_OK)",
                       "      return failed(step, \"no size\");",
                       f"    data_{name} = malloc((size_t)n_data_{name});"]
        return f"kvc_session_save_memory({self.session(s)}, data_{name}, n_data_{name}, &n_data_{name})", None

    def restore_memory(self, s):
        out = self.handle("session", s["as"])
        return (f"kvc_session_restore_memory({self.model(s)}, data_{s['data']}, n_data_{s['data']}, &{out})"), None

    def batch_step(self, s):
        n = len(s["sessions"])
        self.lines.append(f"    kvc_session* sessions[{n}];")
        for i, name in enumerate(s["sessions"]):
            self.lines.append(f"    sessions[{i}] = {self.handle('session', name)};")
        return f"kvc_batch_step(sessions, n_list = {n}, NULL, list, NULL)", self.same_list(s)

    def plan(self, s):
        self.lines += ["    kvc_plan out;", "    kvc_params_init(&out, (int32_t)sizeof out);"]
        call = f"kvc_session_plan({self.model(s)}, {self.policy(s)}, NULL, {s['n_prompt']}, &out, list, MOST, &n_list)"
        return call, f"scenario_sum(list, n_list) != {s['expect']}"

    def threads(self, s):
        at, n = self.tokens(s)
        call = (f"scenario_threads({self.model(s)}, {self.policy(s)}, {at}, {n}, {s['n']}, {s['steps']}, list, "
                f"&n_list)")
        return call, self.same_list(s)

    ACTIONS = {"policy": make_policy, "session": make_session, "prefill": feed, "append": feed, "enqueue": feed,
               "compress": plain, "reset": plain, "cancel": plain, "clear_cancel": plain}

    def add(self, s):
        self.lines.append("  {")
        mark = len(self.lines)
        if s["do"] == "close":
            for kind in ("model", "policy", "session"):
                identifier = f"{kind}_{s['name']}"
                if identifier in self.globals:
                    self.lines.append(f"    kvc_{kind}_close({identifier});")
                    self.lines.append(f"    {identifier} = NULL;")
            assert len(self.lines) > mark, s
        else:
            action = self.ACTIONS.get(s["do"]) or getattr(type(self), s["do"])
            call, differs = action(self, s)
            status = "KVC_E_" + s["error"] if "error" in s else "KVC_OK"
            self.lines.append(f"    if (({call}) != {status}) return failed(step, \"not {status}\");")
            if differs and "error" not in s:
                self.lines.append(f"    if ({differs}) return failed(step, \"another result\");")
        self.lines += ["    ++step;", "  }"]


def main():
    steps = json.load(open(sys.argv[1], encoding="utf-8"))
    program = Program()
    for step in steps:
        program.add(step)
    body = "\n".join(program.lines)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(HEAD + "\n" + "\n".join(program.globals.values()))
        out.write("\n\nint main(int argc, char** argv) {\n  int step = 1;\n  if (argc < 4) return 2;\n"
                  "  folder = argv[3];\n" + body + "\n  printf(\"%d steps passed\\n\", step - 1);\n  return 0;\n}\n")


main()
