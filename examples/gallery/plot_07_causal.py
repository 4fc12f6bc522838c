"""
Causal self-attention
=====================

Every token asks about the past, so a sequence of T tokens has T queries and one SVM for all of them. The first query
has no choice; the others each select a token.
"""

import matplotlib.pyplot as plt

import attsvm

cross = attsvm.sphere(4, 6, 12, trials=1, seed=4)
data = attsvm.TokenData.causal(cross.X, head=cross.head)
run = attsvm.train(data, steps=4000)
print(attsvm.verdict(run))

# %%
# Attention of one sequence: a row is a query, a column the token that it attends to.
figure, ax = plt.subplots(layout="constrained", figsize=(4, 3.6))
image = ax.imshow(data.attention(run.W)[0, 0], cmap="Blues", vmin=0, vmax=1)
ax.set_xlabel("token")
ax.set_ylabel("query")
_ = figure.colorbar(image, label="softmax weight")
