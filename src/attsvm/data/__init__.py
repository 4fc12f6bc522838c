"""Token data: sequences, queries, labels, masks and heads of B independent trials."""

from attsvm.data._generate import example1, example2, figure1, orthonormal, sphere
from attsvm.data._heads import Head, LinearHead, MLPHead, QuadraticHead
from attsvm.data._io import load, save
from attsvm.data._token_data import TokenData

__all__ = [
    "Head",
    "LinearHead",
    "MLPHead",
    "QuadraticHead",
    "TokenData",
    "example1",
    "example2",
    "figure1",
    "load",
    "orthonormal",
    "save",
    "sphere",
]
