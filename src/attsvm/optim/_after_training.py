"""Zeros after training: a report, one-shot pruning, and files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from attsvm.checks import as_count
from attsvm.errors import AttsvmError, describe
from attsvm.files import atomic_path, one_line
from attsvm.optim._checks import check_has_shape, check_has_values, check_share
from attsvm.optim._groups import in_use, matrices_of
from attsvm.optim._heads import Heads, heads_of, layer_of
from attsvm.optim._shards import is_sharded
from attsvm.optim._units import smallest

__all__ = ["SparsityReport", "SparsityRow", "export", "load_export", "prune", "sparsity_report"]

_BITS, _VALUES = ".bits", ".values"
_FORMAT = "attsvm bitmap 1"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SparsityRow(NamedTuple):
    """One matrix."""

    name: str
    shape: tuple[int, ...]
    zeros: float
    """share of entries that are 0"""
    gini: float
    """of the sizes of the entries: 0 if all are equal, 1 if one has everything"""
    cut: float
    """‖W − W'‖/‖W‖ if the smallest `further` share of the entries that are left is set to 0 too"""
    heads: tuple[float, ...] = ()
    """share of zeros of every head, of query, key and value matrices"""


class SparsityReport(NamedTuple):
    """What :func:`sparsity_report` finds; printed as a table."""

    rows: tuple[SparsityRow, ...]
    zeros: float
    """share of zeros of all matrices together"""
    further: float

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [4])
        lines = [f"{'name':<{width}}  {'shape':>12}  {'zeros':>6}   Gini  {self.further:.0%} more"]
        for row in self.rows:
            shape = "×".join(map(str, row.shape))
            heads = f"  heads {' '.join(f'{share:.0%}' for share in row.heads)}" if row.heads else ""
            line = f"{row.name:<{width}}  {shape:>12}  {row.zeros:>6.1%}  {row.gini:.3f}     {row.cut:.3f}"
            lines.append(line + heads)
        return "\n".join([*lines, f"all: {self.zeros:.2%} of the entries are 0"])


@torch.no_grad()
def sparsity_report(model: nn.Module, *, heads: int | None = None, further: float = 0.1) -> SparsityReport:
    """Zeros and spread of every matrix of a model, the groups "attention" and "matrices" of
    :func:`~attsvm.optim.param_groups`, and what a further cut would cost.

    Args:
        model: any module.
        heads: number of attention heads: zeros are then also counted for every head, where name and shape tell where
            it lies. Keys and values that have fewer heads than the queries are left out.
        further: share of the non-zero entries that a further cut would take.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(32, 16))
        >>> _ = prune(model, 0.75)
        >>> print(sparsity_report(model))
        name             shape   zeros   Gini  10% more
        0.weight         16×32   75.0%  0.762     0.280
        all: 75.00% of the entries are 0
    """
    if not isinstance(further, Real) or not 0 <= further <= 1:
        raise AttsvmError(f"further must be a share, from 0 to 1, but got {further!r}.")
    rows, zeros, entries = [], 0, 0
    matrices = [(name, _used(in_use(model, name, weight), mask), kind) for name, weight, mask, kind in _matrices(model)]
    found = {}
    if heads is not None:
        attention = [(name, w) for name, w, kind in matrices if kind == "attention"]
        found = _told_heads(attention, as_count("heads", heads))
        if attention and not found:
            raise AttsvmError(f"heads must be the number of attention heads, but no matrix has {heads}.")
    for name, w, _ in matrices:
        sizes = (w.abs() if w.is_complex() else w.float().abs()).flatten().sort().values
        count, n = int((sizes == 0).sum()), len(sizes)
        total = sizes.double().sum()
        # Σ (2i − n − 1) x_i / (n Σ x_i) of the sorted sizes
        places = 2 * torch.arange(1, n + 1, device=sizes.device) - n - 1
        gini = float((places * sizes.double()).sum() / (n * total)) if total != 0 else 0.0
        lost = sizes[count : count + round(further * (n - count))].double().square().sum()
        norm = sizes.double().square().sum()
        told = found.get(name)
        by_head = () if told is None else tuple((told.blocks() == 0).float().mean((0, 2)).tolist())
        cost = float((lost / norm).sqrt()) if norm != 0 else 0.0
        rows.append(SparsityRow(name, tuple(w.shape), count / max(n, 1), gini, cost, by_head))
        zeros, entries = zeros + count, entries + n
    return SparsityReport(tuple(rows), zeros / max(entries, 1), further)


def _matrices(model: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None, str]]:
    """Name, weight, its mask of torch.nn.utils.prune, and kind of every matrix."""
    _check_model(model)
    masks = dict(model.named_buffers())
    for name, weight, kind in matrices_of(model):
        _check_values(name, weight)
        if not (weight.is_floating_point() or weight.is_complex()):
            raise AttsvmError(
                f"{name} is {weight.dtype}, in which 0 need not mean a weight of 0: do this before quantising."
            )
        used = name.removesuffix("_orig")
        mask = masks.get(f"{used}_mask") if used != name else None
        yield name if mask is None else used, weight, mask, kind


def _used(weight: Tensor, mask: Tensor | None) -> Tensor:
    return weight.detach() if mask is None else weight.detach() * mask


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise AttsvmError(f"model must be a torch.nn.Module, but got a {type(model).__name__}: pass the module itself.")


def _check_values(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise AttsvmError(f"{name} must be a tensor, but it is a {type(value).__name__}: leave it out of the model.")
    check_has_shape(name, value)
    check_has_values(name, value)
    if is_sharded(value):
        raise AttsvmError(f"{name} is sharded: gather the model's weights first.")
    if value.layout != torch.strided or value.is_quantized:
        kind = "quantised" if value.is_quantized else value.layout
        raise AttsvmError(f"{name} is {kind}: convert it to a dense floating-point tensor first.")


def _told_heads(named: list[tuple[str, Tensor]], heads: int) -> dict[str, Heads]:
    found = {name: told for name, weight in named if (told := heads_of(name, weight, heads)) is not None}
    most: dict[str, int] = {}
    for name, told in found.items():
        layer = layer_of(name)[0]
        most[layer] = max(most.get(layer, 0), told.outputs)
    return {name: told for name, told in found.items() if told.outputs == most[layer_of(name)[0]]}


@torch.no_grad()
def prune(
    model: nn.Module,
    sparsity: float,
    *,
    scope: str = "global",
    inputs: Iterable[Any] | None = None,
    keep_masks: bool = False,
) -> dict[str, Tensor]:
    """Set the least important share of the matrix entries to 0, once, without training; the masks by name.

    What torch.nn.utils.prune masks already counts as 0.

    Args:
        model: any module; its groups "attention" and "matrices" of :func:`~attsvm.optim.param_groups` are pruned.
        sparsity: the share of zeros, 0 ≤ sparsity < 1.
        scope: one threshold for all matrices ("global") or the same share of each ("layer"); not with inputs.
        inputs: batches for the model. With them an entry of a linear layer counts as \\|w_ij\\|·‖x_j‖, x_j being its
            input over all tokens of the batches, and every row loses the same share (Wanda). Matrices that belong to no
            linear layer lose their smallest entries.
        keep_masks: leave the masks to torch.nn.utils.prune (``weight_orig``, ``weight_mask``), so that zeros stay when
            any optimizer trains on; ``torch.nn.utils.prune.remove`` makes them permanent.
    """
    check_share("sparsity", sparsity)
    if scope not in ("global", "layer"):
        raise AttsvmError(f'scope must be "global" or "layer", but got {scope!r}.')
    if not isinstance(inputs, Iterable | None):
        raise AttsvmError(f"inputs must be batches, as a list of tensors, but got {describe(inputs)}.")
    if inputs is not None and scope != "global":
        raise AttsvmError(
            "scope is for cuts by size: leave it out with inputs, by which every row loses the same share."
        )
    found = list(_matrices(model))
    if not found:
        raise AttsvmError("model must have a matrix to prune, but it has none.")
    for name, weight, _, _ in found:
        if weight.dtype.itemsize == 1:
            raise AttsvmError(f"{name} is {weight.dtype}, in which torch sets no entries: prune before quantising.")
    sizes = [_used(in_use(model, name, weight), mask).abs().float() for name, weight, mask, _ in found]
    if inputs is None and scope == "global":
        pruned = smallest(sizes, [1] * len(sizes), sparsity)
    else:
        norms = {} if inputs is None else _input_norms(model, inputs)
        pruned = []
        for (_, weight, _, _), size in zip(found, sizes):
            if id(weight) in norms:
                scores = torch.where(size == 0, -1, size * norms[id(weight)])  # zeros first, also before silent inputs
                order = scores.argsort(dim=1, stable=True).argsort(dim=1)
                pruned.append(order < round(sparsity * size.shape[1]))
            else:
                pruned += smallest([size], [1], sparsity)
    for (name, weight, _, _), mark in zip(found, pruned):
        if keep_masks:
            places = [(m, own) for m in model.modules() for own, w in [*m._parameters.items()] if w is weight]
            for module, own in places:  # a tied weight has several
                torch_prune.custom_from_mask(module, own.removesuffix("_orig"), ~mark)
        else:
            weight.masked_fill_(mark, 0)
        made = in_use(model, name, weight)
        if made is not weight and made[mark].any():
            warnings.warn(
                f"{name} has zeros, but what is made of it has none there: remove the parametrization before pruning.",
                stacklevel=2,
            )
    return {name: ~mark if mask is None else ~mark & (mask != 0) for (name, _, mask, _), mark in zip(found, pruned)}


def _input_norms(model: nn.Module, inputs: Iterable[Any]) -> dict[int, Tensor]:
    """‖x_j‖ of every input of every linear layer, by the id of its weight."""
    squares: dict[int, Tensor] = {}

    def see(module: nn.Linear, given: tuple[Tensor, ...], by_name: dict[str, Tensor]) -> None:
        x = (given[0] if given else by_name["input"]).detach().float()
        square = x.reshape(-1, x.shape[-1]).square().sum(0)
        for weight in module.parameters():  # of one that is masked or parametrized, what it is made of
            if weight.shape == (module.out_features, module.in_features):
                squares[id(weight)] = squares.get(id(weight), 0) + square

    hooks = [m.register_forward_pre_hook(see, with_kwargs=True) for m in model.modules() if isinstance(m, nn.Linear)]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        for batch in inputs:
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(*batch) if isinstance(batch, tuple | list) else model(batch)
    finally:
        for module, training in modes.items():
            module.training = training
        for hook in hooks:
            hook.remove()
    if not squares:
        raise AttsvmError("inputs must hold at least one batch that goes through a linear layer, but none did.")
    return {key: square.sqrt() for key, square in squares.items()}


def export(model: nn.Module, path: str | Path, *, compressed: bool = False) -> int:
    """Write a model's weights as plain .safetensors, as ``load_state_dict`` takes them; returns the size in bytes.

    Weights that torch.nn.utils.prune masks are written as they are used. With `compressed` a matrix is stored as a
    bitmap and its non-zero entries if that is smaller: at 95% zeros a float32 matrix takes 8% of its size.
    :func:`load_export` reads these files; −0 comes back as 0, all else bit for bit.
    """
    from safetensors.torch import save_file

    _check_model(model)
    tensors: dict[str, Tensor] = {}
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith("_orig") and f"{name[:-5]}_mask" in state:
            tensors[name.removesuffix("_orig")] = value * state[f"{name[:-5]}_mask"]
        elif not (name.endswith("_mask") and f"{name[:-5]}_orig" in state):
            tensors[name] = value
    shapes: dict[str, str] = {}
    found = {}
    for name, value in tensors.items():
        _check_values(name, value)
        value = value.detach().cpu().contiguous()
        kept = (
            int((value != 0).sum()) if compressed and value.is_floating_point() and value.ndim >= 2 else value.numel()
        )
        if compressed and (value.numel() + 7) // 8 + kept * value.element_size() < value.numel() * value.element_size():
            shapes[name] = ",".join(map(str, value.shape))
            found[name + _BITS] = _packed(value.flatten() != 0)
            found[name + _VALUES] = value[value != 0].clone()
        else:
            found[name] = value.clone()  # tied weights share memory, which the format refuses
    with atomic_path(path) as temporary:
        try:
            save_file(found, temporary, metadata={"format": _FORMAT if compressed else "pt", **shapes})
        except KeyError as error:  # a dtype that the format has not
            raise AttsvmError(f"safetensors does not hold tensors of {error.args[0]}: convert them first.") from error
    return Path(path).stat().st_size


def load_export(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a file of :func:`export`, compressed or not."""
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            return _weights_of(file)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise AttsvmError(f"{path} cannot be read as weights that export wrote: {one_line(error)}") from error


def _weights_of(file: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    shapes = file.metadata() or {}
    for key in file.keys():  # noqa: SIM118
        if key.endswith(_BITS) and key.removesuffix(_BITS) in shapes:
            name = key.removesuffix(_BITS)
            shape = [int(n) for n in shapes[name].split(",")]
            values = file.get_tensor(name + _VALUES)
            as_bits = _WORDS[values.element_size()]  # torch indexes them in every dtype
            flat = torch.zeros(torch.Size(shape).numel(), dtype=as_bits)
            bits = _unpacked(file.get_tensor(key), len(flat))
            if int(bits.sum()) != len(values):
                raise AttsvmError(f"{name} has {int(bits.sum())} non-zero entries, but {len(values)} values.")
            flat[bits] = values.view(as_bits)
            found[name] = flat.view(values.dtype).view(shape)
        elif not (key.endswith(_VALUES) and key.removesuffix(_VALUES) in shapes):
            found[key] = file.get_tensor(key)
    return found


def _packed(bits: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    return ((packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten()[:count].bool()
