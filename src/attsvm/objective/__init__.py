"""What training minimises: losses, and the exact gradient and curvature of softmax attention under them."""

from attsvm.objective._contract import contract
from attsvm.objective._curvature import curvature, gradient, scaled_gradient, step_convexity, value
from attsvm.objective._gradient import Attended, Blocks, Gradient, attend, combined, gradients, logits, losses, pulls
from attsvm.objective._lanes import Lanes, chunks, is_small, trial_first, trial_last
from attsvm.objective._losses import (
    LOSSES,
    Added,
    Correlation,
    Exponential,
    FunctionLoss,
    Log,
    Logistic,
    Loss,
    as_loss,
    check_loss,
)

__all__ = [
    "LOSSES",
    "Added",
    "Attended",
    "Blocks",
    "Correlation",
    "Exponential",
    "FunctionLoss",
    "Gradient",
    "Lanes",
    "Log",
    "Logistic",
    "Loss",
    "as_loss",
    "attend",
    "check_loss",
    "chunks",
    "combined",
    "contract",
    "curvature",
    "gradient",
    "gradients",
    "is_small",
    "logits",
    "losses",
    "pulls",
    "scaled_gradient",
    "step_convexity",
    "trial_first",
    "trial_last",
    "value",
]
