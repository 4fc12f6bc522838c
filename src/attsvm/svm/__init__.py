"""Margin problems and their certified solution."""

from attsvm.svm._builders import graph_finite_part, graph_svm, multiclass_svm, ntp_finite_part, ntp_svm, per_head_svm
from attsvm.svm._derivatives import differentiable
from attsvm.svm._embedding import EmbeddingProblem, embedding_svm
from attsvm.svm._faces import face_distance, face_point
from attsvm.svm._problem import MarginProblem, TokenProblem, att_svm, finite_part, gen_svm, head_svm
from attsvm.svm._rank import LowRank, solve_rank
from attsvm.svm._result import MaxMargin, Status
from attsvm.svm._solve import label_margin, margin_efficiency, solve, token_margin
from attsvm.svm._unique import Vertex, vertices

__all__ = [
    "EmbeddingProblem",
    "LowRank",
    "MarginProblem",
    "MaxMargin",
    "Status",
    "TokenProblem",
    "Vertex",
    "att_svm",
    "differentiable",
    "embedding_svm",
    "face_distance",
    "face_point",
    "finite_part",
    "gen_svm",
    "graph_finite_part",
    "graph_svm",
    "head_svm",
    "label_margin",
    "margin_efficiency",
    "multiclass_svm",
    "ntp_finite_part",
    "ntp_svm",
    "per_head_svm",
    "solve",
    "solve_rank",
    "token_margin",
    "vertices",
]
