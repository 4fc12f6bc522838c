"""
Next-token prediction is a margin problem too
=============================================

A linear decoder is trained to predict the next token. Where a context has several possible successors, their logits
settle at finite differences, the log-odds; all other logits go to minus infinity along the NTP-SVM. So W splits into a
finite part and a growing direction.
"""

import matplotlib.pyplot as plt
import torch

import attsvm
from attsvm.svm import ntp_finite_part, ntp_svm

# %%
# Five contexts in six dimensions, eight tokens, two successors each with probabilities 0.7 and 0.3.
draw = torch.Generator().manual_seed(0)
H = torch.randn(5, 6, generator=draw, dtype=torch.float64)
P = torch.zeros(5, 8, dtype=torch.float64)
for j in range(5):
    first, second = torch.randperm(8, generator=draw)[:2].tolist()
    P[j, first], P[j, second] = 0.7, 0.3
direction = attsvm.solve(ntp_svm(H, P > 0), "l2").W[0]
finite = attsvm.solve(ntp_finite_part(H, P), "l2").W[0]

# %%
# Gradient descent on the cross-entropy. Its norm grows like log(step), so the direction turns slowly.
W = torch.zeros(8, 6, dtype=torch.float64)
lr = 2 * 5 / torch.linalg.matrix_norm(H, 2).square()
steps, correlations = [], []
for step in range(1, 30_001):
    W += lr * (P - torch.softmax(H @ W.T, 1)).T @ H / 5
    if step % 100 == 0:
        steps.append(step)
        correlations.append(float(torch.cosine_similarity((W - finite).flatten(), direction.flatten(), dim=0)))

# %%
# What grows turns to the NTP-SVM.
figure, ax = plt.subplots(layout="constrained", figsize=(5.5, 3.4))
ax.plot(steps, correlations)
_ = ax.set(xscale="log", xlabel="step", ylabel="correlation of W − W_fin with the NTP-SVM", ylim=(0, 1.02))
print(f"correlation after {steps[-1]} steps: {correlations[-1]:.3f}")
logits = H @ W.T
gaps = [float(abs(logits[j][P[j] > 0].diff().item())) for j in range(5)]
print("differences of the two successors' logits:", *(f"{gap:.3f}" for gap in gaps))
print(f"log-odds log(0.7/0.3): {torch.log(torch.tensor(7 / 3)):.3f}")
