"""Softmax attention as a network computes it: queries and keys after rotation and normalisation, seen in passing.

Every torch function that the network calls comes by here. A fused attention is seen whole. Of an attention that is
spelled out, the product of queries and keys is followed through scaling, biases and masks to its softmax. So any
network serves: its modules are not asked for the names of their weights.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attsvm.errors import AttsvmError

ROUNDING = 1e-5
"""A bias below this fraction of what it is added to is rounding."""


PICKED = 16_000_000
"""Entries of the directions along which heads are differentiated at a time."""


class Source(NamedTuple):
    """The linear map that a query or key came from."""

    input: Tensor
    """(..., d), cut off from what came before it"""
    weight: Tensor


@dataclass(frozen=True, eq=False)
class Attended:
    """One softmax attention of a batch, softmax(scale·q kᵀ + bias).

    name     of the module that computed it; ":2" follows if it did so for the second time in a forward pass
    q        (B, H, K, c), after rotation, normalisation and whatever else the network does to queries
    k        (B, G, T, c) with H/G queries to a key: in grouped-query attention they share it
    bias     broadcasts to (B, H, K, T), −inf where a query does not see a token; None is 0
    sources  the linear maps that q and k came from, None where there was none
    """

    name: str
    q: Tensor
    k: Tensor
    scale: float
    bias: Tensor | None
    sources: tuple[Source | None, Source | None] = (None, None)

    @property
    def keys(self) -> Tensor:
        """k (B, H, T, c), repeated for the queries that share it."""
        shared = self.q.shape[1] // self.k.shape[1]
        return self.k if shared == 1 else self.k.repeat_interleave(shared, 1)

    def logits(self) -> Tensor:
        """(B, H, K, T) in float32 or float64, −inf where a query does not see a token."""
        q, k = (x if x.dtype == torch.float64 else x.float() for x in (self.q, self.keys))
        logits = (q * self.scale) @ k.mT
        return logits if self.bias is None else logits.add_(self.bias.to(logits))

    def hidden(self) -> tuple[Tensor | None, Tensor | None]:
        """The inputs (B, K, d) and (B, T, d) of the linear maps to q and k, None where there was none."""
        found = []
        for source, x in zip(self.sources, (self.q, self.k)):
            shape = (x.shape[0], x.shape[2])
            # Some networks put all tokens of a batch into one axis.
            fits = source is not None and source.input.shape[:-1] in (shape, (math.prod(shape),))
            found.append(source.input.reshape(*shape, -1) if source is not None and fits else None)
        return found[0], found[1]


@contextmanager
def capture(model: nn.Module, use: Callable[[Attended], None], *, differentiable: bool = False) -> Iterator[Capture]:
    """Inside the block, `use` is called with every attention that `model` computes, while it computes.

    With `differentiable` the inputs of the linear maps are leaves, so that q and k can be differentiated by them.
    """
    names = {module: name for name, module in model.named_modules()}
    mode = Capture(use, differentiable)

    def enter(module: nn.Module, _: Any) -> None:
        if module is model and not mode.stack:
            mode.calls.clear()
        mode.stack.append(names[module])

    def leave(*_: Any) -> None:
        mode.stack.pop()

    # Linear maps, norms and the like compute no attention, and there are many of them.
    hooked = [m for m in names if any(True for _ in m.children()) or not type(m).__module__.startswith("torch.nn.")]
    hooks = [module.register_forward_pre_hook(enter) for module in hooked]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in hooked]
    try:
        with mode:
            yield mode
    finally:
        for hook in hooks:
            hook.remove()


def affine(attended: Attended, token: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The linear maps of every head at a token of the first sequence: A_q (H, c, d), b_q (H, c), A_k, b_k.

    q = A_q x + b_q for the input x of the linear map. Without rotation and normalisation the maps are the same for all
    tokens. With rotation A_kᵀ A_q is that of distance 0. The attention must come from a differentiable capture.
    """
    found: list[Tensor] = []
    for x, source, hidden in zip((attended.q, attended.keys), attended.sources, attended.hidden()):
        if source is None or hidden is None:
            raise AttsvmError(f"{attended.name} must make queries and keys by linear maps, but none was seen.")
        _, H, T, c = x.shape
        maps = []
        at_once = max(1, PICKED // (c * x.numel()))
        for heads in torch.arange(H).split(at_once):  # all at once, as far as there is room
            head, coordinate = torch.cartesian_prod(heads, torch.arange(c)).to(x.device).unbind(1)
            pick = torch.zeros((len(head), *x.shape), dtype=x.dtype, device=x.device)
            pick[torch.arange(len(head), device=x.device), 0, head, token, coordinate] = 1
            slope = torch.autograd.grad(x, source.input, pick, retain_graph=True, is_grads_batched=True)[0]
            maps.append(slope.reshape(len(heads), c, -1, T, hidden.shape[-1])[:, :, 0, token])
        A = torch.cat(maps).detach()
        b = (x[0, :, token] - A @ hidden[0, token]).detach()
        found += [A, b if float(b.abs().max()) > ROUNDING * float(x.detach().abs().max()) else torch.zeros_like(b)]
    return found[0], found[1], found[2], found[3]


class _Product(NamedTuple):
    q: Tensor
    k: Tensor
    scale: float
    sources: tuple[Source | None, Source | None]


class _Origin(NamedTuple):
    source: Source | None = None
    product: _Product | None = None


_UNKNOWN = _Origin()
_PRODUCTS = {torch.einsum, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_LINEAR = {F.linear: ("input", "weight", "bias"), torch.addmm: ("bias", "input", "weight")}
"""What their arguments are; GPT-2's linear maps are addmm."""
_ADDED = {torch.baddbmm, Tensor.baddbmm}
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_TIMES = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__, torch.mul}
_OVER = {Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__, torch.div}


class Capture(TorchFunctionMode):
    """Sees every torch function; while `paused` is True it looks away.

    `calls` counts the attentions of every module in a forward pass. Clear it before a pass that does not go through the
    model's own `forward`.
    """

    def __init__(self, use: Callable[[Attended], None], differentiable: bool) -> None:
        super().__init__()
        self.use, self.differentiable = use, differentiable
        self.stack: list[str] = []
        self.calls: Counter[str] = Counter()
        self.paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif func is F.multi_head_attention_forward:
            self._multi_head(func, args, kwargs)
        elif func in _SOFTMAX:
            self._softmax(*args, **kwargs)
        elif func in _LINEAR:
            return self._linear(func, args, kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self._mark(result, func, args, kwargs)
        elif isinstance(result, tuple | list):
            for part in result:
                if isinstance(part, Tensor):
                    self._mark(part, func, args, kwargs)
        return result

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        given = [*args, *kwargs.values()]
        names = (*_LINEAR[func][: len(args)], *kwargs)
        at, of = names.index("input"), names.index("weight")
        x = self._leaf(given[at])
        given[at] = x
        result = func(*given[: len(args)], **dict(zip(kwargs, given[len(args) :])))
        # Detached, so that an origin does not hold on to those before it.
        _set(result, _Origin(Source(x if self.differentiable else x.detach(), given[of])))
        return result

    def _leaf(self, x: Tensor) -> Tensor:
        return x.detach().requires_grad_() if self.differentiable else x

    def _mark(self, result: Tensor, func: Any, args: Any, kwargs: Any) -> None:
        """Where a result comes from: from where its first argument with a known origin does."""
        tensors = [
            x for arg in args for x in (arg if isinstance(arg, tuple | list) else (arg,)) if isinstance(x, Tensor)
        ]
        factors, scale = tensors, 1.0
        if func is torch.einsum and isinstance(args[0], str):
            factors = _factors(args[0], tensors)
        elif func in _ADDED:  # beta·input + alpha·(first @ second)
            factors = [*args[1:3], *(kwargs[name] for name in ("batch1", "batch2") if name in kwargs)]
            scale = kwargs.get("alpha", 1.0)
        if func in _PRODUCTS | _ADDED and len(factors) == 2 and factors[1].ndim >= 3:
            q, k = factors
            sources = tuple(_get(x).source for x in (tensors if func is torch.einsum else factors))
            _set(result, _Origin(product=_Product(q, k.mT, scale, (sources[0], sources[1]))))
            return
        known = next((o for x in tensors if (o := _get(x)) is not _UNKNOWN), _UNKNOWN)
        product = known.product
        if product is not None:
            if result.shape[-2:] != (product.q.shape[-2], product.k.shape[-2]):
                product = None
            elif func in _TIMES or func in _OVER:
                factors = [x for x in args[:2] if not isinstance(x, Tensor) or x.numel() == 1]
                if factors:
                    factor = float(factors[0])
                    product = product._replace(scale=product.scale * (factor if func in _TIMES else 1 / factor))
        if known is not _UNKNOWN:
            _set(result, _Origin(known.source, product))

    def _seen(self, q: Tensor, k: Tensor, scale: float, bias: Tensor | None, sources: Any = None) -> None:
        name = self.stack[-1] if self.stack else ""
        self.calls[name] += 1
        unique = name if self.calls[name] == 1 else f"{name}:{self.calls[name]}"
        if sources is None:
            sources = (_get(q).source, _get(k).source)
        self.paused = True
        try:
            self.use(Attended(unique, q, k, scale, bias, sources))
        finally:
            self.paused = False

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        sources: Any = None,
    ) -> None:
        if query.ndim == 3:  # one head
            sources = (_get(query).source, _get(key).source) if sources is None else sources
            query, key = query[:, None], key[:, None]
            attn_mask = attn_mask[:, None] if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
        if query.ndim != 4:
            raise AttsvmError(f"queries must be (batch, heads, tokens, d), but got shape {tuple(query.shape)}.")
        bias = None
        if is_causal:
            allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
            bias = _hidden(allowed)
        elif attn_mask is not None:
            bias = _hidden(attn_mask)
        self._seen(query, key, query.shape[-1] ** -0.5 if scale is None else scale, bias, sources)

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> None:
        """torch's own multi-head attention runs unseen: run it once more, and look at the fused attention inside."""
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        batched = given["query"].ndim == 3  # and then the batch is the second axis
        q, k = (self._leaf(given[name].transpose(0, 1) if batched else given[name]) for name in ("query", "key"))
        separate = given.get("use_separate_proj_weight", False)
        weights = [given[name if separate else "in_proj_weight"] for name in ("q_proj_weight", "k_proj_weight")]
        sources = tuple(Source(x, weight) for x, weight in zip((q, k), weights))
        given |= {name: x.transpose(0, 1) if batched else x for name, x in (("query", q), ("key", k))}
        given |= {"need_weights": False, "training": False}
        fused = F.scaled_dot_product_attention

        def look(*args: Any, **kwargs: Any) -> Tensor:
            self._fused(*args, **kwargs, sources=sources)
            return fused(*args, **kwargs)

        F.scaled_dot_product_attention = look
        try:
            func(**given)
        finally:
            F.scaled_dot_product_attention = fused

    def _softmax(self, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        product = _get(input).product
        if product is None or dim not in (-1, input.ndim - 1):
            return
        q, k, scale, sources = product
        if input.ndim == 3 and sources[0] is not None:  # batch and heads in one axis
            input = input.unflatten(0, (sources[0].input.shape[0], -1))
        if input.ndim != 4:
            return
        q, k = (x.reshape(*input.shape[:2], *x.shape[-2:]) for x in (q, k))
        own = Attended("", q.detach(), k.detach(), scale, None).logits()
        logits = input.detach().to(own)
        seen = logits > torch.finfo(input.dtype).min / 2
        bias = (logits - own).masked_fill_(~seen, 0.0)
        if float(bias.abs().max()) <= ROUNDING * float(own.abs().max()):  # of a product in another order
            bias.zero_()
        self._seen(q, k, scale, bias.masked_fill_(~seen, -torch.inf), sources)


def _factors(equation: str, tensors: list[Tensor]) -> list[Tensor]:
    """The two factors of "bqhd,bkhd->bhqk" and the like as (..., q, d) and (..., d, k); none of other equations."""
    letters = equation.replace(" ", "").replace("->", ",").split(",")
    if len(letters) != 3 or len(tensors) != 2 or "." in equation:
        return []
    left, right, result = letters
    summed = set(left) & set(right) - set(result)
    if (
        len(summed) != 1
        or len(result) < 3
        or any({*x} != {*result[:-2], y, *summed} for x, y in zip(letters, result[-2:]))
    ):
        return []
    (c,) = summed
    orders = (result[:-2] + result[-2] + c, result[:-2] + c + result[-1])
    return [x.permute([own.index(letter) for letter in order]) for x, own, order in zip(tensors, letters, orders)]


def _get(x: Tensor) -> _Origin:
    return getattr(x, "_origin", _UNKNOWN)


def _set(x: Tensor, origin: _Origin) -> None:
    x._origin = origin  # type: ignore[attr-defined]


def _hidden(mask: Tensor) -> Tensor:
    """A mask as what is added to the logits, −inf at hidden tokens: networks write the smallest number, too."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
