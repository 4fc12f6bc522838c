"""Training dynamics of softmax attention that stay exact however far the softmax has saturated."""

from attsvm.dynamics._batches import Batches
from attsvm.dynamics._init import Gaussian, Init, Near, Shapes
from attsvm.dynamics._optimizers import RULES, Adam, Lion, Muon, RMSprop, Steepest
from attsvm.dynamics._record import QUANTITIES
from attsvm.dynamics._rules import MirrorDescent, Rule, State, limit_of
from attsvm.dynamics._schedules import Constant, Decaying, Growing, Schedule
from attsvm.dynamics._train import block_names, block_shapes, geometries, train
from attsvm.dynamics._trajectory import TrainState, Trajectory

__all__ = [
    "QUANTITIES",
    "RULES",
    "Adam",
    "Batches",
    "Constant",
    "Decaying",
    "Gaussian",
    "Growing",
    "Init",
    "Lion",
    "MirrorDescent",
    "Muon",
    "Near",
    "RMSprop",
    "Rule",
    "Schedule",
    "Shapes",
    "State",
    "Steepest",
    "TrainState",
    "Trajectory",
    "block_names",
    "block_shapes",
    "geometries",
    "limit_of",
    "train",
]
