"""Mirror descent for any PyTorch model: drop-in replacements of torch.optim.SGD and torch.optim.AdamW."""

from attsvm.optim._advice import starting_lr
from attsvm.optim._from_torch import from_torch
from attsvm.optim._groups import describe_groups, param_groups
from attsvm.optim._mirror_adam import MirrorAdam, mirror_adam
from attsvm.optim._mirror_descent import MirrorDescent, mirror_descent
from attsvm.optim._pruning import GradualPruning

__all__ = [
    "GradualPruning",
    "MirrorAdam",
    "MirrorDescent",
    "describe_groups",
    "from_torch",
    "mirror_adam",
    "mirror_descent",
    "param_groups",
    "starting_lr",
]
