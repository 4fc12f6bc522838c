"""Prediction heads h_k: R^d → R, one for all queries (H = 1) or one a query (H = K), of every trial."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, bind_shape, check_real, check_same_kind
from attsvm.errors import AttsvmError


class Head(ABC):
    """A head with parameters of leading shape (B, H); `axes` names the axes of every parameter."""

    name: ClassVar[str]
    axes: ClassVar[dict[str, str]]

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        first: tuple[str, Tensor] | None = None
        for field, axes in self.axes.items():
            label = f"{self.name} head's {field}"
            tensor = as_float(label, getattr(self, field))
            object.__setattr__(self, field, tensor)
            bind_shape(label, tensor, axes, sizes)
            check_real(label, tensor)
            first = first or (label, tensor)
            check_same_kind(label, tensor, *first)

    @property
    def B(self) -> int:
        return self._weight.shape[0]

    @property
    def H(self) -> int:
        return self._weight.shape[1]

    @property
    def d(self) -> int:
        return self._weight.shape[-1]

    @property
    def _weight(self) -> Tensor:
        """The first parameter, whose axes are B, H, ..., d."""
        return getattr(self, next(iter(self.axes)))

    def value(self, x: Tensor) -> Tensor:
        """h_k(x): x (B, n, K or 1, M, d) → (B, n, K, M), where K is 1 if both x and the head have one."""
        self._check_points(x)
        return self._value(x)

    def grad(self, x: Tensor) -> Tensor:
        """∇h_k(x): x (B, n, K or 1, M, d) → (B, n, K, M, d)."""
        self._check_points(x)
        return self._grad(x)

    @abstractmethod
    def _value(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _grad(self, x: Tensor) -> Tensor: ...

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return {field: getattr(self, field) for field in self.axes}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def __getitem__(self, trials: slice | Tensor) -> Self:
        """The head of some trials; the trial axis stays."""
        return self._map(lambda tensor: tensor[trials])

    @classmethod
    def cat(cls, heads: Sequence["Head"]) -> "Head":
        """The trials of several heads of one kind, one after the other."""
        kinds = sorted({head.name for head in heads})
        if len(kinds) != 1:
            raise AttsvmError(f"heads to be joined must be of one kind, but got {', '.join(kinds) or 'none'}.")
        first = heads[0]
        try:
            return type(first)(**{field: torch.cat([head.tensors()[field] for head in heads]) for field in first.axes})
        except RuntimeError as error:
            shapes = "; ".join(str({f: tuple(t.shape) for f, t in head.tensors().items()}) for head in heads)
            raise AttsvmError(
                f"heads to be joined must have equal shapes after the first axis, but got {shapes}."
            ) from error

    def check_fits(self, B: int, K: int, d: int) -> None:
        """Refuse a head that is not made for B trials, K queries and tokens in R^d."""
        if self.B != B or self.H not in (1, K) or self.d != d:
            count = f"H = 1 or K = {K}" if K > 1 else "H = 1"
            raise AttsvmError(
                f"{self.name} head must have B = {B}, {count} and d = {d}, "
                f"but got B = {self.B}, H = {self.H} and d = {self.d}."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(B={self.B}, H={self.H}, d={self.d})"

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{field: function(tensor) for field, tensor in self.tensors().items()})

    def _check_points(self, x: Tensor) -> None:
        queries = x.shape[2] if x.ndim == 5 else 0
        fits = queries >= 1 and (self.H == 1 or queries in (1, self.H))
        if not fits or x.shape[0] != self.B or x.shape[4] != self.d:
            raise AttsvmError(
                f"x must have shape (B, n, K or 1, M, d) with B = {self.B}, d = {self.d} and K fitting "
                f"H = {self.H}, but got shape {tuple(x.shape)}."
            )

    def _expand(self, v: Tensor, x: Tensor) -> Tensor:
        """v (B, H, d) repeated over samples and tokens, as a view of shape (B, n, K, M, d)."""
        _, n, queries, M, _ = x.shape
        return v[:, None, :, None, :].expand(-1, n, max(queries, self.H), M, -1)


@dataclass(frozen=True, eq=False, repr=False)
class LinearHead(Head):
    """h(x) = vᵀx with v (B, H, d)."""

    v: Tensor

    name: ClassVar[str] = "linear"
    axes: ClassVar[dict[str, str]] = {"v": "B H d"}

    def _value(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkd->bnkm", x, self.v)

    def _grad(self, x: Tensor) -> Tensor:
        return self._expand(self.v, x)


@dataclass(frozen=True, eq=False, repr=False)
class MLPHead(Head):
    """h(x) = aᵀ relu(U x + c) with U (B, H, width, d), c (B, H, width), a (B, H, width)."""

    U: Tensor
    c: Tensor
    a: Tensor

    name: ClassVar[str] = "mlp"
    axes: ClassVar[dict[str, str]] = {"U": "B H width d", "c": "B H width", "a": "B H width"}

    @classmethod
    def sum_relu(cls, B: int, d: int, *, dtype: torch.dtype = torch.float64) -> "MLPHead":
        """h(x) = 1ᵀ relu(x), the nonlinear head of "Transformers as SVMs", for B trials."""
        B, d = as_count("B", B, least=0), as_count("d", d)
        ones = torch.ones(B, 1, d, dtype=dtype)
        return cls(torch.diag_embed(ones), torch.zeros_like(ones), ones)

    def _value(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmw,bkw->bnkm", self._hidden(x).relu(), self.a)

    def _grad(self, x: Tensor) -> Tensor:
        active = (self._hidden(x) > 0) * self.a[:, None, :, None, :]
        return torch.einsum("bnkmw,bkwd->bnkmd", active, self.U)

    def _hidden(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkwd->bnkmw", x, self.U) + self.c[:, None, :, None, :]


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticHead(Head):
    """h(x) = vᵀx − λ‖x‖² with v (B, H, d), lam (B, H)."""

    v: Tensor
    lam: Tensor

    name: ClassVar[str] = "quadratic"
    axes: ClassVar[dict[str, str]] = {"v": "B H d", "lam": "B H"}

    def _value(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkd->bnkm", x, self.v) - self.lam[:, None, :, None] * x.square().sum(-1)

    def _grad(self, x: Tensor) -> Tensor:
        return self._expand(self.v, x) - 2 * self.lam[:, None, :, None, None] * x


HEADS: dict[str, type[Head]] = {head.name: head for head in (LinearHead, MLPHead, QuadraticHead)}


def as_head(head: Any, X: Tensor, single: bool) -> Head | None:
    """A head for X (B, n, T, d) from a Head, None or a bare v.

    v is (d,) for all trials, (B, d) or (B, H, d); for a single trial given without its B axis also (H, d).
    """
    if head is None:
        return None
    if isinstance(head, Head):
        return head.to(device=X.device, dtype=X.dtype)
    v = as_float("v", head, like=X)
    B, d = X.shape[0], X.shape[-1]
    if v.ndim not in (1, 2, 3) or v.shape[-1] != d:
        raise AttsvmError(
            f"v must have shape (d,), (B, d) or (B, H, d) with B = {B} and d = {d}, but got shape {tuple(v.shape)}."
        )
    if v.ndim == 1:
        v = v.expand(B, 1, d)
    elif v.ndim == 2:
        v = v[None] if single else v[:, None]
    return LinearHead(v)
