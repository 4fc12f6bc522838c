"""The methods of the benchmark of sparse training: what a run is told, its model at the start and its optimizers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.experiments.sparse.baselines import AdaBreg, Muon, PAdam
from attsvm.experiments.sparse.samples import SHAPES, Shape
from attsvm.models import GPT, Places, TextTransformer, ViT
from attsvm.optim import MirrorAdam, MirrorMuon, param_groups


@dataclass(frozen=True)
class Family:
    """Runs that differ in their share of zeros alone. Before the first weight is pruned they are one run."""

    method: str
    lr: float
    seed: int
    sparsities: tuple[float, ...] = (0.0,)
    corpus: str = "imdb"
    options: dict[str, float | str] = field(default_factory=dict)  # p, l1, alpha, beta2, weight_decay (of matrices), …
    rest_lr: float = 2e-3  # of AdamW on embeddings and norms, the same for all methods
    weight_decay: float = 0.01
    epochs: float = 4
    warmup: float = 0.1
    clip: float = 1.0  # of the norm of all gradients
    tied: bool = True  # the head is the embedding, or a matrix that is trained and pruned as the others
    start: float = 0.2
    end: float = 0.75
    init: str = "gpt2"  # or "torch": as nn.Linear starts
    width: int = 0  # 0: that of the corpus's shape
    scale: float = 1.0  # of all matrices at their start
    note: str = "main"

    @property
    def short(self) -> bool:
        """Whether compiling would take longer than it saves."""
        return bool(self.width) and self.epochs <= 1

    def key(self, sparsity: float) -> str:
        parts = {k: _plain(v) for k, v in asdict(self).items() if k not in ("sparsities", "note", "options")}
        options = sorted((k, _plain(v)) for k, v in self.options.items())
        return repr(sorted({**parts, "options": options, "sparsity": float(sparsity)}.items()))


def _plain(value: Any) -> Any:
    """Whole numbers as floats, as they are kept."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def make_optimizers(model: nn.Module, family: Family, fused: bool) -> list[Optimizer]:
    """The method on the matrices, a head of its own included; AdamW on embeddings and norms, the same for all."""
    groups = param_groups(model, 2.0)
    matrices = [g for g in groups if g["name"] in ("attention", "matrices")]
    rest = [g for g in groups if g["name"] not in ("attention", "matrices")]
    o, lr = dict(family.options), family.lr
    usual = 0.0 if family.method in ("powerprop", "mirror-muon") else family.weight_decay
    decay, betas = float(o.get("weight_decay", usual)), (0.9, float(o.get("beta2", 0.999)))
    on_cuda = next(model.parameters()).is_cuda
    for group in matrices:
        group["p"] = float(o.get("p_from", o.get("p", 2.0)))
    if family.method in ("adamw", "rigl"):
        main: Optimizer = torch.optim.AdamW(matrices, lr=lr, betas=betas, weight_decay=decay, fused=on_cuda)
    elif family.method == "muon":
        groups = _head_apart(matrices, model, adam=family.rest_lr / lr)
        main = Muon(groups, lr=lr, weight_decay=decay, beta2=betas[1])
    elif family.method == "mirror-muon":
        groups = _head_apart(matrices, model, muon=False, p=matrices[0]["p"], lr=float(o["head_lr"]))
        main = MirrorMuon(groups, lr=lr, betas=betas, weight_decay=decay, fused=fused and on_cuda)
    elif family.method == "mirror":
        l1, of = float(o.get("l1", 0.0)), str(o.get("l1_of", "mirror"))
        settings: dict[str, Any] = {"betas": betas, "weight_decay": decay, "l1": l1, "l1_of": of}
        main = MirrorAdam(matrices, lr=lr, **settings, fused=fused and on_cuda)
    elif family.method == "powerprop":
        p = 1 + 1 / float(o["alpha"])
        matrices = [{**group, "p": p, "moments_of": "mirror"} for group in matrices]
        main = MirrorAdam(matrices, lr=lr, betas=betas, weight_decay=decay, fused=fused and on_cuda)
    elif family.method == "adabreg":
        main = AdaBreg(matrices, lr, l1=float(o["l1"]), dense=float(o.get("dense", 0.1)))
    elif family.method == "padam":
        main = PAdam(matrices, lr, q=float(o.get("q", 0.8)), decay=float(o["decay"]))
    else:
        raise ValueError(family.method)
    others = torch.optim.AdamW(rest, lr=family.rest_lr, betas=betas, weight_decay=family.weight_decay, fused=on_cuda)
    return [main, others]


class TextClassifier(TextTransformer):
    """Of texts of one length: the rest of a short text is a token as any other."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens.flatten(), _places(*tokens.shape, tokens.device))


@cache
def _places(count: int, length: int, device: torch.device) -> Places:
    return Places.of(torch.full((count,), length, device=device), length, count * length)


Model = GPT | ViT | TextClassifier


def shape_of(family: Family) -> Shape:
    """That of the corpus, except for what the family changes."""
    shape = SHAPES[family.corpus]
    if family.width:
        shape = replace(shape, width=family.width, heads=max(family.width // 64, 1))
    return replace(shape, dropout=float(family.options.get("dropout", shape.dropout)))


def make_model(shape: Shape, tied: bool) -> Model:
    common: dict[str, Any] = {"width": shape.width, "layers": shape.layers, "heads": shape.heads}
    if shape.patch:
        sizes = {"size": shape.length, "patch": shape.patch, "hidden": 2 * shape.width, "classes": shape.classes}
        return ViT(**common, **sizes, dropout=shape.dropout)
    common |= {"vocabulary": shape.vocabulary, "length": shape.length, "dropout": shape.dropout}
    if shape.classes:
        return TextClassifier(**common, hidden=4 * shape.width, classes=shape.classes)
    return GPT(**common, tied=tied)


def _head_apart(matrices: list[dict[str, Any]], model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Muon is for hidden matrices: a head of its own gets Adam's step, in the same optimizer, so that it is pruned with
    the others."""
    assert isinstance(model, Model)
    if model.head is None:
        return matrices
    head, groups = model.head.weight, []
    for group in matrices:
        hidden = [w for w in group["params"] if w is not head]
        groups.append({**{k: v for k, v in group.items() if k != "param_names"}, "params": hidden})
    return [*groups, {"params": [head], "name": "matrices", **options}]


def start_model(shape: Shape, family: Family) -> Model:
    torch.manual_seed(family.seed)
    model = make_model(shape, family.tied)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                if family.init == "torch":
                    module.reset_parameters()
                module.weight.mul_(family.scale)
    return model
