"""Tolerances that several parts share. Those of one algorithm stand beside it."""

SHARP = 1e-12
"""Relative gap to which an SVM is solved where its direction matters: W is known to about the root of the gap."""
CERTIFIED = 1e-9
"""Relative gap that still counts as solved where rounding keeps an instance from SHARP."""
SELECTED = 1e-3
"""Softmax weight above which TF-as-SVM (Section 6) counts a token as selected."""
MASKED = 1e-6
"""Softmax weight below which it counts as masked (1e-8 in its Figure 9); in between a trial is undecided."""
REACHED = 1e-2
"""Direction error up to which a limit counts as reached: a correlation of 0.99, which TF-as-SVM (Section 6) calls a
strong prediction. For p = 2 the directional Bregman divergence is the same number, 1 − correlation; for other p both
must be within it."""
RANK = 1e-4
"""A singular value counts above this fraction of the largest: a solution certified to a gap of 1e-9 is known to
about its root, 3e-5, and below that singular values are noise of the solver."""
CHOICES = 4096
"""Token choices per trial up to which all of them are enumerated."""
