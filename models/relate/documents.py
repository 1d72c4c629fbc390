"""Rows of tokens for training and measuring `relate`: worlds of tasks.py between sentences of prose."""
import glob
import math
import os
import random
import sys

import numpy as np

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "recall"))
import bpe  # noqa: E402
import recipes  # noqa: E402
import tasks  # noqa: E402

BOS = 0
FIRST = 259  # the first piece that is no single byte


class Prose:
    """Books as tokens; hands out runs of whole sentences."""

    def __init__(self, folder, tok, cache=""):
        """`cache`: a folder in which encoded books stay."""
        self.ids, self.starts = [], []
        stop = set(tok.encode(".") + tok.encode("!") + tok.encode("?"))
        for path in sorted(glob.glob(folder + "/*.txt")):
            stored = os.path.join(cache, os.path.basename(path) + ".npy")
            if cache and os.path.exists(stored): ids = np.load(stored)
            else:
                with open(path, encoding="utf-8", errors="replace") as file:
                    ids = np.array(tok.encode(" " + " ".join(file.read().split())), dtype=np.int32)
                if cache: np.save(stored, ids)
            ends = np.flatnonzero(np.isin(ids, list(stop))) + 1
            self.ids.append(ids)
            self.starts.append(np.concatenate(([0], ends[ends < len(ids)])))
        self.sizes = [len(s) for s in self.starts]

    def sentences(self, r, tokens):
        """Consecutive sentences, `tokens` tokens in all (the last one may be cut)."""
        if tokens <= 0: return []
        book = r.choices(range(len(self.ids)), self.sizes)[0]
        ids, starts = self.ids[book], self.starts[book]
        i, out, left = r.randrange(max(1, len(starts) - tokens // 8 - 2)), [], tokens
        while left > 0:
            end = starts[i + 1] if i + 1 < len(starts) else len(ids)
            piece = ids[starts[i]:min(end, starts[i] + left)].tolist()
            out.append(piece)
            left -= len(piece)
            i = i + 1 if i + 2 < len(starts) else 0
        return out


def mingled(r, facts, prose):
    """Facts and sentences of prose in a drawn order, each kind in its own: (whether it is a fact, piece)."""
    order = [1] * len(facts) + [0] * len(prose)
    r.shuffle(order)
    facts, prose = iter(facts), iter(prose)
    for is_fact in order: yield is_fact, next(facts if is_fact else prose)


class Documents:
    """Makes rows: ids, loss weights, spans of answers [(kind, first, end)], starts of sentences, and of questions that
    join two facts [(last place, what the first fact says)]."""

    def __init__(self, tok, folder, names, seed, cache="", recipe=recipes.RELATE):
        self.tok, self.r, self.make = tok, random.Random(seed), tasks.Maker(tok, recipe.thing_of)
        self.recipe = recipe
        self.names = [self.make.names[n] for n in names]
        self.prose = Prose(folder, tok, cache)
        taken = {tok.encode(" " + w)[0] for w in tasks.WORDS}
        self.words = [i for k, i in tok.v.items()
                      if k[0] == "Ġ" and k[1:].isalpha() and len(k) > 4 and i not in taken]
        self.pieces = sorted(set(range(FIRST, len(tok.v))) - {self.make.names[n] for n in tasks.HELDOUT_NAMES})

    def repeats(self, tokens):
        """A run of random pieces, again and again."""
        size = self.r.randint(6, max(9, min(48, tokens // 3)))
        run = self.r.choices(self.pieces, k=size)
        ids = [BOS] + (run * (tokens // size + 1))[:tokens - 1]
        w = [0.] * min(size + 1, tokens) + [.5] * max(0, tokens - size - 1)
        return ids, w, [("repeats", size + 2, tokens)], list(range(0, tokens, size)), []

    def pairs(self, tokens):
        """Pairs of random pieces, then the same pairs in another order, again and again."""
        n = self.r.randint(3, max(4, min(24, tokens // 5)))
        keys = self.r.sample(self.pieces, n)
        value = {k: self.r.choice(self.pieces) for k in keys}
        ids, w, starts = [BOS], [0.], []
        while len(ids) < tokens:
            new = not starts
            starts.append(len(ids))
            for k in keys:
                ids += [k, value[k]]
                w += [0., 0. if new else 1.]
            self.r.shuffle(keys)
        return ids[:tokens], w[:tokens], [("pairs", i, i + 1) for i in range(tokens) if w[i]], starts, []

    def copying(self, tokens):
        """Prose, a gap, the prose again."""
        r = self.r
        size = r.randint(12, max(13, min(64, tokens // 3)))
        run = sum(self.prose.sentences(r, size), [])
        before = r.randint(0, max(0, tokens - 1 - 2 * size))
        ids = [BOS] + sum(self.prose.sentences(r, before), []) + run
        gap = sum(self.prose.sentences(r, tokens - len(ids) - size), [])
        head = r.randint(4, 8)
        ids = ids + gap + run
        w = [0.] * (len(ids) - size + head) + [.5] * (size - head)
        return ids[:tokens], w[:tokens], [("copy", tokens - size + head, min(tokens, tokens - size + head + 8))], \
            [1 + before, 1 + before + size, tokens - size], []

    def world(self, tokens, plain, dense):
        """People and questions; `dense`: most of the row is facts and questions, else most of it is prose."""
        r = self.r
        names = self.names if not self.words or r.random() < .6 else r.sample(self.words, 40)
        if plain: relations, updates = [r.choice(("city", "thing", "color", "friend"))], 0
        else:
            relations = self.recipe.relations(r)
            updates = r.choice((0, 0, .3, .6))
        room = tokens - 1
        for_facts = room * (r.uniform(.4, .55) if dense else r.uniform(.1, .4))
        people = max(2, min(24, int(for_facts / ((5.5 if plain else 7) * len(relations)))))
        people = r.randint(max(2, people * 2 // 3), people)
        while True:
            facts, questions = self.make.world(r, names, people, relations, updates, plain)
            if sum(map(len, facts)) <= room * .6: break
            if people > 2: people -= 1
            elif updates: updates = 0
            else: relations = relations[1:]
        left = room - sum(map(len, facts))
        by_kind = {}
        for q in questions: by_kind.setdefault(q[0], []).append(q)
        for k in by_kind.values(): r.shuffle(k)
        chosen, share = [], left * (1 if dense else r.uniform(.2, .7))
        while by_kind:
            kind = r.choices(list(by_kind), [self.recipe.weights[k] for k in by_kind])[0]
            _, q, a, first = by_kind[kind].pop()
            if not by_kind[kind]: del by_kind[kind]
            if share < len(q) + len(a): continue
            share -= len(q) + len(a)
            left -= len(q) + len(a)
            chosen.append((kind, q, a, first))
        ids, w, spans, starts, between = [BOS], [0.], [], [0], []
        for is_fact, piece in mingled(r, facts, self.prose.sentences(r, left)):
            starts.append(len(ids))
            ids += piece
            w += [0.] * len(piece)
            if not is_fact and not dense and r.random() < .1: w[-len(piece):] = [.1] * len(piece)
        for kind, q, a, first in chosen:
            starts.append(len(ids))
            if first is not None: between.append((len(ids) + len(q) - 1, first))
            spans.append((kind, len(ids) + len(q), len(ids) + len(q) + len(a) - 1))
            ids += q + a
            w += [0.] * len(q) + [1.] * (len(a) - 1) + [.1 if r.random() < .3 else 0.]
        assert len(ids) == tokens, (len(ids), tokens)
        return ids, w, spans, starts, between

    def row(self, tokens, mix):
        kind = self.r.choices(list(mix), list(mix.values()))[0]
        if kind == "repeats": return self.repeats(tokens)
        if kind == "pairs": return self.pairs(tokens)
        if kind == "copy": return self.copying(tokens)
        return self.world(tokens, kind == "plain", kind != "prose")

    def positions(self, tokens, starts, reach):
        """Positions that leap at starts of sentences, so that distances up to `reach` are met in short rows."""
        pos = np.arange(tokens)
        if reach <= tokens or self.r.random() < .4: return pos
        extra = int(math.exp(self.r.uniform(math.log(tokens), math.log(reach)))) - tokens
        places = [s for s in starts if 0 < s < tokens]
        if extra <= 0 or not places: return pos
        places = sorted(self.r.sample(places, min(len(places), self.r.randint(1, 12))))
        cuts = sorted(self.r.randint(0, extra) for _ in places)
        for p, before, now in zip(places, [0] + cuts, cuts): pos[p:] += now - before
        return pos


def batch(docs, rows, tokens, mix, reach):
    """ids, positions and weights of the loss of predicting a token, each [rows, tokens]; spans of every row; (row,
    place, piece) of every question that joins two facts"""
    made = [docs.row(tokens, mix) for _ in range(rows)]
    pos = np.stack([docs.positions(tokens, m[3], reach) for m in made])
    between = [(i, place, piece) for i, m in enumerate(made) for place, piece in m[4]]
    return (np.array([m[0] for m in made], dtype=np.int64), pos, np.array([m[1] for m in made], dtype=np.float32),
            [m[2] for m in made], between)
