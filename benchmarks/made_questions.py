"""Made questions of six types: the first words tell a part, rare nouns the rest, names nothing."""

from __future__ import annotations

import re

import numpy as np

STARTS = re.findall("...", "barkelmontorvelsandorlinmarfengalholjunrostalwes")
ENDS = ("ton", "ia", "berg", "ville", "man", "sen", "ski", "er", "ova", "dale", "ez", "ham", "ley")
WORDS = {
    "place": "city country state river mountain island capital continent lake ocean province county region street "
    "planet desert peninsula town village nation harbor canyon airport stadium",
    "person": "president actor author inventor king queen singer explorer scientist captain composer painter director "
    "poet general astronaut philosopher detective senator emperor chef dancer architect novelist",
    "thing": "animal color language disease sport instrument food currency religion bird flower game book movie song "
    "dog fish metal plant vegetable fabric drink car ship weapon dance tree vitamin newspaper opera",
    "number": "year date population temperature distance age percentage price salary speed height weight length cost "
    "number rate area month day diameter",
    "kind": "first largest famous oldest popular highest longest smallest last original main best current favorite "
    "deepest national official only second richest fastest",
    "did": "invented discovered founded wrote painted built directed won killed led married designed composed played "
    "named started crossed conquered sold created",
    "idea": "gravity osmosis insulin inflation photosynthesis thunder leprosy jazz glaucoma caffeine nicotine amnesia "
    "erosion sunburn dandruff hypothermia ozone karma algebra irony",
    "of": "in|France in|the|world of|the|United|States on|earth in|Europe during|the|war in|1969 of|all|time in|Africa "
    "in|history in|the|Bible of|Japan in|the|20th|century in|baseball on|television in|California",
    "name": " ".join(start + end for start in STARTS for end in ENDS),
}
FORMS = """
place: Where is {name}?
place: Where did the {thing} come from?
place: What {place} is {name} in?
place: What {place} has the {kind} {thing} {of}?
place: What is the {kind} {place} {of}?
place: Name the {place} where {name} {did} the {thing}?
place: Which {place} did {name} come from?
person: Who {did} the {kind} {thing}?
person: Who was the {kind} {person} {of}?
person: What {person} {did} {name}?
person: What is the name of the {person} who {did} the {thing}?
person: Which {person} {did} the {place} of {name}?
person: Who is {name} {name} 's {person}?
person: Name the {person} of {name}?
thing: What {thing} was {did} by {name}?
thing: What is the {kind} {thing} {of}?
thing: What kind of {thing} is a {name}?
thing: Which {thing} did the {person} of {name} have?
thing: What does the {person} of {name} eat?
thing: Name the {thing} that {name} {did}?
thing: What is the name of the {thing} in {name}?
number: How many {thing}s are there {of}?
number: When was {name} {did}?
number: What is the {number} of the {kind} {place}?
number: How long is the {place} of {name}?
number: What {number} did the {person} give the {thing}?
number: How much does a {thing} cost {of}?
number: How far is {name} from {name}?
number: What was the {number} {of}?
description: What is {idea}?
description: What is a {name}?
description: What causes {idea}?
description: Why does the {thing} fear the {person}?
description: How do you make a {thing}?
description: What does {name} mean?
description: How did {name} get its name?
description: Who was {name} {name}?
description: What is the difference between a {thing} and a {thing}?
description: What is the origin of the {thing}?
abbreviation: What does {name} stand for?
abbreviation: What is the abbreviation of {idea}?
abbreviation: What is the full form of {name}?
abbreviation: What does the {thing} abbreviation {name} mean?
"""
SHARES = {"place": 0.15, "person": 0.22, "thing": 0.23, "number": 0.16, "description": 0.21, "abbreviation": 0.03}
NOISE = 0.05
"""Labels that are drawn at random"""


def make_questions(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Frequent words come first in the lists: their shares fall with the rank."""
    random = np.random.default_rng(seed)
    words = {name: text.replace("|", "_").split() for name, text in WORDS.items()}
    shares = {name: np.arange(1, len(some) + 1) ** -0.8 for name, some in words.items()}

    def draw(field: re.Match[str]) -> str:
        some, share = words[field[1]], shares[field[1]]
        return some[random.choice(len(some), p=share / share.sum())].replace("_", " ")

    types = list(SHARES)
    forms = {one: re.findall(rf"^{one}: (.*)$", FORMS, re.MULTILINE) for one in types}
    drawn = random.choice(types, size=count, p=list(SHARES.values()))
    texts = [re.sub(r"\{(\w+)\}", draw, forms[one][random.integers(len(forms[one]))]) for one in drawn]
    wrong = random.random(count) < NOISE
    return texts, np.where(wrong, random.choice(types, size=count), drawn).tolist()
