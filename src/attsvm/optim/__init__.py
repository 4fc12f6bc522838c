"""Mirror descent for any PyTorch model, in place of torch.optim.SGD and torch.optim.AdamW; sparse training."""

from attsvm.optim._advice import starting_lr
from attsvm.optim._after_training import SparsityReport, SparsityRow, export, load_export, prune, sparsity_report
from attsvm.optim._callbacks import lightning_pruning, trainer_pruning
from attsvm.optim._from_torch import from_torch
from attsvm.optim._groups import describe_groups, param_groups
from attsvm.optim._inference import CSRLinear, to_csr
from attsvm.optim._mirror_adam import MirrorAdam, mirror_adam
from attsvm.optim._mirror_descent import MirrorDescent, mirror_descent
from attsvm.optim._mirror_muon import MirrorMuon, mirror_muon, newton_schulz
from attsvm.optim._pruning import GradualPruning

__all__ = [
    "CSRLinear",
    "GradualPruning",
    "MirrorAdam",
    "MirrorDescent",
    "MirrorMuon",
    "SparsityReport",
    "SparsityRow",
    "describe_groups",
    "export",
    "from_torch",
    "lightning_pruning",
    "load_export",
    "mirror_adam",
    "mirror_descent",
    "mirror_muon",
    "newton_schulz",
    "param_groups",
    "prune",
    "sparsity_report",
    "starting_lr",
    "to_csr",
    "trainer_pruning",
]
