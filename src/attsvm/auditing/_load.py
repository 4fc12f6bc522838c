"""Models and tokenizers of Hugging Face in local folders. Nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.files import PathLike, one_line, read_json
from attsvm.tokenizers import open_tokenizer

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def load_hugging_face(place: PathLike, seed: int = 0) -> tuple[nn.Module, list[str]]:
    """The model of a folder with config.json and weights, and the names of those that the folder lacks.

    They are random; of a config alone, all are. A pooler, which comes after all attention, is not counted.
    """
    path, folder = Path(place), config_of(place).parent
    try:
        from transformers.models.auto.configuration_auto import AutoConfig
        from transformers.models.auto.modeling_auto import AutoModel
        from transformers.utils import logging
    except ImportError as error:
        raise AttsvmError("models of Hugging Face need transformers: pip install 'attsvm[audit]'.") from error
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # else it lists the weights of every head that AutoModel leaves out
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if path.is_dir() and any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
                loaded = AutoModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
                network, missing = loaded[0], loaded[1]["missing_keys"]
                return network, sorted(name for name in missing if not name.startswith("pooler."))
            network = AutoModel.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
            return network, [name for name, _ in network.named_parameters()]
    except Exception as error:  # damaged weights make the readers raise almost anything
        raise AttsvmError(f"{path} is not a model that transformers can load: {one_line(error)}") from error
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def config_of(place: PathLike) -> Path:
    """The config.json of a folder with a model; a place without one is refused."""
    path = Path(place)
    folder = path.parent if path.is_file() else path
    if not has_config(folder):
        raise AttsvmError(f"{path} must be a folder with a model of Hugging Face, but it has no {CONFIG}.")
    return folder / CONFIG


def has_config(folder: PathLike) -> bool:
    """Whether a folder holds the config.json of a model."""
    return (Path(folder) / CONFIG).is_file()


def load_tokenizer(place: PathLike) -> Any:
    """The tokenizer of a folder, or of a tokenizer.json."""
    path = Path(place)
    if not any((path / name).is_file() for name in TOKENIZERS[1:]):
        return open_tokenizer(path)
    try:
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except ImportError as error:
        raise AttsvmError("tokenizers of Hugging Face need transformers: pip install 'attsvm[audit]'.") from error
    except (OSError, ValueError, KeyError) as error:
        raise AttsvmError(f"{path} has no tokenizer that transformers can load: {one_line(error)}") from error


def has_tokenizer(place: PathLike) -> bool:
    """Whether a folder holds the files of a tokenizer."""
    return any((Path(place) / name).is_file() for name in TOKENIZERS)


def reads_images(place: PathLike) -> bool:
    """Whether a folder's config is of a model of images: it has their size and no vocabulary."""
    path = Path(place) / CONFIG
    config = read_json(path, dict) if path.is_file() else {}
    return "image_size" in config and "vocab_size" not in config


def checkpoints(place: PathLike) -> list[tuple[int, Path]]:
    """The folders checkpoint-500, step500, … of a training run with their steps, the first step first."""
    path = Path(place)
    found = []
    for folder in sorted(path.iterdir()) if path.is_dir() else ():
        number = re.fullmatch(r"(?:checkpoint|step|epoch)[-_]?(\d+)", folder.name)
        if number and folder.is_dir():
            found.append((int(number[1]), folder))
    return sorted(found)
