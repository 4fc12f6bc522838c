"""Margin problems and their certified solution."""

from attsvm.svm._problem import MarginProblem, att_svm, embedding_svm, finite_part, gen_svm, head_svm
from attsvm.svm._result import MaxMargin, Status
from attsvm.svm._solve import label_margin, margin_efficiency, solve, token_margin

__all__ = [
    "MarginProblem",
    "MaxMargin",
    "Status",
    "att_svm",
    "embedding_svm",
    "finite_part",
    "gen_svm",
    "head_svm",
    "label_margin",
    "margin_efficiency",
    "solve",
    "token_margin",
]
