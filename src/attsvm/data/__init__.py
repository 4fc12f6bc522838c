"""Token data: sequences, queries, labels, masks and heads of B independent trials."""

from attsvm.data._generate import example1, example2, figure1, orthonormal, sphere, trial_numbers, trial_streams
from attsvm.data._heads import (
    ClassHead,
    FunctionHead,
    Head,
    LabelHead,
    LinearHead,
    MLPHead,
    QuadraticHead,
    SampleHead,
)
from attsvm.data._io import ARRAYS, from_arrays, load, save
from attsvm.data._models import attended_classes, class_data, next_token_data, of_heads, several_heads
from attsvm.data._token_data import TokenData

__all__ = [
    "ARRAYS",
    "ClassHead",
    "FunctionHead",
    "Head",
    "LabelHead",
    "LinearHead",
    "MLPHead",
    "QuadraticHead",
    "SampleHead",
    "TokenData",
    "attended_classes",
    "class_data",
    "example1",
    "example2",
    "figure1",
    "from_arrays",
    "load",
    "next_token_data",
    "of_heads",
    "orthonormal",
    "save",
    "several_heads",
    "sphere",
    "trial_numbers",
    "trial_streams",
]
