"""What models are trained on, stage by stage: `relate` from random weights, `join` from those of `relate`."""
import dataclasses

import tasks

FACTS = ("recall", "paraphrase", "latest")


def few_relations(r):
    """Up to three, which most of the time can be joined."""
    relations = r.sample(sorted(tasks.FORMS), r.randint(1, 3))
    if r.random() < .6:
        relations = sorted(set(relations[:2]) | {"friend", r.choice(("city", "thing", "color"))})
    return relations


def joined_relations(r):
    """Nine times in ten some that can be joined."""
    relations = r.sample(sorted(tasks.FORMS), r.randint(1, 3))
    if r.random() < .75: return sorted({relations[0], "friend", r.choice(("city", "thing", "color"))})
    return sorted({"thing", r.choice(("thing", "city", "color"))}) if r.random() < .6 else relations


@dataclasses.dataclass(frozen=True)
class Recipe:
    mixes: dict  # what rows are made of: documents.Documents.row
    # A stage ends when the kinds of `until` are that often right, or after so many minutes of processor time. `reach`:
    # positions leap up to there. `lr`: of Muon, at the start and the end. `probe`: weight of the loss of telling tokens
    # back behind layer 0; `between`: of telling behind layer 1 what the first of two facts says, where a question ends.
    stages: list
    weights: dict  # how often a kind of question is asked
    relations: callable  # of a world
    thing_of: str  # how two facts about a thing are asked for


RELATE = Recipe(
    mixes={"first": {"repeats": .35, "pairs": .35, "plain": .3},
           "dense": {"repeats": .05, "pairs": .05, "copy": .05, "plain": .1, "dense": .75},
           "mixed": {"repeats": .03, "pairs": .04, "copy": .13, "dense": .4, "prose": .4},
           "long": {"copy": .15, "dense": .2, "prose": .65}},
    stages=[
        {"mix": "first", "tokens": 48, "batch": 3072, "minutes": 15, "probe": 1, "lr": (.02, .02), "reach": 0,
         "until": {"repeats": .9, "pairs": .9, "recall": .9}},
        {"mix": "dense", "tokens": 96, "batch": 3072, "minutes": 10, "probe": .3, "lr": (.02, .02), "reach": 0,
         "until": {**{k: .93 for k in FACTS}, "join": .6}},
        {"mix": "dense", "tokens": 128, "batch": 4096, "minutes": 8, "lr": (.02, .02), "reach": 512,
         "until": {**{k: .95 for k in FACTS}, "join": .85}},
        {"mix": "mixed", "tokens": 256, "batch": 4096, "minutes": 8, "lr": (.02, .015), "reach": 4096,
         "until": {k: .95 for k in (*FACTS, "join", "copy")}},
        {"mix": "mixed", "tokens": 512, "batch": 6144, "minutes": 6, "lr": (.015, .01), "reach": 4096},
        {"mix": "long", "tokens": 1024, "batch": 8192, "minutes": 6, "lr": (.01, .004), "reach": 4096},
        {"mix": "long", "tokens": 4096, "batch": 8192, "minutes": 4, "lr": (.004, .0004), "reach": 0}],
    weights={"recall": 1, "paraphrase": 1, "latest": 1.5, "join": 3, "thing": 2, "code": .5},
    relations=few_relations, thing_of=tasks.THING_OF)

JOIN = Recipe(
    mixes={"dense": {"repeats": .02, "pairs": .03, "copy": .03, "dense": .92},
           "mixed": {"repeats": .02, "pairs": .02, "copy": .06, "dense": .5, "prose": .4},
           "long": {"copy": .08, "dense": .3, "prose": .62}},
    stages=[
        {"mix": "dense", "tokens": 96, "batch": 3072, "minutes": 11, "between": 1, "lr": (.02, .015), "reach": 0,
         "until": {"join": .95, "thing": .95}},
        {"mix": "dense", "tokens": 160, "batch": 4800, "minutes": 9, "between": 1, "lr": (.015, .012), "reach": 512,
         "until": {"join": .945, "thing": .945}},
        {"mix": "mixed", "tokens": 320, "batch": 5120, "minutes": 9, "between": .3, "lr": (.012, .01), "reach": 2048,
         "until": {"join": .95, "thing": .95}},
        {"mix": "mixed", "tokens": 640, "batch": 7680, "minutes": 6, "between": .1, "lr": (.01, .006), "reach": 4096},
        {"mix": "long", "tokens": 1024, "batch": 8192, "minutes": 8, "lr": (.006, .0005), "reach": 4096},
        {"mix": "long", "tokens": 4096, "batch": 8192, "minutes": 7, "lr": (.004, .0004), "reach": 0}],
    weights={"recall": 1, "paraphrase": 1, "latest": 1.5, "join": 6, "thing": 4, "code": .3},
    relations=joined_relations, thing_of=tasks.HAS_A)

RECIPES = {"relate": RELATE, "join": JOIN}
