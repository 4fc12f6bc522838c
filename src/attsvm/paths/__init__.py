"""Regularization paths: the best weights of every norm, on their way to the max-margin direction."""

from attsvm.paths._path import RegularizationPath, regularization_path

__all__ = ["RegularizationPath", "regularization_path"]
