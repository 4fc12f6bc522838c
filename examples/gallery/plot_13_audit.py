"""
What the heads of a model select
================================

An audit runs a model on texts and looks at every attention head: how sure it is, what it selects, by what margin. Here
the model is a small GPT with random weights; a Hugging Face folder works the same way.
"""

import matplotlib.pyplot as plt
import torch

import attsvm
from attsvm.models import GPT

torch.manual_seed(0)
model = GPT(vocabulary=50, length=32, width=32, layers=2, heads=4)
for block in model.blocks:
    torch.nn.init.normal_(block.qkv.weight, std=0.5)
texts = torch.randint(50, (20, 32)).tolist()

# %%
# One object holds all heads; `found.save("audit/")` writes a page that opens offline.
found = attsvm.audit(model, texts=texts)
print(found)

# %%
# Median margin of every head: the largest logit minus the second.
figure, ax = plt.subplots(layout="constrained", figsize=(4.5, 2.6))
table = [[found[f"blocks.{layer}", head].measures["margin"] for head in range(4)] for layer in range(2)]
image = ax.imshow(table, cmap="viridis")
ax.set(xlabel="head", ylabel="layer", xticks=range(4), yticks=range(2))
_ = figure.colorbar(image, label="median margin of the logits")
