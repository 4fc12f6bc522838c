"""Runs of the benchmark on the ordinary runner: trained anew, as a kept row says, when a cell of an experiment asks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from attsvm.experiments.sparse.methods import Family, make_model, shape_of
from attsvm.experiments.sparse.samples import Shape, open_samples
from attsvm.experiments.sparse.training import Losses, loss_of, train_family

Row = dict[str, Any]


def train_again(kept: Mapping[str, Any], sparsity: float, seeds: Sequence[int], folder: str, device: str) -> list[Row]:
    """Runs with the settings of a kept row at a share of zeros, one for each seed; the folder has the corpora."""
    known = {name: kept[name] for name in (f.name for f in fields(Family)) if kept.get(name) is not None}
    families = [Family(**{**known, "seed": seed, "sparsities": (sparsity,)}) for seed in seeds]
    return [_row(json.dumps(asdict(family)), folder, device) for family in families]


@lru_cache(8)  # several cells ask for the same dense models
def _row(settings: str, folder: str, device: str) -> Row:
    told = json.loads(settings)
    family = Family(**{**told, "sparsities": tuple(told.pop("sparsities"))})
    shape = shape_of(family)
    samples = _samples(folder, family.corpus, device)
    with torch.enable_grad(), _as_benchmarked(samples.device):
        model = _model(shape, family.tied, device)
        (row,) = train_family(family, samples, shape, _losses(family, samples.device), model)
    return {**told, **row}


_samples = lru_cache(1)(open_samples)


@lru_cache(4)
def _model(shape: Shape, tied: bool, device: str) -> nn.Module:
    """Of each kind one, which its compiled code is for; every run resets its weights."""
    return make_model(shape, tied).to(device)


def _losses(family: Family, device: torch.device) -> Losses:
    """Compiled on a GPU, except for short runs."""
    return loss_of if device.type == "cpu" or family.short else _compiled()


@cache
def _compiled() -> Losses:
    return torch.compile(loss_of)


@contextlib.contextmanager
def _as_benchmarked(device: torch.device) -> Iterator[None]:
    """The settings of the kept runs; afterwards all is as before, random numbers included."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        # Every kind of model is compiled for its own sizes.
        compiling = torch._dynamo.config.patch(recompile_limit=64, automatic_dynamic_shapes=False)
        with torch.random.fork_rng(devices=[device]), compiling:
            yield
    finally:
        torch.set_float32_matmul_precision(before)
