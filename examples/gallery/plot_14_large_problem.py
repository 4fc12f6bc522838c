"""
A problem with a hundred thousand rows
======================================

Rows are never formed: they are priced from the tokens by a matrix product, and a working set grows by the worst
violators. The answer is certified on all rows, and few of them are support tokens.
"""

import matplotlib.pyplot as plt
import torch

import attsvm

# %%
# Two hundred sequences of five hundred tokens. A hidden matrix selects the tokens, so that a W exists.
draw = torch.Generator().manual_seed(0)
X = torch.randn(200, 500, 8, generator=draw, dtype=torch.float64)
z = torch.randn(200, 8, generator=draw, dtype=torch.float64)
hidden = torch.randn(8, 8, generator=draw, dtype=torch.float64)
tokens = torch.einsum("ntd,de,ne->nt", X, hidden, z).argmax(1)
problem = attsvm.att_svm(attsvm.TokenData.cross(X, z), tokens=tokens)
solution = attsvm.solve(problem, "l2", tol=1e-6)
print(solution)

# %%
# The margins of all rows: a thin layer at 1 decides.
logits = torch.einsum("ntd,de,ne->nt", X, solution.W[0], z)
margins = logits.gather(1, tokens[:, None]) - logits
margins = margins[margins != 0]
figure, ax = plt.subplots(layout="constrained", figsize=(5.5, 3.2))
ax.hist(margins.numpy(), bins=120, color="#0072B2")
ax.axvline(1, color="#D55E00", lw=1)
ax.set(yscale="log", xlabel="margin of a row", ylabel="rows")
print(f"{(margins < 1 + 1e-4).sum()} of {len(margins):,} rows are at the margin")
