"""Documents of the model `relate`: people, what is said of them, and questions that join and compare it.

A fact is a sentence of a few words, each of them one piece of the tokenizer; facts about people stand between
sentences of public-domain prose. Kinds of question:

  recall       a fact in the words it was stated in
  paraphrase   a fact in other words than it was stated in
  latest       a fact that was stated two to four times with other values: the last one counts
  join         two facts from two places: "The friend of A is B." and "B lives in C."
  thing        two facts from two places: "A has the T." and "The T is C.": "The thing of A is C.", of the model
               `join` "A has a C"
  code         three digits
  copy         a passage of prose, word for word
"""
NAMES = """Alice Boris Clara David Elena Felix Grace Henry Irene Jacob Karen Louis Maria Nadia Oscar Paula Quinn
Robin Sarah Tomas Ursula Victor Wendy Xavier Yusuf Zelda Amos Bella Cyrus Diana Edgar Flora Gavin Hilda
Isaac Julia Keith Laura Miles Norma Oliver Penny Ralph Sofia Tessa Ulrich Vera Wilma Agnes Bruno Celia
Derek Edith Frank Gloria Hugo Ivan Joyce Kevin Leila Marcus Nina Otto Peter Rosa Simon Thelma Uma Vincent
Walter Yvonne Zachary Adela Basil Conrad Dora""".split()
HELDOUT_NAMES = NAMES[::6]  # never a subject or a value in training
CITIES = """Paris London Berlin Madrid Vienna Dublin Lisbon Athens Prague Warsaw Moscow Cairo Tokyo Delhi Lima Quito
Oslo Geneva Naples Turin Milan Seville Lyon Bremen Dresden Krakow Riga Tallinn Zagreb Ankara Havana
Boston Denver Dallas Toronto Sydney Perth Osaka Kyoto Seoul Hanoi Manila Jakarta Nairobi Lagos Tunis
Bogota""".split()
THINGS = """apple basket candle diamond engine feather garden hammer island jacket kettle ladder mirror needle orange
pencil quilt ribbon saddle table umbrella violin wagon bottle castle drum emerald flute guitar helmet
iron jewel knife lantern map nest oven piano rope sword trumpet vase whistle anchor banner cradle dagger
egg fiddle goblet harp idol jug lamp mask net oar pipe ring shield tower""".split()
COLORS = "red blue green yellow white black brown purple silver golden grey pink".split()
# Of every relation, the ways to say it; a value follows.
FORMS = {"thing": ("{} has the", "{} owns the", "{} keeps the"),
         "city": ("{} lives in", "{} dwells in", "The home of {} is in"),
         "color": ("{} likes", "{} prefers", "The colour of {} is"),
         "friend": ("The friend of {} is", "{} trusts"),
         "code": ("The code of {} is",)}
JOINS = {"city": "The friend of {} lives in", "thing": "The friend of {} has the", "color": "The friend of {} likes"}
COLOR_OF, THING_OF, HAS_A = "The {} is", "The thing of {} is", "{} has a"
KINDS = ("recall", "paraphrase", "latest", "join", "thing", "code", "copy")
VALUES = {"thing": THINGS, "city": CITIES, "color": COLORS}
OF_FORMS = {w for forms in (*FORMS.values(), JOINS.values()) for f in forms for w in f.split() if w != "{}"}
# Of counts, which no question asks for any more: the tokenizer was made with them, in this order.
COUNTING, NUMBERS = {"found", "coin", "coins", "are"}, "one two three four five six".split()
WORDS = NAMES + CITIES + THINGS + COLORS + NUMBERS + sorted(OF_FORMS | COUNTING)


class Maker:
    """Makes worlds as lists of pieces: the forms are encoded once, so that no text is encoded while training."""

    def __init__(self, tok, thing_of=THING_OF):
        one = lambda word: tok.encode(" " + word)[0]
        self.names = {w: one(w) for w in NAMES}
        self.values = {k: [one(w) for w in v] for k, v in VALUES.items()}
        self.digits = [tok.encode(d)[0] for d in "0123456789"]
        self.space, self.stop = tok.encode(" 0")[:-1], tok.encode(".")
        split = lambda form: tuple(tok.encode(" " + x.strip() if x.strip() else "") for x in form.split("{}"))
        self.forms = {k: [split(f) for f in v] for k, v in FORMS.items()}
        self.joins = {k: split(f) for k, f in JOINS.items()}
        self.color_of, self.thing_of = split(COLOR_OF), split(thing_of)

    def value(self, r, relation, people):
        if relation == "friend": return [r.choice(people)]
        if relation == "code": return self.space + [r.choice(self.digits) for _ in range(3)]
        return [r.choice(self.values[relation])]

    def world(self, r, names, people, relations, updates, plain=False):
        """Facts in the order in which they are stated, and questions of all kinds [(kind, question, answer, between)].

        `between`: what the first of two facts says, the name or thing that the second is about; of one fact None.
        `plain`: every relation has one form, and a question is a fact in its own words."""
        who = r.sample(names, min(people, len(names)))
        facts, known, questions = [], {}, []
        ask = lambda form, name: form[0] + [name] + form[1]
        for name in who:
            for relation in relations:
                if r.random() < .1 and len(who) > 2: continue
                again = r.choice((1, 1, 2, 3)) if r.random() < updates and relation != "friend" else 0
                for _ in range(1 + again):
                    others = [x for x in who if x != name]
                    form = 0 if plain else r.randrange(len(self.forms[relation]))
                    facts.append((name, relation, self.value(r, relation, others or who), form))
        r.shuffle(facts)
        lines = []
        for name, relation, what, form in facts:
            known.setdefault((name, relation), []).append((what, form))
            lines.append(ask(self.forms[relation][form], name) + what + self.stop)
        owned = sorted({v[-1][0][0] for (_, relation), v in known.items() if relation == "thing"})
        colors = {}
        if "thing" in relations and not plain and r.random() < .6:
            colors = {t: r.choice(self.values["color"]) for t in owned}
        for t, c in colors.items():
            lines.insert(r.randrange(len(lines) + 1), ask(self.color_of, t) + [c] + self.stop)
        for (name, relation), values in known.items():
            what, form = values[-1]
            forms = self.forms[relation]
            if len(values) > 1: kind = "latest"
            elif len(forms) == 1: kind = "code"
            else: kind = "recall" if plain else r.choice(("recall", "paraphrase"))
            if kind == "paraphrase": form = r.choice([i for i in range(len(forms)) if i != form])
            questions.append((kind, ask(forms[form], name), what + self.stop, None))
            if relation == "friend" and not plain:
                for second, form in self.joins.items():
                    if (what[0], second) in known:
                        answer = known[what[0], second][-1][0] + self.stop
                        questions.append(("join", ask(form, name), answer, what[0]))
            if relation == "thing" and what[0] in colors:
                answer = [colors[what[0]]] + self.stop
                questions.append(("thing", ask(self.thing_of, name), answer, what[0]))
                if r.random() < .3: questions.append(("recall", ask(self.color_of, what[0]), answer, None))
        return lines, questions
