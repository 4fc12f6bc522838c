"""Train transformers on real data with mirror descent or anything else: load_data, Settings, fit."""

from attsvm.transformer._data import Data, Images, Texts
from attsvm.transformer._evaluate import evaluate, write_metrics
from attsvm.transformer._fit import Fitted, Progress, fit
from attsvm.transformer._load import load_data, save_tokens
from attsvm.transformer._settings import OPTIMIZERS, Settings, make_model, make_optimizer
from attsvm.transformer._synthetic import synthetic_sentiment, tiny_images

__all__ = [
    "OPTIMIZERS",
    "Data",
    "Fitted",
    "Images",
    "Progress",
    "Settings",
    "Texts",
    "evaluate",
    "fit",
    "load_data",
    "make_model",
    "make_optimizer",
    "save_tokens",
    "synthetic_sentiment",
    "tiny_images",
    "write_metrics",
]
