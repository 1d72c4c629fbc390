"""Questions as JSON lines, one file a kind: {"kind", "context", "questions": [{"question", "answer"}]}.

make_tasks.py BOOKS OUT [--contexts 40] [--tokens 1000] [--questions 4] [--names known|heldout] [--seed 1]
              [--recipe relate|join]

A context holds facts of all kinds between prose; the questions of a file are of one kind."""
import argparse
import json
import os

import documents
import recipes
import tasks


def make(docs, kind, tokens, questions):
    """One task, its context of `tokens` tokens without BOS; None when the world has too few questions of the kind."""
    r = docs.r
    if kind == "copy":
        size = 48
        run = sum(docs.prose.sentences(r, size), [])
        before = r.randint(0, tokens - 2 * size)
        ids = sum(docs.prose.sentences(r, before), []) + run
        ids += sum(docs.prose.sentences(r, tokens - len(ids)), [])
        return docs.tok.decode(ids), [(docs.tok.decode(run[:10]), docs.tok.decode(run[10:16]))]
    needed = {"join": ["friend", "city", "color"], "thing": ["thing", "city"], "code": ["code", "city"]}
    relations = needed.get(kind, ["city", "thing", "color"])
    people = min(len(docs.names), max(4, tokens // 100))
    facts, asked = docs.make.world(r, docs.names, people, relations, 0.5 if kind == "latest" else .15)
    asked = [(docs.tok.decode(q), docs.tok.decode(a)) for k, q, a, _ in asked if k == kind]
    left = tokens - sum(map(len, facts))
    if len(asked) < questions or left < 0: return None
    ids = sum((piece for _, piece in documents.mingled(r, facts, docs.prose.sentences(r, left))), [])
    return docs.tok.decode(ids), r.sample(asked, questions)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("books")
    p.add_argument("out")
    p.add_argument("--contexts", type=int, default=40)
    p.add_argument("--tokens", type=int, default=1000)
    p.add_argument("--questions", type=int, default=4)
    p.add_argument("--names", choices=("known", "heldout"), default="known")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--recipe", choices=sorted(recipes.RECIPES), default="relate")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    tok = documents.bpe.load_hf(os.path.join(here, "tokenizer.json"))
    names = [n for n in tasks.NAMES if (n in tasks.HELDOUT_NAMES) == (a.names == "heldout")]
    docs = documents.Documents(tok, a.books, names, a.seed, recipe=recipes.RECIPES[a.recipe])
    for kind in tasks.KINDS:
        docs.r.seed(f"{kind}-{a.tokens}-{a.seed}")
        with open(os.path.join(a.out, kind + ".jsonl"), "w", encoding="utf-8") as file:
            made = 0
            while made < a.contexts:
                task = make(docs, kind, a.tokens, a.questions)
                if task is None: continue
                questions = [{"question": q, "answer": x} for q, x in task[1]]
                line = {"kind": kind, "context": task[0], "questions": questions}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                made += 1


if __name__ == "__main__":
    main()
