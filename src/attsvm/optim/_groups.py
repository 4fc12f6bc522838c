"""Parameter groups: p near 1 on the matrices, p = 2 on what starts at 0 or is looked up."""

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from attsvm.errors import AttsvmError
from attsvm.optim._checks import check_has_shape, check_p, sticks_at_zero
from attsvm.optim._mirror_adam import MirrorAdam
from attsvm.optim._mirror_descent import MirrorDescent
from attsvm.optim._mirror_muon import MirrorMuon

__all__ = ["describe_groups", "param_groups"]

KINDS = ("attention", "matrices", "embeddings", "vectors")
# Options that a group may have: those of the optimizers that take these groups.
TAKERS = (MirrorAdam, MirrorDescent, MirrorMuon, AdamW, SGD)
OPTIONS = {name for made in TAKERS for name in inspect.signature(made).parameters} - {"params"}

# The last part of a module's name, or the name of a bare parameter without "_weight", in lower case.
_ONE_OF_THREE = (
    r"(?:(?:w|to|c|lin|linear|add|pos|pos_att|project|projection|layout|[ew]2[ew])_?)?"
    r"(?:q|k|v|r|query|key|value|queries|keys|values)"
    r"(?:_?(?:proj|projection|lin|linear|attn|global))?"
)
_PACKED_NAME = (
    r"(?:(?:w|to|c|lin|linear|in_proj)_?)?(?:qk|kv|qkv|qkvz|query_key|query_key_value|keys_values|queries_keys_values|kv_a|kv_b|q_a|q_b)"
    r"(?:_?(?:proj|projection|lin|linear|attn|proj_with_mqa))?|c_attn|w_pack"
)
_SEPARATE, _TOGETHER = re.compile(_ONE_OF_THREE), re.compile(_PACKED_NAME)
# Also names of other things.
_INSIDE_ATTENTION = re.compile(r"in_proj|in_projection|attn|att_proj|pos_proj|linear_pos|relative_k_proj|r_kernel")
_HEADS = {"q_head", "k_head", "v_head"}  # a lone v_head is one of values
_THREE_OF_A_LIST = re.compile(r"linears\.[0-2]")  # queries, keys, values; the fourth is the output
# qkv.linear, query.proj: the name is that of what they are in.
_WRAPPED = ("linear", "proj", "conv", "convolution", "c", "ln", "base_layer")
_FEED_FORWARD = re.compile(r"feed_?forward|ffn|mlp|channel_mix", re.IGNORECASE)  # RWKV has keys and values there too
_NORM = re.compile(r"norm(?!al)", re.IGNORECASE)
_POSITIONS = re.compile(r"pos(ition(al)?)?_?emb", re.IGNORECASE)  # a class of modules
_EMBEDDING = re.compile(r"embed|(^|_)(pos|emb|ape)(_|$)|position|token|latent|^pe$", re.IGNORECASE)
_STARTS_AT_ZERO = re.compile(r"(^|\.)(lora_B|lora_up|lora_embedding_A)(\.|$)")
# No matrices, whatever their shape: rates of state space models, scales of norms.
_NO_MATRIX = re.compile(r"A_log|dt_bias|D|(.*_)?scale")
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
    schedulers and trainers need no change. Other torch optimizers ignore ``p``.

    Parameters are classified by their module's type, their shape and the last part of their name (``q_proj``,
    ``c_attn``, ``Wqkv``, ``to_kv``, ``in_proj_weight``, …), never by their values, so a checkpoint finds the same
    groups. A single query, key or value needs others beside it, or something called attention around it. LoRA's B,
    which starts at 0, is a vector. Tied weights appear once; one tied to an embedding is an embedding. Frozen
    parameters are left out.

    Args:
        model: any module.
        p: the exponent of attention and other matrices.
        attention, matrices, embeddings, vectors: options of one group, as in ``matrices={"p": 2}`` (mirror steps on
            attention only) or ``vectors={"lr": 1e-2}``.
        kinds: exceptions, from a regular expression searched in the parameter's full name to one of the four names, as
            in ``{"lora_": "vectors"}``; the first that matches decides. A pattern that matches no name is refused.
        options: options of all groups, such as ``lr`` and ``weight_decay``; those of a group override them. Options
            that no optimizer here or in torch.optim (AdamW, SGD) knows are refused.

    A weight that torch.nn.utils normalises or prunes is classified like the weight itself.

    Example:
        >>> import attsvm
        >>> model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, bias=False)
        >>> groups = param_groups(model, p=1.1, lr=1e-3)
        >>> describe_groups(groups)
        name       p    lr     weight_decay  tensors  parameters  what
        attention  1.1  0.001  -                   1         192  self_attn.in_proj_weight
        matrices   1.1  0.001  -                   3         320  self_attn.out_proj.weight, linear[1-2].weight
        vectors    2.0  0.001  0.0                 2          16  norm[1-2].weight
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
    stuck = [n for g in groups for n, q in zip(g["param_names"], g["params"]) if sticks_at_zero(g, q)]
    if stuck:
        others = [name for group in groups for name in group["param_names"] if name not in stuck]
        pattern = "|".join(dict.fromkeys(_any_number(name, others) for name in stuck))
        warnings.warn(
            f"all entries of {_abbreviate(stuck)} are 0 and hardly move at this p: "
            f'give them p = 2, as by kinds={{r"^({pattern})$": "vectors"}}.',
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
        rows.append((*settings, f"{len(group['params'])}", f"{numel:,}", _abbreviate(names, most=len(names))))
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:>{w}}" if 4 <= j < 6 else f"{cell:<{w}}" for j, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join([*cells, row[-1]]), file=file or sys.stdout)


def matrices_of(model: nn.Module) -> list[tuple[str, Tensor, str]]:
    """Name, weight and kind of what is pruned: the groups "attention" and "matrices", frozen or not."""
    return [entry for entry in _sorted_parameters(model, {}, frozen=True) if entry[2] in ("attention", "matrices")]


def in_use(model: nn.Module, name: str, weight: Tensor) -> Tensor:
    """What torch.nn.utils.parametrize makes of a weight, if it is of the same shape; else the weight."""
    found = _PARAMETRIZED.search(name)
    made = weight if found is None else getattr(model.get_submodule(name[: found.start()]), found[1])
    return made if made.shape == weight.shape else weight


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


def _sorted_parameters(
    model: nn.Module, kinds: Mapping[str, str], frozen: bool = False
) -> Iterator[tuple[str, Tensor, str]]:
    """Every parameter that is trainable, or `frozen` too, once, with its first name and its kind."""
    _check_kinds(kinds, {name for name, _ in model.named_parameters(remove_duplicate=False)})
    found: dict[Tensor, dict[str, str]] = {}  # the kind by its name: a tied weight has several
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        for own, param in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{own}" if path else own
            check_has_shape(name, param)
            if param.requires_grad or frozen:
                owner = modules[_PARAMETRIZED.sub("", name)] if _PARAMETRIZED.search(name) else module
                found.setdefault(param, {})[name] = _kind(name, owner, param, modules)
    for param, by_name in found.items():
        exceptions = (kind for pattern, kind in kinds.items() if any(re.search(pattern, name) for name in by_name))
        # Of a weight with two places: a head tied to an embedding is an embedding.
        guess = next(k for k in ("embeddings", *KINDS) if k in by_name.values())
        yield next(iter(by_name)), param, next(exceptions, guess)


def _kind(name: str, module: nn.Module, param: Tensor, modules: Mapping[str, nn.Module]) -> str:
    scale = name.endswith(".original0") and max(param.shape, default=1) == param.numel()  # of weight_norm
    path = _STORED.sub("", _PARAMETRIZED.sub(r".\1", name)).split(".")
    own, bare = path[-1], path[-1] != "weight" or scale
    if own.isdigit():  # of a ParameterList
        own = ".".join(path[-3:-1])
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embeddings"
    if param.ndim < 2 or "bias" in own or _NORM.search(type(module).__name__) or _NO_MATRIX.fullmatch(own):
        return "vectors"
    if _STARTS_AT_ZERO.search(name) or getattr(param, "_no_weight_decay", False):
        return "vectors"
    if bare and max(param.shape) == param.numel():  # as a class token (1, 1, d); the weight of Linear(d, 1) is a matrix
        return "vectors"
    if bare and (_EMBEDDING.search(own) or _POSITIONS.search(type(module).__name__)):
        return "embeddings"
    return "attention" if _is_attention(path, own if bare else "", modules) else "matrices"


def _is_attention(path: list[str], bare: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a matrix makes queries, keys or values; `path` is its full name, `bare` its own if it is no "weight"."""
    parts = [part.lower() for part in (path if bare else path[:-1])]
    if not parts:
        return False
    parts[-1] = parts[-1].removesuffix("_weight")
    inside = any("att" in part for part in parts[:-1])
    if _THREE_OF_A_LIST.fullmatch(".".join(parts[-2:])):
        return inside
    own = parts[-1]
    while len(parts) > 1 and parts[-1] in _WRAPPED:
        del parts[-1]
    inside = any("att" in part for part in parts[:-1])
    last, above = parts[-1], path[: len(parts) - 1]
    if _FEED_FORWARD.search(".".join(parts[:-1])):
        return False
    if _TOGETHER.fullmatch(last):
        return True
    if _INSIDE_ATTENTION.fullmatch(last) and own in (last, "base_layer"):  # attn.proj is an output
        return inside or isinstance(modules.get(".".join(above)), nn.MultiheadAttention)
    if not _SEPARATE.fullmatch(last) and last not in _HEADS:
        return False
    # A lone "value" or "k" may be anything: a value head. Inside something called attention, or with others, it is not.
    parent = modules.get(".".join(above))
    beside = [*dict(parent.named_children()), *dict(parent.named_parameters(recurse=False))] if parent else []
    others = {name.lower().removesuffix("_weight") for name in beside} - {last}
    if last in _HEADS:
        return _HEADS - {last} <= others
    return inside or any(_SEPARATE.fullmatch(name) or _TOGETHER.fullmatch(name) for name in others)


def _any_number(name: str, others: list[str]) -> str:
    """A pattern of the name in all layers, that is with any numbers; of this name alone where `others` would match."""
    pattern = re.sub(r"\d+", r"\\d+", re.escape(name))
    return re.escape(name) if any(re.fullmatch(pattern, other) for other in others) else pattern


def _format(value: Any) -> str:
    value = value.item() if isinstance(value, Tensor) else value
    return f"{value:.4g}" if isinstance(value, float) and value != int(value) else str(value)


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
