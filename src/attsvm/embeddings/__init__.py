"""Attention with trained embeddings: the models (1) and (36), their training, and what the data say of each token."""

from attsvm.embeddings._flow import Flow, gradient_flow
from attsvm.embeddings._generate import LEVELS, SIZES, KLevel, single_important
from attsvm.embeddings._one_layer import Embeddings, Slopes, descend, gradients, initial_embeddings, slopes
from attsvm.embeddings._reviews import Reviews, paper_reviews, read_reviews
from attsvm.embeddings._sequences import Sequences
from attsvm.embeddings._statistics import (
    Assumption4,
    TokenKinds,
    assumption_4,
    occurrences,
    posterior_difference,
    signed_frequency,
    token_kinds,
)
from attsvm.embeddings._train import MODELS, AdamWPlan, TrainedEmbeddings, train_embeddings
from attsvm.embeddings._two_layer import two_layer_loss, two_layer_output

__all__ = [
    "LEVELS",
    "MODELS",
    "SIZES",
    "AdamWPlan",
    "Assumption4",
    "Embeddings",
    "Flow",
    "KLevel",
    "Reviews",
    "Sequences",
    "Slopes",
    "TokenKinds",
    "TrainedEmbeddings",
    "assumption_4",
    "descend",
    "gradient_flow",
    "gradients",
    "initial_embeddings",
    "occurrences",
    "paper_reviews",
    "posterior_difference",
    "read_reviews",
    "signed_frequency",
    "single_important",
    "slopes",
    "token_kinds",
    "train_embeddings",
    "two_layer_loss",
    "two_layer_output",
]
