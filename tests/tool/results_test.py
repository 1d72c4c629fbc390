"""What the documents say of results is what their tables hold: every interval in brackets that prose quotes stands in a
table of docs/results.md, and the page has the notes as they are kept."""

import json
import math
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INTERVAL = re.compile(r"\[[+-]?\d+(?:\.\d+)?(?:, |–)[+-]?\d+(?:\.\d+)?\]")
QUOTES = ("bench/results_notes.md", "docs/head-scores.md", "README.md")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tables(text):
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def prose(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def grid(text, columns=r".*"):
    """{row: {column: cell}} of the first table of a text whose heading matches."""
    found, heading = {}, None
    for line in text.splitlines():
        cells = [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
        if heading is None:
            if line.startswith("|") and re.match(columns, line):
                heading = cells
        elif not line.startswith("|"):
            break
        elif not re.fullmatch(r"[|-]+ *", line.strip()):
            found[cells[0]] = dict(zip(heading[1:], cells[1:]))
    return found


def first(cell):
    """The number a cell begins with."""
    return re.match(r"[+-]?\d+(?:\.\d+)?", cell).group()


def without_zero(x, digits):
    return re.sub(r"^(-?)0\.", r"\1.", f"{x:.{digits}f}")


def ranking(scores):
    """[(score, "layer.head")] of a table [layer][head], best first."""
    named = ((score, f"{layer}.{head}") for layer, row in enumerate(scores) for head, score in enumerate(row))
    return sorted(named, reverse=True)


BY_SCORES, WITHOUT = ("headkv-r2", "cokv"), ("snapkv-w8", "pyramidkv", "ada-snapkv")


class Results(unittest.TestCase):
    def test_the_page_has_the_notes(self):
        page = read("docs/results.md")
        missing = [line for line in read("bench/results_notes.md").strip().splitlines() if line not in page]
        self.assertEqual(missing[:1], [], "the first line of the notes that the page lacks")
        self.assertTrue(read("bench/results_notes.md").strip() in page, "the page has the notes in another order")

    def test_intervals_in_prose_are_those_of_a_table(self):
        known, n_quoted = set(INTERVAL.findall(tables(read("docs/results.md")))), 0
        for path in QUOTES:
            for interval in INTERVAL.findall(prose(read(path))):
                n_quoted += 1
                self.assertIn(interval, known, f"{path} quotes an interval that no table has")
        self.assertGreaterEqual(n_quoted, 3)

    def part(self, heading):
        return read("docs/results.md").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]

    def note(self, title):
        return " ".join(read("bench/results_notes.md").split(f"* **{title}", 1)[1].split("\n* ", 1)[0].split())

    def test_what_prose_says_of_the_second_model_is_what_its_tables_have(self):
        cells = set(re.findall(r"\*\*(\d+\.\d)\*\*", self.part("A second model")))
        for title, least in (("A second model", 12), ("Shapley values against heads alone", 9)):
            quoted = re.findall(r"(?<![.\d])\d+\.\d(?!\d)", self.note(title))
            self.assertGreaterEqual(len(quoted), least)
            for number in quoted:
                self.assertIn(number, cells, f"{title} quotes a number that no table has")

    def test_scores_of_the_second_model_in_prose_are_those_of_its_files(self):
        names = ("head_scores", "scores/alone", "scores/leftout")
        scores = [json.loads(read(f"models/relate/{name}.json"))["scores"] for name in names]
        best = [max(score for layer in table for score in layer) for table in scores]
        note = self.note("Shapley values against heads alone")
        self.assertEqual(re.findall(r"(?<=\s)\.\d{3}", note), [without_zero(score, 3) for score in best])
        for table in scores:  # the four of layer 1 before all others
            flat = [score for layer in table for score in layer]
            self.assertEqual(sorted(sorted(range(16), key=flat.__getitem__)[-4:]), [4, 5, 6, 7])

    def test_what_prose_says_of_the_model_that_joins_is_what_its_tables_have(self):
        part = self.part("A model that joins facts")
        note, together = self.note("A model that joins facts"), self.note("Shapley values where heads need each other")
        at_400 = grid(part.split("### 400KiB", 1)[1], r"\| method")
        at_3900 = grid(part.split("3,900 tokens", 1)[1], r"\| method")
        both = lambda method: [at_400[method][kind] for kind in ("join", "thing")]
        others = [int(at_400[m]["join"]) for m in ("streaming", "h2o", "snapkv-w8", "ada-snapkv", "keydiff")]
        said = [at_400["cokv-document"]["join"], at_400["full"]["join"], at_400["cokv-document"]["thing"]]
        said += [*both("cokv"), *both("kvzip"), str(min(others)), str(max(others)), *both("reconstruct")]
        said += [at_400[m]["recall"] for m in ("kvzip", "cokv-document")]
        self.assertEqual(at_400["full"]["thing"], "100")
        before = note.split("2,112", 1)[1].split("At 3,900")[0]
        self.assertEqual(re.findall(r"(?<![\w.,])\d\d(?!\w|[.,]\d)", before), said)
        heads = grid(part.split("### Heads together", 1)[1])
        self.assertEqual(re.findall(r"\d+\.\d", before), [first(heads["cokv-document, 400KiB"]["Shapley"])])
        quoted = re.findall(r"\d+\.\d", note.split("At 3,900")[1])
        self.assertEqual(quoted, [at_3900[m]["mean"] for m in ("cokv-document", "full", "reconstruct", "kvzip")])
        alone = sorted(float(first(row["alone"])) for row in heads.values())
        same = sorted(-float(first(row["the same for every head"])) for row in heads.values())
        self.assertIn(f"behind by {-alone[-1]} [", together)
        self.assertIn(f"to {-alone[0]} points [", together)
        self.assertIn(f"are behind by {same[0]} to {same[-1]}.", together)
        self.assertIn(f"by up to {-alone[0]} points", " ".join(read("docs/head-scores.md").split()))
        left_out = {name: row["left out of all"] for name, row in heads.items()}
        holds = {name: cell for name, cell in left_out.items() if re.search(r"\[(-\S+, -|\+\S+, \+)", cell)}
        self.assertEqual(list(holds), [f"cokv, {size}KiB" for size in (100, 200, 300)])
        for cell in holds.values():
            self.assertIn(cell, together)

    def test_scores_of_the_model_that_joins_in_prose_are_those_of_its_files(self):
        names = ("head_scores", "scores/alone", "scores/leftout")
        tables = [json.loads(read(f"models/join/{name}.json"))["scores"] for name in names]
        note = self.note("Shapley values where heads need each other")
        joins = [table[2][2] for table in tables]
        self.assertEqual(re.findall(r"\((-?\.\d{3})\)", note), [without_zero(x, 3) for x in joins])
        ranks = [[name for _, name in ranking(table)] for table in tables]
        self.assertEqual([r[0] for r in (ranks[0], ranks[2])], ["2.2", "2.2"])
        self.assertEqual(set(ranks[0][1:5]), {"1.0", "1.1", "1.2", "1.3"})
        self.assertEqual(set(ranks[1][:4]), {"1.0", "1.1", "1.2", "1.3"})

    def test_what_prose_says_of_quest_is_what_its_tables_have(self):
        part, note = self.part("Choosing pages instead of dropping entries (Quest)"), self.note("Choosing pages**")
        tables = [grid("### " + text) for text in part.split("### ")[1:]]
        at_32 = [table["32"] for table in tables]
        full = re.findall(r"the full cache: (\d+\.\d) \[.*?\], (\d+) KiB", part)
        said = [first(row["quest"]) for row in at_32] + [accuracy for accuracy, _ in full]
        said += [row["snapkv-w8"] for row in at_32]
        kept = re.findall(r"^\| 32 \|(.*)\|$", part, re.M)
        bytes_kept = [float(cells.split("|")[4].split()[0]) for cells in kept]
        said += [f"{100 * n / float(whole):.1f}" for n, (_, whole) in zip(bytes_kept, full)]
        self.assertEqual(re.findall(r"\d+\.\d", note), said)

    def test_what_prose_says_of_cheaper_readings_is_what_the_tables_have(self):
        part, note = self.part("Cheaper second readings"), self.note("Cheaper second readings")
        cells = set(re.findall(r"(?<![.\d])[+-]?\d+\.\d+(?!\d)", tables(part)))
        quoted = re.findall(r"(?<![.\d])[+-]?\d+\.\d+(?!\d)", note)
        self.assertGreaterEqual(len(quoted), 6)
        for number in quoted:
            self.assertIn(number, cells, "no table of this part has it")

    def test_what_prose_says_of_keys_and_values_is_what_the_tables_have(self):
        part, note = self.part("Bits of keys and of values"), self.note("Bits of keys and of values")
        line_of = lambda name: re.search(rf"^\| {name} \|.*KiB.*$", part, re.M).group()
        said = re.findall(r"0\.\d{4}", note)
        named = ("int8 keys, int4 values", "int4", "int4 keys, int8 values", "int4 keys, int2 values")
        found = [re.findall(r"0\.\d{4}", line_of(name))[1:] for name in named]
        self.assertEqual(said, [number for numbers in found for number in numbers])
        sizes = (named[0], "int8", "int4", named[3])
        kib = [re.findall(r"\d+ KiB", line_of(name))[1].split()[0] for name in sizes]
        self.assertEqual(re.findall(r"\b\d{3,4}\b", note.split("they take")[1].split("Accuracy")[0]), kib)
        at = grid(part, r"\| keys, values \| 63KiB")
        quoted = re.findall(r"\d+\.\d \[\d+\.\d–\d+\.\d\]", note)
        sizes = ("63KiB", "100KiB", "200KiB")
        want = [at[name][size].rsplit(",", 1)[0] for size in sizes for name in (named[0], "int4", named[3])]
        self.assertEqual(quoted, [*want, at["int8"]["200KiB"].rsplit(",", 1)[0]])
        rows = [line for line in part.splitlines() if line.startswith("|") and "KiB |" in line and "[" in line]
        cells = [cell for line in rows for cell in re.findall(r"[+-]\d+\.\d \[[^\]]*\]", line)]
        bounds = lambda cell: [float(x) for x in re.search(r"\[(\S+), (\S+)\]", cell).groups()]
        apart = [cell for cell in cells if bounds(cell)[0] > 0 or bounds(cell)[1] < 0]
        self.assertEqual(re.findall(r"[+-]\d+\.\d \[[^\]]*\]", note), apart)  # "tells none of them apart ... but"

    def of_model(self, part, heading, model):
        text = self.part(part).split(f"### {heading}, models/{model}", 1)[1]
        return grid(text.split("\n### ", 1)[0], r"\| method, b")

    def of_one_entry(self, heading, model):
        return self.of_model("One entry for all that is dropped", heading, model)

    def test_what_prose_says_of_one_entry_is_what_the_tables_have(self):
        note = self.note("One entry for all that is dropped")
        relate, join = (self.of_one_entry("One entry", model) for model in ("relate", "join"))
        rows = [join["cokv-document, 400KiB"], relate["cokv-document, int4, 100KiB"], relate["kvzip-own, int4, 63KiB"]]
        quoted = re.findall(r"\d+\.\d \[\d+\.\d–\d+\.\d\]", note)
        want = [row[column] for row in rows for column in ("dropped", "one entry")]
        self.assertEqual(quoted, [*want, join["cokv-document, int4, 63KiB"]["one entry"]])
        said = re.search(r"400 of 2,112 KiB \| (\S+) %, without `\S+` ([\d.]+), ", read("README.md")).groups()
        self.assertEqual(said, tuple(first(rows[0][column]) for column in ("one entry", "dropped")))
        kl = [row[column] for column in ("KL, dropped", "KL, one entry") for row in rows]
        self.assertEqual(re.findall(r"\b0\.\d{3}\b", note), kl)
        recall = self.of_one_entry("One entry", "recall")
        lost = [recall["cokv, 340KiB"]["lead"], recall["cokv-document, 85KiB"]["lead"]]
        self.assertEqual(re.findall(r"-\d+\.\d \[[^\]]*\]", note), lost)

    def test_what_prose_says_of_three_per_cent_is_what_the_tables_have(self):
        note, models = self.note("Three per cent, all together"), ("recall", "relate", "join")
        tables = {model: self.of_model("Three per cent of the bytes", "Three per cent", model) for model in models}
        best, bits = "kvzip-own, int4, values int2", ("kvzip-own, f16", "kvzip-own, int4")
        relate = tables["relate"]
        want = [relate[best]["that, once"], tables["recall"][best]["that, once"]]
        want += [relate[row]["dropped"] for row in (*bits, best)]
        want += [relate[best]["one entry"], relate[best]["one entry, squares"]]
        want.append(tables["join"]["cokv-document, int4, values int2"]["that, once"])
        self.assertEqual(re.findall(r"\d+\.\d \[\d+\.\d–\d+\.\d\]", note), want)
        behind = relate[best]["that, to everything kept"]
        self.assertIn("behind the full cache by " + behind.lstrip("-"), " ".join(note.split()))
        for model in ("recall", "relate"):  # "within two points of what everything kept answers on both"
            self.assertGreaterEqual(float(first(tables[model][best]["that, to everything kept"])), -2)
        row = r"`models/recall`, .*`models/relate`, .* 3 % of the bytes \| (\S+ \S+) %; (\S+ \S+) %"
        said = re.search(row, read("README.md")).groups()
        self.assertEqual(said, (want[1], want[0]))

    def test_what_prose_says_of_squares_is_what_the_tables_have(self):
        note = self.note("Squares of a second reading")
        said = re.findall(r"[+-]\d+\.\d(?! \[)(?![^\[]*\](?!\())", re.sub(r"\[[^\]]*\]", "[]", note))
        leads = lambda model, method: [
            first(row["lead of squares, one entry"])
            for name, row in self.of_one_entry("Squares of a second reading", model).items()
            if name.startswith(method + ",")
        ]
        want = [*leads("relate", "cokv-document"), *leads("join", "cokv-document")]
        for model in ("relate", "join"):
            values = sorted(leads(model, "kvzip-own"), key=float)
            want += [values[0], values[-1]]
        self.assertEqual(said, want)

    def comparison(self, protocol):
        """Of the comparison of head budgets: questions, accuracy of the full cache, its table, and its last line."""
        text = self.part("Head budgets").split(f"### Protocol {protocol}: ", 1)[1].split("\n### ", 1)[0]
        n, full = re.match(r"(\d+) questions, full cache (\S+) %", text).groups()
        rows = {name.split()[0]: of for name, of in grid(text).items()}
        shares = {name.split()[0]: re.search(r"\((\S+) %\)", name).group(1) for name in grid(text)}
        return n, full, rows, shares, re.search(r"^Smallest of these budgets.*$", text, re.M).group()

    def test_the_readme_says_what_the_comparison_has(self):
        n, full, rows, shares, _ = self.comparison("ask")
        said = re.search(
            r"`models/recall`, ([\d,]+) questions \| `cokv-document` \| (\S+) % of the slots "
            r"\| (\S+) %, full cache (\S+) %, (.*?) \| \| the same "
            r"\| `cokv-document` \| (\S+) % of the slots \| (\S+) %, the others between (\d+) and (\d+) ",
            " ".join(read("README.md").split()),
        )
        self.assertEqual(said.group(1).replace(",", ""), n)
        self.assertEqual(said.group(4), full)
        (at,) = [slots for slots, share in shares.items() if float(share) == float(said.group(2))]
        methods = [("cokv-document", said.group(3)), *re.findall(r"`(\S+)` (\d+\.\d)", said.group(5))]
        self.assertGreaterEqual(len(methods), 5)
        for method, accuracy in methods:
            self.assertEqual(accuracy, first(rows[at][method]), method)
        (at,) = [slots for slots, share in shares.items() if share == said.group(6)]
        self.assertEqual(said.group(7), first(rows[at]["cokv-document"]))
        others = [float(first(rows[at][m])) for m in (*BY_SCORES, *WITHOUT)]
        self.assertEqual((said.group(8), said.group(9)), (str(math.floor(min(others))), str(math.ceil(max(others)))))

    def test_what_is_said_of_the_scores_of_recall_is_what_their_files_hold(self):
        text = read("docs/head-scores.md").split("## The scores of models/recall", 1)[1].split("\n## ", 1)[0]
        rows = grid(text, r"\| table \|")
        deviations = {}
        for name, row in rows.items():
            task = name.strip("`").startswith("ssv-")
            table = json.loads(read(f"models/recall/scores/{name.strip('`')}.json" if task else
                                    "models/recall/head_scores.json"))  # fmt: skip
            samples, *agreement, best = row.values()
            self.assertEqual([cell.strip("*") for cell in agreement],
                             [without_zero(table["mae_between_runs"], 4),
                              without_zero(table["correlation_between_runs"], 2)], name)  # fmt: skip
            ranked = ranking(table["scores"])
            said = best.split(", ")
            self.assertEqual(said, [f"{head} {without_zero(score, 2)}" for score, head in ranked[: len(said)]], name)
            if not task:
                continue
            self.assertEqual(samples, str(table["samples_per_size"]))
            slices = table["slices"]
            self.assertEqual([s["size"] for s in slices], table["sizes"])
            deviations[name.strip("`")] = {s["size"]: s["deviation"] for s in slices}
            for layer, scores in enumerate(table["scores"]):  # a score is the mean of its slices (methods.md 3.2)
                for head, score in enumerate(scores):
                    mean = sum(s["scores"][layer][head] for s in slices) / len(slices)
                    self.assertAlmostEqual(mean, score, delta=2e-9)
            for s in slices:
                self.assertEqual({head for _, head in ranking(s["scores"])[:2]}, {"1.0", "1.1"}, (name, s["size"]))
        of_kv, words = deviations["ssv-kv"], " ".join(text.split())
        at_3, at_12 = (without_zero(of_kv[size], 3) for size in (3, 12))
        self.assertIn(f"of `ssv-kv` is {at_3} at size 3 and {at_12} at 12", words)
        for of in deviations.values():
            self.assertEqual(sorted(of, key=of.get, reverse=True), [3, 6, 9, 12], "small coalitions are farthest apart")

    def test_head_scores_say_what_the_comparison_has(self):
        text = read("docs/head-scores.md").split("## What they are worth on held-out tasks", 1)[1].split("\n## ", 1)[0]
        n, full, rows, shares, reached = self.comparison("ask")
        words = " ".join(text.split())
        self.assertIn(f"{int(n):,} questions of ", words)
        self.assertIn(f"full cache {full}. ", words)
        table = grid(text, r"\| slots per head")
        self.assertEqual({name.split()[0] for name in table}, set(rows))
        for name, of in table.items():
            slots = name.split()[0]
            self.assertEqual(name, f"{slots} ({shares[slots]} %)")
            for method, cell in of.items():
                if method.startswith("`"):
                    self.assertEqual(first(cell), first(rows[slots][method.strip("`")]), (slots, method))
        ahead = [float(first(of["cokv"])) - max(float(first(of[m])) for m in WITHOUT) for of in rows.values()]
        self.assertIn(f"by {min(ahead):.0f} to {max(ahead):.0f} points", words)
        best = rows["72"]["cokv − best other"]
        self.assertIn("leads by " + best.split(" (")[0].lstrip("+").replace(" [", " points ["), words)
        equal = self.part("Head budgets").split("### CoKV and HeadKV at equal bytes", 1)[1]
        self.assertIn("bytes that is " + grid(equal)["72"]["difference"], words)
        share = lambda method, line: re.search(rf"{method} \d+ slots \((\S+) %\)", line).group(1)
        self.assertEqual(share("cokv", reached), share("headkv-r2", reached))
        self.assertIn(f"at {share('cokv', reached)} % of the cache by `cokv` and `headkv-r2`, at "
                      f"{share('cokv-document', reached)} % by `cokv-document`", words)  # fmt: skip
        _, _, _, _, reached = self.comparison("prompt")
        self.assertIn(f"at {share('cokv', reached)} % and {share('cokv-document', reached)} %.", words)

    def test_what_prose_says_of_equal_bytes_is_what_its_table_has(self):
        rows, note = grid(self.part("Every method at equal bytes")), self.note("At equal bytes")
        named = re.findall(r"`([\w, -]+)` (?:has )?(\d+\.\d \[[\d.]+–[\d.]+\])", note)
        self.assertGreaterEqual(len(named), 11)
        for method, cell in named:
            self.assertEqual(rows[method]["240KiB"], cell, method)
        names = {method for method, _ in named}
        below = [float(first(of["240KiB"])) for m, of in rows.items()
                 if m not in names and ", " not in m and of["240KiB"] != "–"]  # fmt: skip
        self.assertEqual(re.search(r"all others in f16 below (\d+)", note).group(1), str(math.floor(max(below)) + 1))
        best = re.search(r"The frontier is (.*?): the last, in f16", note).group(1)
        drawn = re.search(r"^The frontier, .*?: (.*)\.$", self.part("Every method at equal bytes"), re.M).group(1)
        self.assertEqual(re.findall(r"`(.+?)`", best), re.findall(r"([^()]+?) \(\d+ KiB, \S+ %\)(?:, )?", drawn))
        few = self.note("3 % of the full cache's bytes")
        here, there = rows, grid(self.part("Every method at equal bytes on models/relate"))
        by_size = re.split(r"On `relate` \(63 KiB\)|At 100 KiB", few)
        for text, table, size in zip(by_size, (here, there, there), ("170KiB", "63KiB", "100KiB")):
            named = re.findall(r"`([\w, -]+)` (?:has )?(\d+\.\d \[[\d.]+–[\d.]+\])", text)
            self.assertGreaterEqual(len(named), 1)
            for method, cell in named:
                self.assertEqual(table[method][size], cell, (method, size))
            best = max(float(first(of[size])) for of in table.values() if of[size] != "–")
            self.assertEqual(max(float(first(cell)) for _, cell in named), best, size)
        sizes, merging = ("240KiB", "480KiB", "960KiB"), self.note("Merging** (CaM")
        said = [first(rows["cam"][s]) for s in sizes] + [first(rows["streaming"][s]) for s in sizes]
        of_both = merging.split("answers", 1)[1].split(". The tables", 1)[0]
        self.assertEqual(re.findall(r"\d+\.\d", of_both), said)

    def claims(self, part):
        """{(slots, "one – other"): change over all texts, with its interval} of a part that compares perplexity."""
        found = {}
        for line in self.part(part).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 7 and " – " in cells[1]:
                found[cells[0], cells[1]] = cells[5]
        return found

    def test_what_prose_says_of_perplexity_is_what_its_table_has(self):
        part = "Perplexity, token by token with eviction at every step"
        note, claims = self.note("Merging** (CaM"), self.claims(part)
        without_sign = lambda cell: cell.lstrip("+-")
        self.assertIn("below H2O's by {} at 64 slots and {} at 128".format(
            *(without_sign(claims[c, "weightedkv – h2o"]) for c in ("64", "128"))), note)  # fmt: skip
        at_64, at_128 = (claims[c, "cam – streaming"] for c in ("64", "128"))
        self.assertIn(f"is above by {without_sign(at_64)} at 64 and not different at 128 ({at_128})", note)
        for cell, signs in ((claims["64", "weightedkv – h2o"], "--"), (claims["128", "weightedkv – h2o"], "--"),
                            (at_64, "++"), (at_128, "-+")):  # fmt: skip
            self.assertEqual("".join(re.search(r"\[(.)[\d.]+, (.)", cell).groups()), signs, cell)
        n_windows, n_tokens = re.search(r"(\d+) windows .*: ([\d,]+) tokens of every text", self.part(part)).groups()
        self.assertIn(f"over {n_windows} windows of each of three books, {n_tokens} tokens of each scored", note)
        rows = {name: [float(x) for x in list(of.values())[:3]] for name, of in grid(self.part(part)).items()}
        self.assertEqual(len(rows), 15)
        for texts in zip(*rows.values()):  # "over 12 it is the best on all three"
            self.assertEqual(min(texts), texts[0])
        def means(method):
            return [float(re.search(rf"^### {c} slots per .*?^\| {method} \|.*?\*\*(\S+)\*\*", self.part(
                "Protocol ask, every method"), re.M | re.S).group(1)) for c in (12, 16, 32, 64)]  # fmt: skip

        self.assertIn(f"means of {min(means('cam'))} to {max(means('cam'))} % in *ask* up to 64 slots", note)
        self.assertIn(f"({min(means('cam-oneshot'))} to {max(means('cam-oneshot'))} %)", note)

    def test_the_frontier_named_and_drawn_is_that_of_the_table(self):
        for heading, picture in (("", "accuracy-bytes"), (" on models/relate", "accuracy-bytes-relate")):
            with self.subTest(picture):
                self.check_frontier(self.part("Every method at equal bytes" + heading), read(f"docs/{picture}.svg"))

    def check_frontier(self, part, picture):
        points = [
            (int(re.search(r"(\d+) KiB", of["slots, used of " + size]).group(1)), float(first(cell)), name)
            for name, of in grid(part).items()
            for size, cell in of.items()
            if "slots, used of " + size in of and cell != "–"
        ]
        kept = re.search(r"Everything kept: (.*?)\.\n", part).group(1)
        points += [(int(kib), float(accuracy), name) for name, accuracy, kib in
                   re.findall(r"(full(?:, \w+)?): (\S+) \[.*?\], (\d+) KiB", kept)]  # fmt: skip
        self.assertGreater(len(points), 100)
        best = {p for p in points if not any(q[0] <= p[0] and q[1] >= p[1] and q[:2] != p[:2] for q in points)}
        named = re.search(r"^The frontier, .*?: (.*)\.$", part, re.M).group(1)
        named = {(int(k), float(a), n) for n, k, a in re.findall(r"([^()]+?) \((\d+) KiB, (\S+) %\)(?:, )?", named)}
        self.assertEqual({p[:2] for p in named}, {p[:2] for p in best})
        self.assertLessEqual(named, best)
        drawn = re.findall(r"<circle [^>]*><title>(.*): (\d+) KiB, (\S+) %</title>", picture)
        self.assertEqual(sorted((int(k), float(a), n) for n, k, a in drawn), sorted(points))
        written = re.findall(r'<text class="s" [^>]*>([^<\d][^<]*)</text>', picture)
        self.assertEqual(sorted(written), sorted(name for _, _, name in named))

    def correlations(self, text):
        """What prose says of a part that explains: three measures over all layers, those of layer 1 alone, and between
        what the other layers are."""
        measures = ("loss", "bound", "retained")
        layers = [list(grid(text, r"\| measure \|")[measure].values()) for measure in measures]
        others = [float(cell) for row in layers for cell in row[:1] + row[2:]]
        return [*(grid(text, r"\| kind, with \|")["all, accuracy"][measure] for measure in measures),
                *(row[1] for row in layers), f"{min(others):+.2f}", f"{max(others):+.2f}"]  # fmt: skip

    def test_rank_correlations_in_prose_are_those_of_the_tables(self):
        note = self.note("Does Ada-KV's eviction loss")
        said = self.correlations(self.part("Does the eviction loss tell accuracy?"))
        self.assertEqual(re.findall(r"[+-]0\.\d\d", note), said)

    def test_what_prose_says_of_merging_is_what_the_table_has(self):
        note, claim = self.note("Merging against dropping"), "weightedkv, values dropped – weightedkv"
        part = "Merging against dropping (WeightedKV)"
        rows, claims = grid(self.part(part)), self.claims(part)
        ahead = rows["ask, 32"]["values dropped"].split(" [")[0].lstrip("+")
        self.assertIn(f"dropping is ahead by {ahead}", note)
        for protocol, of in rows.items():
            if protocol.startswith("prompt"):
                self.assertTrue(of["values dropped"].startswith("+0.0 [+0.0, +0.0]"), protocol)
        at_64, at_128 = (claims[c, claim].lstrip("-") for c in ("64", "128"))
        self.assertIn(f"lower by {at_64} at 64 slots and by {at_128} at 128", note)
        self.assertLess(max(float(claims[c, claim].split(" ")[0]) for c in ("64", "128")), 0)
        self.assertIn("loses " + self.claims("Perplexity, windows of 4,096 tokens")["256", claim].lstrip("+"), note)
        self.assertEqual(claims, {k: v for k, v in self.claims(
            "Perplexity, token by token with eviction at every step").items() if k[1] == claim})  # fmt: skip

    def test_what_prose_says_of_parts_on_the_second_model_is_what_its_tables_have(self):
        part = self.part("Parts of methods, and the eviction loss, on models/relate")
        merging, aha, explained = (text.split("\n", 1)[1] for text in part.split("### ")[1:])
        note = self.note("Parts of methods on `relate`")
        interval = lambda cell: [float(x) for x in re.findall(r"[+-]\d+\.\d", cell)[1:3]]
        holds = lambda cell: interval(cell)[0] > 0 or interval(cell)[1] < 0
        ask = [row["values dropped"] for name, row in grid(merging).items() if name.startswith("ask")]
        said = [cell.split("]")[0].lstrip("+") + "]" for cell in ask]
        self.assertIn("ahead in *ask* by {}, {} and {} points at 64, 128 and 256 slots".format(*said), note)
        self.assertTrue(all(holds(cell) for cell in ask))
        prompt = [row["values dropped"] for name, row in grid(merging).items() if name.startswith("prompt")]
        self.assertFalse(any(holds(cell) for cell in prompt))
        found = [(name, part, cell) for name, row in grid(aha).items() for part, cell in list(row.items())[1:]]
        self.assertEqual(len(found), 18)
        ((name, part, cell),) = [one for one in found if holds(one[2])]
        self.assertEqual((name, part), ("prompt, 128", "the model's own softmax"))
        self.assertIn("at 128 slots, by " + cell.split("]")[0].lstrip("+") + "]", note)
        self.assertEqual(re.findall(r"[+-]0\.\d\d", note), self.correlations(explained))

    def test_what_prose_says_of_positions_is_what_the_table_has(self):
        part = self.part("Does the eviction loss tell accuracy?").split("every tenth", 1)[1]
        tenths = {
            row[0]: [float(cell) for cell in row[1].split("|")[:10]]
            for row in re.findall(r"^\| (\S+) \|(.*)\|$", part, re.M)
            if row[0] in ("h2o", "ahakv")
        }
        note = self.note("Parts of AhaKV")
        self.assertIn(f"keeps {tenths['h2o'][0]} %", note)
        self.assertIn(f"{tenths['h2o'][8]} % of the ninth", note)
        self.assertEqual(tenths["h2o"][:9], sorted(tenths["h2o"][:9], reverse=True))
        first = tenths["ahakv"][:9]
        self.assertIn(f"`ahakv` {min(first)} to {max(first)} % of each of the first nine", note)

    def test_the_picture_of_positions_is_that_of_the_table(self):
        parts = ("Does the eviction loss tell accuracy?", "Parts of methods, and the eviction loss, on models/relate")
        for heading, picture in zip(parts, ("kept-positions", "kept-positions-relate")):
            table = grid(self.part(heading).split("every tenth", 1)[1])
            self.assertGreaterEqual(len(table), 10)
            shown = re.findall(r"<text [^>]*>([^<]*)</text>", read(f"docs/{picture}.svg"))
            at = shown.index("10") + 1
            self.assertEqual(shown[at:], [text for name, of in table.items() for text in (name, *of.values())])

    def test_every_budget_of_the_comparison_says_what_equal_bytes_give(self):
        section = read("docs/results.md").split("### CoKV and HeadKV at equal bytes", 1)[1].split("\n### ", 1)[0]
        rows = re.findall(r"^\| (\d+) \| (\d+) KiB \| .*? \| (\d+) \| (\d+) KiB \|", section, re.M)
        self.assertGreaterEqual(len(rows), 3)
        for _, ours, _, theirs in rows:
            self.assertGreaterEqual(int(theirs), int(ours), "the other has fewer bytes")
            self.assertLess(int(theirs), 1.05 * int(ours), "and about as many")


if __name__ == "__main__":
    unittest.main()
