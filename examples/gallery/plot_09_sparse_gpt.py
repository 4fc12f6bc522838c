"""
Prune a small language model while it trains
============================================

`GradualPruning` sets more and more weights to exact zeros, along a cubic schedule, and the rest recovers. Here a tiny
GPT learns to repeat the first half of a sequence. Its loss comes close to the floor of 1.62 nats, which the random
first half leaves, while nine of ten weights are cut.
"""

import matplotlib.pyplot as plt
import torch

from attsvm.models import GPT
from attsvm.optim import GradualPruning, MirrorAdam, param_groups, sparsity_report

torch.manual_seed(0)
steps, share = 240, 0.9
model = GPT(vocabulary=32, length=16, width=32, layers=2, heads=2)
optimizer = MirrorAdam(param_groups(model, p=1.1), lr=4e-3)
pruning = GradualPruning(optimizer, sparsity=share, total_steps=steps, every=10)

# %%
# The second half of every sequence repeats the first.
losses, zeros = [], []
for _ in range(steps):
    half = torch.randint(32, (32, 8))
    tokens = torch.cat([half, half], 1)
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pruning.step()
    losses.append(loss.item())
    zeros.append(pruning.achieved())

# %%
# Exact zeros, by layer.
print(sparsity_report(model))
figure, (above, below) = plt.subplots(2, 1, layout="constrained", figsize=(5.5, 4.4), sharex=True)
above.plot(losses)
above.set_ylabel("loss")
below.plot(zeros, color="#D55E00")
below.set(xlabel="step", ylabel="share of zeros")
figure.align_ylabels()
