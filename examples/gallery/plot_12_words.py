"""
Which words carry the label
===========================

The text classifier gives every word two numbers: how much it is attended to, and which way it points. The bias and the
contributions of a text's words add up to its score exactly.
"""

import random

import matplotlib.pyplot as plt

from attsvm.text import AttentionTextClassifier

# %%
# Made-up reviews: one of eight words decides, the rest is noise.
draw = random.Random(0)
good, bad = ["superb", "moving", "funny", "clever"], ["dull", "thin", "clumsy", "endless"]
noise = "the a film plot scene actor story camera music ending was is and with of".split()
labels = [draw.choice([0, 1]) for _ in range(600)]
texts = [" ".join(draw.choices(noise, k=9) + [draw.choice(good if label else bad)]) for label in labels]
model = AttentionTextClassifier().fit(texts, labels)

# %%
# One text, word by word: the contributions add up to the score.
explanation = model.explain(["the plot was thin and the actor superb"])[0]
print(explanation)

figure, ax = plt.subplots(layout="constrained", figsize=(6, 3))
words = list(explanation.words)
ax.barh(range(len(words)), explanation.contribution, color="#0072B2")
ax.set_yticks(range(len(words)), words)
ax.invert_yaxis()
_ = ax.set_xlabel("contribution to the score")
