"""Parameter groups: p near 1 on the matrices, p = 2 on what starts at 0 or is looked up."""

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, AdamW, Optimizer

from attsvm.errors import AttsvmError
from attsvm.optim._checks import check_p
from attsvm.optim._mirror_adam import MirrorAdam
from attsvm.optim._mirror_descent import MirrorDescent

__all__ = ["describe_groups", "param_groups"]

KINDS = ("attention", "matrices", "embeddings", "vectors")
# Options that a group may have: those of the optimizers that take these groups.
OPTIONS = {name for made in (MirrorAdam, MirrorDescent, AdamW, SGD) for name in inspect.signature(made).parameters}
OPTIONS -= {"params"}

# The last part of a module's name, or the name of a bare parameter without "_weight", in lower case.
_ATTENTION = re.compile(
    r"(?:(?:w|to|c|lin|linear)_?)?"
    r"(?:q|k|v|qk|kv|qkv|query|key|value|queries|keys|values|query_key_value|kv_a|kv_b|q_a|q_b)"
    r"(?:_?(?:proj|projection|lin|linear|attn|global|proj_with_mqa))?"
    r"|c_attn|w_pack"
)
_PACKED = re.compile(r"in_proj|in_projection")  # also the name of other things: only inside something called attention
_NORM = re.compile(r"(layer|rms|batch|group|instance)norm", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed|pos_|position|token", re.IGNORECASE)
# Under torch.nn.utils.parametrize q_proj.weight is q_proj.parametrizations.weight.original, or original0, original1;
# where it is pruned or has the older weight_norm it is weight_orig or weight_v.
_PARAMETRIZED = re.compile(r"\.?parametrizations\.(\w+)\.original\d*$")
_STORED = re.compile(r"(?<=weight)_(orig|v)$")


def param_groups(
    model: nn.Module,
    p: float = 1.1,
    *,
    attention: Mapping[str, Any] | None = None,
    matrices: Mapping[str, Any] | None = None,
    embeddings: Mapping[str, Any] | None = None,
    vectors: Mapping[str, Any] | None = None,
    kinds: Mapping[str, str] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Split a model's trainable parameters into at most four groups, for one optimizer.

    ============  ==========================================================  ============================
    ``"name"``    what                                                        defaults
    ============  ==========================================================  ============================
    attention     query, key and value matrices, packed or not                ``p``
    matrices      all other matrices: output projections, MLPs, heads, convs  ``p``
    embeddings    ``nn.Embedding`` and learned positions and tokens           p = 2
    vectors       biases, norms, scales, single tokens                        p = 2, ``weight_decay=0``
    ============  ==========================================================  ============================

    The mirror-descent paper steps in the ℓ1.1 geometry with all weights and reports W_K, W_Q and W_V. Vectors are the
    exception because what starts at 0 hardly moves for p near 1. In :class:`~attsvm.optim.MirrorAdam` a group with
    p = 2 follows AdamW exactly, in :class:`~attsvm.optim.MirrorDescent` SGD. One optimizer object holds all groups, so
    schedulers and trainers need to know nothing. Other torch optimizers ignore ``p``.

    Parameters are told apart by their module's type, their shape and the last part of their name (``q_proj``,
    ``c_attn``, ``Wqkv``, ``to_kv``, ``in_proj_weight``, …), never by their values, so a checkpoint finds the same
    groups. Tied weights appear once; one tied to an embedding is an embedding. Frozen parameters are left out.

    Args:
        model: any module.
        p: the exponent of attention and other matrices.
        attention, matrices, embeddings, vectors: options of that group alone, as ``matrices={"p": 2}`` (mirror steps on
            attention alone) or ``vectors={"lr": 1e-2}``.
        kinds: exceptions, from a regular expression searched in the parameter's full name to one of the four names,
            as ``{"lora_": "vectors"}``; the first that matches decides. One that matches no name is refused.
        options: options of all groups, as ``lr`` and ``weight_decay``; those of a group come first. What no optimizer
            here or in torch.optim (AdamW, SGD) knows is refused.

    A weight that torch.nn.utils normalises or prunes is told apart as the weight itself is.

    Example:
        >>> model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
        >>> groups = param_groups(model, p=1.1, lr=1e-3)
        >>> describe_groups(groups)
        name       p    lr     weight_decay  tensors  parameters  what
        attention  1.1  0.001  -                   1         192  self_attn.in_proj_weight
        matrices   1.1  0.001  -                   3         320  self_attn.out_proj.weight, linear[1-2].weight
        vectors    2.0  0.001  0.0                 8          88  self_attn.in_proj_bias, ….out_proj.bias, … 6 more
        >>> optimizer = attsvm.optim.MirrorAdam(groups)
    """
    if not isinstance(model, nn.Module):
        raise AttsvmError(f"model must be a torch.nn.Module, but got a {type(model).__name__}: pass the module itself.")
    check_p(p)
    of_kinds: dict[str, Any] = dict(zip(KINDS, (attention, matrices, embeddings, vectors)))
    _check_options(options, of_kinds)
    defaults: dict[str, dict[str, Any]] = {
        kind: {"p": p if kind in ("attention", "matrices") else 2.0, **options} for kind in KINDS
    }
    defaults["vectors"]["weight_decay"] = 0.0
    for kind, own in of_kinds.items():
        defaults[kind].update(own or {})
        check_p(defaults[kind]["p"])
    named: dict[str, list[tuple[str, Tensor]]] = {kind: [] for kind in KINDS}
    for name, param, kind in _sorted_parameters(model, kinds or {}):
        named[kind].append((name, param))
    if not any(named.values()):
        raise AttsvmError("the model has no trainable parameter: pass a module with requires_grad parameters.")
    groups = [
        {"name": kind, "params": [q for _, q in of_kind], "param_names": [n for n, _ in of_kind], **defaults[kind]}
        for kind, of_kind in named.items()
        if of_kind
    ]
    stuck = [n for g in groups if g["p"] < 1.5 for n, q in zip(g["param_names"], g["params"]) if _starts_at_zero(q)]
    if stuck:
        warnings.warn(
            f"all entries of {', '.join(stuck)} are 0 and hardly move at p near 1: "
            f'give them p = 2, as by kinds={{r"{re.escape(stuck[0])}$": "vectors"}}.',
            stacklevel=2,
        )
    return groups


def describe_groups(groups: Optimizer | Iterable[Mapping[str, Any]], file: TextIO | None = None) -> None:
    """Print what went where: a table of groups as :func:`param_groups` made them, or of an optimizer's."""
    groups = getattr(groups, "param_groups", groups)  # wrappers of optimizers have them too
    groups = list(groups) if isinstance(groups, Iterable) else [{}]
    if not all(isinstance(group, Mapping) and "params" in group for group in groups):
        raise AttsvmError("groups must be parameter groups or an optimizer: pass what param_groups(model) returned.")
    columns = ("name", "p", "lr", "weight_decay")
    rows: list[tuple[str, ...]] = [(*columns, "tensors", "parameters", "what")]
    for i, group in enumerate(groups):
        settings = [_format(group.get(column, i if column == "name" else "-")) for column in columns]
        numel = sum(q.numel() for q in group["params"])
        names = group.get("param_names", [])
        rows.append((*settings, f"{len(group['params'])}", f"{numel:,}", _abbreviate(names)))
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:>{w}}" if 4 <= j < 6 else f"{cell:<{w}}" for j, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join([*cells, row[-1]]), file=file or sys.stdout)


def _check_options(options: Mapping[str, Any], of_kinds: Mapping[str, Any]) -> None:
    wrong = next((name for name, value in options.items() if isinstance(value, Mapping)), None)
    if wrong is not None:
        raise AttsvmError(f"options of a group must be those of {', '.join(KINDS)}, but got {wrong}.")
    for kind, own in of_kinds.items():
        if not isinstance(own, Mapping | None):
            raise AttsvmError(f'{kind} must be a dict of options, as {{"p": 1.5}}, but got {own!r}.')
    wrong = next((name for each in (options, *of_kinds.values()) for name in each or {} if name not in OPTIONS), None)
    if wrong is not None:
        raise AttsvmError(
            f"{wrong} is no option of an optimizer: correct its name, or write it into the groups that come back."
        )


def _check_kinds(kinds: Mapping[str, str], names: set[str]) -> None:
    if not isinstance(kinds, Mapping):
        raise AttsvmError(f'kinds must be a dict, as {{"lora_": "vectors"}}, but got {kinds!r}.')
    for pattern, kind in kinds.items():
        if kind not in KINDS:
            raise AttsvmError(f"kinds[{pattern!r}] must be one of {', '.join(KINDS)}, but got {kind!r}.")
        try:
            found = any(re.search(pattern, name) for name in names)
        except (re.error, TypeError) as error:
            raise AttsvmError(f"kinds: {pattern!r} is no regular expression ({error}): correct it.") from None
        if not found:
            raise AttsvmError(f"kinds: {pattern!r} occurs in the name of no parameter: correct it or leave it out.")


def _sorted_parameters(model: nn.Module, kinds: Mapping[str, str]) -> Iterator[tuple[str, Tensor, str]]:
    """Every trainable parameter once, with its first name and its kind."""
    _check_kinds(kinds, {name for name, _ in model.named_parameters(remove_duplicate=False)})
    found: dict[Tensor, dict[str, str]] = {}  # the kind by its name: a tied weight has several
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        for own, param in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{own}" if path else own
            if is_lazy(param):
                raise AttsvmError(f"{name} has no shape yet: run a batch through the model first.")
            if param.requires_grad:
                owner = modules[_PARAMETRIZED.sub("", name)] if _PARAMETRIZED.search(name) else module
                found.setdefault(param, {})[name] = _kind(name, owner, param)
    for param, by_name in found.items():
        exceptions = (kind for pattern, kind in kinds.items() if any(re.search(pattern, name) for name in by_name))
        # Of a weight with two places: a head tied to an embedding is an embedding.
        guess = next(k for k in ("embeddings", *KINDS) if k in by_name.values())
        yield next(iter(by_name)), param, next(exceptions, guess)


def _kind(name: str, module: nn.Module, param: Tensor) -> str:
    scale = name.endswith(".original0") and max(param.shape, default=1) == param.numel()  # of weight_norm
    path = _STORED.sub("", _PARAMETRIZED.sub(r".\1", name)).split(".")
    own, bare = path[-1], path[-1] != "weight" or scale
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embeddings"
    if param.ndim < 2 or "bias" in own or _NORM.search(type(module).__name__):
        return "vectors"
    if bare and max(param.shape) == param.numel():  # as a class token (1, 1, d); the weight of Linear(d, 1) is a matrix
        return "vectors"
    if bare and _EMBEDDING.search(own):
        return "embeddings"
    last = (own if bare else path[-2] if len(path) > 1 else "").lower().removesuffix("_weight")
    if _ATTENTION.fullmatch(last):
        return "attention"
    if _PACKED.fullmatch(last) and (isinstance(module, nn.MultiheadAttention) or "att" in ".".join(path[:-1]).lower()):
        return "attention"
    return "matrices"


def _starts_at_zero(param: Tensor) -> bool:
    entries: Any = param.detach()
    entries = entries.to_local() if hasattr(entries, "to_local") else entries
    if entries.is_meta or entries.numel() == 0:
        return False
    # A corner decides nearly always.
    return not torch.any(entries[(slice(8),) * entries.ndim]) and not torch.any(entries)


def _format(value: Any) -> str:
    return f"{value.item():g}" if isinstance(value, Tensor) else str(value)


def _abbreviate(names: list[str], most: int = 2) -> str:
    """Names that differ in numbers alone as one, ``layers.[0-11].q.weight``; the first few."""
    merged: dict[str, list[list[int]]] = {}
    for name in names:
        merged.setdefault(re.sub(r"\d+", "#", name), []).append([int(n) for n in re.findall(r"\d+", name)])
    short: list[str] = []
    for pattern, numbers in merged.items():
        for column in zip(*numbers):
            low, high = min(column), max(column)
            pattern = pattern.replace("#", f"{low}" if low == high else f"[{low}-{high}]", 1)
        short.append(pattern)
    # Of a name that starts as the one before it the rest is enough: layers.[0-3].attn.q.weight, ….k.weight.
    for i in range(min(most, len(short)) - 1, 0, -1):
        before, parts = short[i - 1].split("."), short[i].split(".")
        same = next((j for j, (a, b) in enumerate(zip(before, parts)) if a != b), 0)
        short[i] = ".".join(["…", *parts[same:]]) if same else short[i]
    left = len(names) - sum(len(numbers) for numbers in list(merged.values())[:most])
    return ", ".join(short[:most]) + (f", … {left} more" if left else "")
