"""Prediction heads h_k: R^d → R of every trial, one for all queries (H = 1) or one per query (H = K)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, bind_shape, check_real, check_returned, check_same_kind
from attsvm.derivatives import derivative
from attsvm.errors import AttsvmError
from attsvm.named import kinds


class Head(ABC):
    """A head with parameters of leading shape (B, H); `axes` names the axes of every parameter.

    Your own head is a dataclass of its parameters with `name`, `axes` and `h`. That is all that `train`, paths and
    `verdict` need: `dh` and `d2h` follow by differentiation. With `bend`, `verdict` checks Assumption E exactly;
    without it the assumption is sampled.
    """

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

    @abstractmethod
    def h(self, x: Tensor) -> Tensor:
        """The formula: h_k(x) (B, n, K, M) of points x (B, n, K or 1, M, d); K is 1 if both have one."""

    def dh(self, x: Tensor) -> Tensor:
        """∇h_k(x) (B, n, K, M, d)."""
        return derivative(self.h, self._over_queries(x))

    def d2h(self, x: Tensor, u: Tensor) -> Tensor:
        """∇²h_k(x) u (B, n, K, M, d)."""
        return derivative(lambda at: self.dh(at) * u, self._over_queries(x))

    def bend(self) -> Tensor:
        """1 where h is convex, −1 where it is concave, 0 where it is linear, NaN where that is not known; (B, H)."""
        return self._weight.new_full((self.B, self.H), torch.nan)

    def value(self, x: Tensor) -> Tensor:
        """h_k(x), for points of checked shape."""
        self._check_points(x)
        return self.h(x)

    def of_tokens(self, X: Tensor) -> Tensor:
        """h_k(x_t) (B, n, K, T) of the tokens X (B, n, T, d)."""
        return self.value(X[:, :, None])

    def grad(self, x: Tensor) -> Tensor:
        """∇h_k(x), for points of checked shape."""
        self._check_points(x)
        return self.dh(x)

    def hessian(self, x: Tensor, u: Tensor) -> Tensor:
        """∇²h_k(x) u, for points and directions of checked shape."""
        self._check_points(x)
        return self.d2h(x, u)

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
        if isinstance(first, FunctionHead):
            return replace(first, count=sum(head.B for head in heads))
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

    def _over_queries(self, x: Tensor) -> Tensor:
        """x with the query axis written out, because every query has a gradient of its own."""
        return x.expand(-1, -1, max(x.shape[2], self.H), -1, -1)

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

    def h(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkd->bnkm", x, self.v)

    def dh(self, x: Tensor) -> Tensor:
        return self._expand(self.v, x)

    def d2h(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def bend(self) -> Tensor:
        return torch.zeros_like(self.v[..., 0])


@dataclass(frozen=True, eq=False, repr=False)
class SampleHead(LinearHead):
    """h(x) = v_iᵀx with a v for every sample, v (B, H, n, d): such as the label of the sample in one-hot form."""

    name: ClassVar[str] = "sample"
    axes: ClassVar[dict[str, str]] = {"v": "B H n d"}

    def h(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bknd->bnkm", x, self.v)

    def dh(self, x: Tensor) -> Tensor:
        return self.v.swapaxes(1, 2)[:, :, :, None].expand(-1, -1, max(x.shape[2], self.H), x.shape[3], -1)

    def bend(self) -> Tensor:
        return torch.zeros_like(self.v[:, :, 0, 0])


@dataclass(frozen=True, eq=False, repr=False)
class LabelHead(SampleHead):
    """A SampleHead that is 1 for the tokens of the sample's label and 0 for all others: v_i is dual to independent
    embeddings. Rounding would give other tokens a score, too, and f would not be the weight of the label."""

    name: ClassVar[str] = "label"

    def of_tokens(self, X: Tensor) -> Tensor:
        return super().of_tokens(X).round() + 0.0  # not −0


@dataclass(frozen=True, eq=False, repr=False)
class ClassHead(Head):
    """h(x) = −log Σ_c exp(U_ic·x), U (B, H, n, C, d): how far the sample's class leads the C others, with U_ic the
    difference of class c and the sample's own. The logistic loss of it is the cross-entropy: log(1 + e^(−h)).
    """

    U: Tensor

    name: ClassVar[str] = "classes"
    axes: ClassVar[dict[str, str]] = {"U": "B H n C d"}

    def h(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self._leads(x), -1)

    def dh(self, x: Tensor) -> Tensor:
        return -torch.einsum("bnkmc,bkncd->bnkmd", torch.softmax(self._leads(x), -1), self.U)

    def bend(self) -> Tensor:
        return torch.full_like(self.U[:, :, 0, 0, 0], -1.0 if self.U.shape[3] > 1 else 0.0)

    def _leads(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkncd->bnkmc", x, self.U)


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

    def h(self, x: Tensor) -> Tensor:
        return _product(self._hidden(x).relu(), self.a[:, :, None])[..., 0]

    def dh(self, x: Tensor) -> Tensor:
        active = (self._hidden(x) > 0) * self.a[:, None, :, None, :]
        return _product(active, self.U.mT)

    def d2h(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(u)  # except at the kinks

    def bend(self) -> Tensor:
        most, least = self.a.amax(-1), self.a.amin(-1)
        return torch.where(least >= 0, most.sign(), torch.where(most <= 0, -1.0, torch.nan))

    def _hidden(self, x: Tensor) -> Tensor:
        return _product(x, self.U) + self.c[:, None, :, None, :]


def _product(x: Tensor, U: Tensor) -> Tensor:
    """U x (B, n, K, M, width). When compiled it is one loop over all trials, and otherwise a matrix product of each."""
    if torch.compiler.is_compiling():
        return (x[..., None, :] * U[:, None, :, None]).sum(-1)
    return torch.einsum("bnkmd,bkwd->bnkmw", x, U)


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticHead(Head):
    """h(x) = vᵀx − λ‖x‖² with v (B, H, d), lam (B, H)."""

    v: Tensor
    lam: Tensor

    name: ClassVar[str] = "quadratic"
    axes: ClassVar[dict[str, str]] = {"v": "B H d", "lam": "B H"}

    def h(self, x: Tensor) -> Tensor:
        return torch.einsum("bnkmd,bkd->bnkm", x, self.v) - self.lam[:, None, :, None] * x.square().sum(-1)

    def dh(self, x: Tensor) -> Tensor:
        return self._expand(self.v, x) - 2 * self.lam[:, None, :, None, None] * x

    def d2h(self, x: Tensor, u: Tensor) -> Tensor:
        return -2 * self.lam[:, None, :, None, None] * u

    def bend(self) -> Tensor:
        return -self.lam.sign()


@dataclass(frozen=True, eq=False, repr=False)
class FunctionHead(Head):
    """h(x) = function(x), a differentiable function of the last axis, the same for all queries of B trials in R^d.

    It has no parameters, and files hold only its name.
    """

    function: Callable[[Tensor], Tensor]
    count: int
    dimension: int

    name: ClassVar[str] = "function"
    axes: ClassVar[dict[str, str]] = {}

    @property
    def B(self) -> int:
        return self.count

    @property
    def H(self) -> int:
        return 1

    @property
    def d(self) -> int:
        return self.dimension

    def h(self, x: Tensor) -> Tensor:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        try:
            value = self.function(x)
        except (RuntimeError, TypeError) as error:  # of torch, where dtypes differ, or of numpy, which has no gradients
            reason = str(error).splitlines()[0].rstrip(".")
            raise AttsvmError(
                f"head {name} must be a differentiable function of {x.dtype} x, but: {reason}."
            ) from error
        asked = x.requires_grad and torch.is_grad_enabled()
        if asked and isinstance(value, Tensor) and not value.requires_grad:
            raise AttsvmError(f"head {name} must be a differentiable function of x, but it is constant or detached.")
        return check_returned(f"head {name}, a number for each vector x[…, :],", value, x.shape[:-1])

    def bend(self) -> Tensor:
        return torch.full((self.B, 1), torch.nan, dtype=torch.float64)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        return self

    def __getitem__(self, trials: slice | Tensor) -> Self:
        kept = torch.empty(self.count)[trials.cpu() if isinstance(trials, Tensor) else trials]
        return replace(self, count=len(kept))


def as_head(head: Any, X: Tensor, single: bool) -> Head | None:
    """A head for X (B, n, T, d) from a Head, None, a differentiable function of x, or a bare v.

    v is (d,) for all trials, (B, d) or (B, H, d); for a single trial given without its B axis also (H, d).
    """
    if head is None:
        return None
    if isinstance(head, Head):
        return head.to(device=X.device, dtype=X.dtype)
    B, d = X.shape[0], X.shape[-1]
    if isinstance(head, type):
        raise AttsvmError(f"head must be a Head, a function of x, or v, but got the class {head.__name__}: make one.")
    if callable(head):
        return FunctionHead(cast(Callable[[Tensor], Tensor], head), B, d)
    v = as_float("v", head, like=X)
    if v.ndim not in (1, 2, 3) or v.shape[-1] != d:
        raise AttsvmError(
            f"v must have shape (d,), (B, d) or (B, H, d) with B = {B} and d = {d}, but got shape {tuple(v.shape)}."
        )
    if v.ndim == 1:
        v = v.expand(B, 1, d)
    elif v.ndim == 2:
        v = v[None] if single else v[:, None]
    return LinearHead(v)


def head_from(kind: str, tensors: dict[str, Tensor]) -> Head | None:
    """The head of this kind with these parameters, as a file names it; "" is no head."""
    if not kind:
        if tensors:
            raise AttsvmError(f"data without a head must have no parameters of one, but got head.{min(tensors)}.")
        return None
    known = kinds(Head)
    if kind not in known or known[kind] is FunctionHead:
        builtin = ", ".join(cls.name for cls in (LinearHead, MLPHead, QuadraticHead))
        raise AttsvmError(
            f"head must be one of {builtin}, or one of your own that is defined here, but got {kind}: import the "
            "module that defines it first, or pass head=…."
        )
    expected = set(known[kind].axes)
    if set(tensors) != expected:
        raise AttsvmError(
            f"{kind} head must have the parameters {', '.join(sorted(expected))}, but the file has "
            f"{', '.join(sorted(tensors)) or 'none'}."
        )
    return cast(Any, known[kind])(**tensors)
