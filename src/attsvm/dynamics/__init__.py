"""Training dynamics of softmax attention that stay exact however far the softmax has saturated."""

from attsvm.dynamics._init import Gaussian, Init, Near
from attsvm.dynamics._losses import Correlation, Exponential, Logistic, Loss
from attsvm.dynamics._path import RegularizationPath, regularization_path
from attsvm.dynamics._record import QUANTITIES
from attsvm.dynamics._schedules import Constant, Growing, Schedule
from attsvm.dynamics._train import train
from attsvm.dynamics._trajectory import TrainState, Trajectory

__all__ = [
    "QUANTITIES",
    "Constant",
    "Correlation",
    "Exponential",
    "Gaussian",
    "Growing",
    "Init",
    "Logistic",
    "Loss",
    "Near",
    "RegularizationPath",
    "Schedule",
    "TrainState",
    "Trajectory",
    "regularization_path",
    "train",
]
