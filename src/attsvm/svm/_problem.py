"""One problem type for every SVM of the papers, and the functions that state each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_bool, as_count, as_float, check_real
from attsvm.data import TokenData
from attsvm.errors import AttsvmError, describe
from attsvm.svm._exact import two_sum
from attsvm.svm._rows import Rows
from attsvm.svm._why import simple_reasons
from attsvm.tolerances import SELECTED


def least(x: Tensor) -> Tensor:
    """The smallest of every row, infinite where it is empty."""
    return x.amin(1) if x.shape[1] else x.new_full((len(x),), torch.inf)


def is_large(rows: int, d: int, e: int) -> bool:
    """Whether an instance has too many rows, in number or for its unknowns, to take them all at once."""
    return rows > 10_000 or rows * min(rows, d * e) > 2**22


@dataclass(frozen=True, eq=False)
class MarginProblem:
    """min ‖W‖ subject to ⟨a_c ⊗ z_c, W⟩ ≥ b_c, or = b_c on equality rows, for B instances.

    Rows come in Q groups of R that share their z: `A (B, Q, R, d)`, `Z (B, Q, e)`, `b`, `equality` and `present` (B, Q,
    R). Rows that are not present are ignored, so instances of one batch may differ in size. Inequalities need b > 0;
    equalities take any b. `A_low` (B, Q, R, d) is what rounding took from A. Certificates are about the rows A + A_low;
    for problems over tokens these are the differences of the tokens without any rounding. For these the groups are the
    n·K queries, `token` (B, Q, R) names the token that a row compares with the selected one, and `layout` is (n, K, T).
    """

    A: Tensor
    Z: Tensor
    b: Tensor
    equality: Tensor
    present: Tensor
    token: Tensor | None = None
    layout: tuple[int, int, int] | None = None
    A_low: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("A", "Z", "b"):
            check_real(name, getattr(self, name))
        B, Q, R, d = _shape("A", self.A, 4, "(B, Q, R, d)")
        _, _, e = _shape("Z", self.Z, 3, "(B, Q, e)")
        expected: dict[str, tuple[int, ...]] = {
            "Z": (B, Q, e),
            "b": (B, Q, R),
            "equality": (B, Q, R),
            "present": (B, Q, R),
        }
        if self.token is not None:
            expected["token"] = (B, Q, R)
        if self.A_low is not None:
            check_real("A_low", self.A_low)
            expected["A_low"] = (B, Q, R, d)
        for name, shape in expected.items():
            _expect(name, getattr(self, name), shape)
        if d == 0 or e == 0:
            raise AttsvmError(f"A and Z must have at least one column, but W would be {d} × {e}.")
        for name in ("equality", "present"):
            if getattr(self, name).dtype != torch.bool:
                raise AttsvmError(f"{name} must be boolean, but got {getattr(self, name).dtype}.")
        if bool((self.present & ~self.equality & (self.b <= 0)).any()):
            raise AttsvmError("b must be positive on inequality rows: with b ≤ 0 the row is satisfied by W = 0.")

    @classmethod
    def from_rows(
        cls, A: Any, Z: Any | None = None, b: Any = 1.0, equality: Any = False, present: Any = True
    ) -> MarginProblem:
        """Your own rows: `A (N, d)` or `(B, N, d)`, `Z` likewise with e columns; without Z, W is a vector (e = 1)."""
        A = as_float("A", A)
        if A.ndim not in (2, 3):
            raise AttsvmError(f"A must have shape (N, d) or (B, N, d), but got {tuple(A.shape)}.")
        z = None if Z is None else as_float("Z", Z, like=A)
        if z is not None:
            _expect("Z", z, (*A.shape[:-1], z.shape[-1] if z.ndim else 0))
        lead = A.shape[:-1]
        b = _fill("b", as_float("b", b, like=A), lead)
        equality = _fill("equality", as_bool("equality", equality, A.device), lead)
        present = _fill("present", as_bool("present", present, A.device), lead)
        if A.ndim == 2:
            A, b, equality, present = A[None], b[None], equality[None], present[None]
            z = None if z is None else z[None]
        # Without Z all rows share z = 1 and form one group; with Z every row is a group of its own.
        group = 1 if z is None else 2
        A, b, equality, present = (x.unsqueeze(group) for x in (A, b, equality, present))
        return cls(A, A.new_ones(A.shape[0], 1, 1) if z is None else z, b, equality, present)

    @property
    def B(self) -> int:
        return self.A.shape[0]

    @property
    def rows(self) -> int:
        """Rows of an instance, N = Q·R, present or not."""
        return self.A.shape[1] * self.A.shape[2]

    @property
    def shape(self) -> tuple[int, int]:
        """(d, e), the shape of W."""
        return self.A.shape[3], self.Z.shape[2]

    @property
    def device(self) -> torch.device:
        return self.A.device

    def formed(self) -> MarginProblem:
        """This problem with all its rows in memory: a large one over tokens (`TokenProblem`) makes them only here."""
        return self

    def least_margin(self, W: Tensor) -> Tensor:
        """The smallest ⟨a ⊗ z, W⟩/b of the inequalities for W (B, d, e), (B,); infinite where there are none."""
        rows = double_rows(self)
        asked = (self.present & ~self.equality).flatten(1)
        return least((rows.apply(W.to(rows.A)) / self.b.double().flatten(1)).where(asked, torch.inf))

    def why(self, b: int = 0) -> list[str]:
        """Simple reasons why instance b has no solution, a sentence each: zero rows and pairs of opposite rows.

        Checked exactly. The list may be empty for an infeasible instance: rows may contradict each other only jointly.
        """
        return simple_reasons(self.formed(), as_count("b", b, 0, self.B - 1))

    def __len__(self) -> int:
        return self.B

    def __repr__(self) -> str:
        d, e = self.shape
        return f"MarginProblem({self.B} instances, {self.rows} rows, W {d} × {e})"


class _Formed:
    """A tensor of a problem that forms its rows only when it is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, problem: Any, owner: type) -> Any:
        return self if problem is None else getattr(problem.formed(), self.name)


class UnformedProblem(MarginProblem):
    """One instance with so many rows that only their ingredients are kept.

    `solve` and `least_margin` price the rows by matrix products. A, b and the others are formed again at each access,
    which takes more than twice the memory of the tokens.
    """

    A: Any = _Formed()
    Z: Any = _Formed()
    b: Any = _Formed()
    equality: Any = _Formed()
    present: Any = _Formed()
    token: Any = _Formed()
    A_low: Any = _Formed()

    @property
    def B(self) -> int:
        return 1


class TokenProblem(UnformedProblem):
    """One instance of (Gen-SVM) with so many rows that only tokens and selected sets are kept."""

    data: TokenData
    sets: Tensor

    def __init__(self, data: TokenData, sets: Tensor) -> None:
        for name, value in (("data", data), ("sets", sets), ("layout", (data.n, data.K, data.T))):
            object.__setattr__(self, name, value)

    def formed(self) -> MarginProblem:
        return _formed(self.data, self.sets)

    @property
    def rows(self) -> int:
        return self.data.n * self.data.K * (self.data.T - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.d, self.data.e

    @property
    def device(self) -> torch.device:
        return self.data.device

    def least_margin(self, W: Tensor) -> Tensor:
        least = [value.amin() for _, value, _ in self.margins(W[0])]
        return torch.stack(least).amin()[None]

    def margins(self, W: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """⟨(x_first − x_t) ⊗ z, W⟩ (c, K, T), a few samples at a time: for the tokens outside the selected sets, and
        for those inside; infinite, and zero, where there is no such row."""
        data, W = self.data, W.double()
        step = max(1, _BLOCK[data.device.type == "cuda"] // (data.T * (data.d + data.K)))
        for start in range(0, data.n, step):
            part = slice(start, min(start + step, data.n))
            X, sets = data.X[0, part].double(), self.sets[0, part]
            logits = ((data.Z[0, part].double() @ W.mT) @ X.mT).contiguous()
            value = logits.gather(-1, sets.int().argmax(-1, keepdim=True)) - logits
            outside = data.mask[0, part] & ~sets
            yield part, value.where(outside, torch.inf), value.where(sets, 0.0)


_BLOCK = (2**22, 2**26)
"""Entries of the tokens that are priced together: what a CPU has in its cache, and on a GPU few large products."""


def att_svm(data: TokenData, tokens: Any | None = None) -> MarginProblem:
    """(Att-SVM), (ℓp-AttSVM), (Att-SVM⋆), (SAtt-SVM): (x_α − x_t)ᵀ W z ≥ 1 for every other token t that z sees.

    `tokens` (n,), (n, K) or (B, n, K) are the selected tokens α; the optimal ones by default.
    """
    check_data(data)
    tokens = data.optimal_tokens() if tokens is None else data.check_tokens(tokens)
    return gen_svm(data, torch.zeros_like(data.mask).scatter_(-1, tokens[..., None], True))


def gen_svm(data: TokenData, selected: Any) -> MarginProblem:
    """(Gen-SVM) for selected sets (B, n, K, T): equal logits inside a set, margin 1 to the tokens outside.

    The rows of a single instance with more than 10,000 of them are not formed: `solve` prices them from the tokens.
    """
    check_data(data)
    sets = _check_sets(data, selected)
    large = data.B == 1 and is_large(data.n * data.K * (data.T - 1), data.d, data.e)
    return TokenProblem(data, sets) if large else _formed(data, sets)


def _formed(data: TokenData, sets: Tensor) -> MarginProblem:
    A, low, others, chosen = _differences(data, sets)
    return _token_problem(data, A, low, torch.where(chosen, 0.0, 1.0), chosen, data.mask.gather(-1, others), others)


def finite_part(data: TokenData, weights: Any, selected: Any | None = None) -> MarginProblem:
    """The problem of W_fin: the least W with (x_t − x_τ)ᵀ W z = log(s_t/s_τ) on the selected sets, s softmax weights.

    `weights` (B, n, K, T); by default the tokens with weight above 1e-3 are selected, as in TF-as-SVM.
    """
    weights = as_float("weights", weights, like=data.X)
    if weights.shape != data.mask.shape:
        raise AttsvmError(
            f"weights must have shape (B, n, K, T) = {tuple(data.mask.shape)}, but got {tuple(weights.shape)}."
        )
    sets = _check_sets(data, (weights > SELECTED) if selected is None else selected)
    if not bool((weights[sets] > 0).all()):
        raise AttsvmError("weights must be positive on the selected tokens: their logarithms are matched.")
    A, low, others, chosen = _differences(data, sets)
    logs = torch.where(sets, weights.clamp_min(torch.finfo(weights.dtype).tiny).log(), 0.0)
    first = sets.int().argmax(-1, keepdim=True)
    b = torch.where(chosen, logs.gather(-1, first) - logs.gather(-1, others), 0.0)
    return _token_problem(data, A, low, b, torch.ones_like(chosen), chosen, others)


def head_svm(data: TokenData, tokens: Any | None = None) -> MarginProblem:
    """(ℓp-SVM) for the head: y_i x_{iα_i}ᵀ v ≥ 1. W is v as a (d, 1) matrix."""
    check_data(data)
    tokens = data.optimal_tokens() if tokens is None else data.check_tokens(tokens)
    x = _at(data.X, tokens[..., None])[..., 0, :]
    A = data.Y[..., None] * x  # without rounding: labels are ±1
    return MarginProblem.from_rows(A.flatten(1, 2))


def _check_sets(data: TokenData, selected: Any) -> Tensor:
    sets = as_bool("selected", selected, data.device)
    if sets.shape != data.mask.shape:
        raise AttsvmError(
            f"selected must have shape (B, n, K, T) = {tuple(data.mask.shape)}, but got {tuple(sets.shape)}."
        )
    if bool((sets & ~data.mask).any()):
        raise AttsvmError("selected must name tokens that the mask allows.")
    if not bool(sets.any(-1).all()):
        raise AttsvmError("selected must name at least one token for every query.")
    return sets


def _differences(data: TokenData, sets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_first − x_t for all tokens t but the first of the set; what rounding took from it; these t; and whether they
    are in the set.

    Comparing with one member is enough, since the members' logits are tied by equalities.
    """
    first = sets.int().argmax(-1, keepdim=True)
    others = torch.arange(data.T - 1, device=data.device).expand(*first.shape[:-1], -1)
    others = others + (others >= first)
    return *two_sum(_at(data.X, first), -_at(data.X, others)), others, sets.gather(-1, others)


def _at(X: Tensor, tokens: Tensor) -> Tensor:
    """Tokens of X (B, n, T, d) by number (B, n, K, M): (B, n, K, M, d)."""
    B, n, _, d = X.shape
    flat = tokens.flatten(2)
    return X.gather(2, flat[..., None].expand(-1, -1, -1, d)).reshape(B, n, *tokens.shape[2:], d)


def _token_problem(
    data: TokenData, A: Tensor, low: Tensor, b: Tensor, equality: Tensor, present: Tensor, others: Tensor
) -> MarginProblem:
    tensors = (A, low, b.to(A.dtype), equality, present, others)
    A, low, b, equality, present, others = (x.flatten(1, 2) for x in tensors)
    layout = (data.n, data.K, data.T)
    return MarginProblem(A, data.Z.flatten(1, 2), b, equality, present, others, layout, low)


def double_rows(problem: MarginProblem) -> Rows:
    """The rows in float64: A is next to A + A_low, however large A_low is (of float32 tokens 2⁻²⁴ of A), and the rest
    is a rounding error again."""
    A, Z = problem.A.double(), problem.Z.double()
    if problem.A_low is None:
        return Rows(A, Z)
    A, A_low = two_sum(A, problem.A_low.double())
    return Rows(A, Z, A_low)


def check_data(data: object) -> None:
    if not isinstance(data, TokenData):
        raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")


def check_problem(problem: object) -> None:
    if not isinstance(problem, MarginProblem):
        hint = ": state one, such as att_svm(data)" if isinstance(problem, TokenData) else ""
        raise AttsvmError(f"problem must be a MarginProblem, but got {describe(problem)}{hint}.")


def _shape(name: str, tensor: Tensor, ndim: int, axes: str) -> tuple[int, ...]:
    if tensor.ndim != ndim:
        raise AttsvmError(f"{name} must have shape {axes}, but got {tuple(tensor.shape)}.")
    return tuple(tensor.shape)


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise AttsvmError(f"{name} must have shape {tuple(shape)}, but got {tuple(tensor.shape)}.")


def _fill(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """Broadcast a scalar or a smaller shape to all rows."""
    try:
        return tensor.expand(shape).contiguous()
    except RuntimeError as error:
        raise AttsvmError(f"{name} must have shape {tuple(shape)}, but got {tuple(tensor.shape)}.") from error
