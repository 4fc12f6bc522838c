"""Train transformers on real data with mirror descent or anything else: load_data, Settings, fit."""

from attsvm.transformer._data import Data, Images, MiniBatch, Sequences, Texts, image_data
from attsvm.transformer._evaluate import best_epoch, evaluate, write_metrics
from attsvm.transformer._fit import BEST, CHECKPOINT, Fitted, Reached, fit, load_model
from attsvm.transformer._load import load_data, save_data
from attsvm.transformer._measure import (
    EDGES,
    LARGE_EDGES,
    SHARES,
    attention_weights,
    class_attention,
    pruned,
    pruning_curve,
    weight_summary,
)
from attsvm.transformer._page import write_attention_page
from attsvm.transformer._pivotal import Probes, encode_probes, load_probes, pivotal_reviews
from attsvm.transformer._settings import OPTIMIZERS, SCHEDULES, Settings, make_model, make_optimizer, make_pruning
from attsvm.transformer._synthetic import WORDS, synthetic_probes, synthetic_sentiment, tiny_images

__all__ = [
    "BEST",
    "CHECKPOINT",
    "EDGES",
    "LARGE_EDGES",
    "OPTIMIZERS",
    "SCHEDULES",
    "SHARES",
    "WORDS",
    "Data",
    "Fitted",
    "Images",
    "MiniBatch",
    "Probes",
    "Reached",
    "Sequences",
    "Settings",
    "Texts",
    "attention_weights",
    "best_epoch",
    "class_attention",
    "encode_probes",
    "evaluate",
    "fit",
    "image_data",
    "load_data",
    "load_model",
    "load_probes",
    "make_model",
    "make_optimizer",
    "make_pruning",
    "pivotal_reviews",
    "pruned",
    "pruning_curve",
    "save_data",
    "synthetic_probes",
    "synthetic_sentiment",
    "tiny_images",
    "weight_summary",
    "write_attention_page",
    "write_metrics",
]
