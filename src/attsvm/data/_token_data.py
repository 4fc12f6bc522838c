"""Sequences, queries, labels, mask and head of B independent trials."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from attsvm.checks import (
    FLOATS,
    as_count,
    as_float,
    as_index,
    as_real,
    as_trials,
    bind_shape,
    check_real,
    check_same_kind,
)
from attsvm.data._axes import ArrayLike, as_tokens, with_all_axes
from attsvm.data._from_attention import head_parts
from attsvm.data._heads import Head, as_head
from attsvm.errors import AttsvmError, describe
from attsvm.pages import html_table


@dataclass(frozen=True, eq=False)
class TokenData:
    """Data of f(X, z) = h(Xᵀ softmax(X W z)) for B trials of n samples.

    X (B, n, T, d)     tokens
    Z (B, n, K, e)     queries
    Y (B, n, K)        labels ±1
    mask (B, n, K, T)  True where query k may attend to token t
    head               h
    trials (B,)        the numbers of the trials, 0, 1, … unless given. Random starts are drawn by these numbers, so
                       `data[17]` alone starts where it does in the whole batch.

    The constructors `cross`, `self_attention`, `causal` and `cls` take tensors, arrays or lists, and fewer axes. X (n,
    T, d) is one trial; then nothing else has the trial axis. Without the query axis Z is one query, and Y and mask
    serve all queries. Everything becomes float64 unless it is torch float32, and follows the dtype and device of X.
    """

    X: Tensor
    Z: Tensor
    Y: Tensor
    mask: Tensor
    head: Head | None = None
    trials: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name, axes, entries in (
            ("X", "B n T d", ""),
            ("Z", "B n K e", ""),
            ("Y", "B n K", " with entries ±1"),
        ):
            tensor = getattr(self, name)
            check_real(name, tensor)
            check_same_kind(name, tensor, "X", self.X)
            bind_shape(name, tensor, axes, sizes, entries)
        if not (self.Y.abs() == 1).all():
            wrong = self.Y[self.Y.abs() != 1][0].item()
            raise AttsvmError(f"Y must have entries ±1, but got the entry {wrong:g}.")
        self._check_mask(sizes)
        if self.head is not None:
            self._check_head(self.head)
        numbers = torch.arange(self.B) if self.trials is None else as_index("trials", self.trials)
        if numbers.shape != (self.B,) or bool((numbers < 0).any()):
            raise AttsvmError(f"trials must be B = {self.B} numbers at least 0, but got {describe(self.trials)}.")
        object.__setattr__(self, "trials", numbers)

    def _check_mask(self, sizes: dict[str, int]) -> None:
        mask = self.mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.device != self.X.device:
            came = f"{mask.dtype} on {mask.device}" if isinstance(mask, Tensor) else type(mask).__name__
            raise AttsvmError(f"mask must be a boolean tensor on {self.X.device}, but got {came}.")
        bind_shape("mask", mask, "B n K T", sizes)
        empty = (~mask.any(-1)).nonzero()
        if len(empty):
            b, i, k = empty[0].tolist()
            raise AttsvmError(
                f"mask must allow every query a token, but query {k} of sample {i} in trial {b} has none."
            )

    def _check_head(self, head: Head) -> None:
        if not isinstance(head, Head):
            raise AttsvmError(f"head must be a Head or None, but got {type(head).__name__}.")
        head.check_fits(self.B, self.K, self.d)
        for name, tensor in head.tensors().items():
            check_same_kind(f"{head.name} head's {name}", tensor, "X", self.X)
            sizes = dict(zip(head.axes[name].split(), tensor.shape))
            if sizes.get("n", self.n) != self.n:
                raise AttsvmError(f"{head.name} head's {name} must be for n = {self.n} samples, not {sizes['n']}.")

    @classmethod
    def cross(
        cls,
        X: ArrayLike,
        Z: ArrayLike,
        Y: ArrayLike | None = None,
        head: Head | ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Self:
        """Cross-attention: queries Z are given separately from the tokens X; Y defaults to +1."""
        tokens = as_tokens(X)
        tensors = with_all_axes(tokens, Z, Y, mask)
        return cls(*tensors, head=as_head(head, tensors[0], single=tokens.ndim == 3))

    @classmethod
    def self_attention(
        cls,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        head: Head | ArrayLike | None = None,
        mask: ArrayLike | None = None,
        query: int | None = 0,
    ) -> Self:
        """Self-attention: z_i is token number `query`; with query=None every token is a query (K = T)."""
        X = as_tokens(X)
        if query is None:
            return cls.cross(X, X, Y, head, mask)
        return cls.cross(X, X[..., as_count("query", query, 0, X.shape[-2] - 1), :], Y, head, mask)

    @classmethod
    def causal(
        cls,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        head: Head | ArrayLike | None = None,
        Z: ArrayLike | None = None,
    ) -> Self:
        """Causal attention: K = T queries (the tokens unless Z is given), query k sees the tokens 0..k."""
        X = as_tokens(X)
        queries = X if Z is None else as_float("Z", Z, like=X)
        T = X.shape[-2]
        if queries.ndim != X.ndim or queries.shape[-2] != T:
            axes = "(n, K, e)" if X.ndim == 3 else "(B, n, K, e)"
            raise AttsvmError(
                f"Z of causal data must have shape {axes} with K = T = {T}, but got shape {tuple(queries.shape)}."
            )
        mask = X.new_ones((T, T), dtype=torch.bool).tril().expand(*X.shape[:-1], T)
        return cls.cross(X, queries, Y, head, mask)

    @classmethod
    def cls(
        cls,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        head: Head | ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Self:
        """The ⟨cls⟩ model: e = 1 and z = 1, so that W (d, 1) is the vector p."""
        X = as_tokens(X)
        return cls.cross(X, X.new_ones((*X.shape[:-2], 1)), Y, head, mask)

    @classmethod
    def from_attention(
        cls, module: torch.nn.Module, hidden_states: Tensor, head: int = 0, *, space: str = "tokens", **inputs: Any
    ) -> tuple[Self, Tensor]:
        """Data and W of one head of a module of torch, Hugging Face, timm or your own: logits(W) are the module's.

        hidden_states (n, T, d) are what the module is called with; `inputs` are more arguments of its call. In the
        space of the tokens, X and Z are what the linear maps to keys and queries read, with a last coordinate 1 if the
        maps have biases. Rotated or normalised queries have no W there: in the space of the head X are its keys, Z its
        queries, both as they enter the product, and W is a multiple of the identity.
        """
        X, Z, mask, W = head_parts(module, hidden_states, head, space, inputs)
        return cls.cross(X, Z, mask=mask), W

    @property
    def B(self) -> int:
        return self.X.shape[0]

    @property
    def n(self) -> int:
        return self.X.shape[1]

    @property
    def T(self) -> int:
        return self.X.shape[2]

    @property
    def d(self) -> int:
        return self.X.shape[3]

    @property
    def K(self) -> int:
        return self.Z.shape[2]

    @property
    def e(self) -> int:
        return self.Z.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def device(self) -> torch.device:
        return self.X.device

    def scores(self) -> Tensor:
        """γ_ikt = Y_ik h_k(x_it), shape (B, n, K, T), −inf where masked."""
        if self.head is None:
            raise AttsvmError("scores need a head, but these data have none: give one (v in a file), or name tokens.")
        return (self.Y[..., None] * self.head.of_tokens(self.X)).masked_fill(~self.mask, -torch.inf)

    def optimal_tokens(self) -> Tensor:
        """The allowed token of highest score (the first of equals), long (B, n, K)."""
        return self.scores().argmax(-1)

    def score_gap(self) -> Tensor:
        """min over i, k of best − second best score, shape (B,); inf if no query has a second token."""
        if self.T == 1:
            return self.X.new_full((self.B,), torch.inf)
        best, second = self.scores().topk(2).values.unbind(-1)
        return (best - second).amin((1, 2))

    def logits(self, W: ArrayLike) -> Tensor:
        """x_itᵀ W z_ik for W (d, e) or (B, d, e): shape (B, n, K, T), −inf where masked."""
        W = as_float("W", W, like=self.X)
        check_real("W", W)
        if tuple(W.shape) not in ((self.d, self.e), (self.B, self.d, self.e)):
            raise AttsvmError(
                f"W must have shape (d, e) = {(self.d, self.e)} or (B, d, e) = {(self.B, self.d, self.e)}, "
                f"but got shape {tuple(W.shape)}."
            )
        Wz = torch.einsum("bde,bnke->bnkd", W.expand(self.B, -1, -1), self.Z)
        return torch.einsum("bntd,bnkd->bnkt", self.X, Wz).masked_fill(~self.mask, -torch.inf)

    def attention(self, W: ArrayLike) -> Tensor:
        """softmax(X W z), shape (B, n, K, T), 0 where masked."""
        return self.logits(W).softmax(-1)

    def selected_sets(self, W: ArrayLike, tol: float = 1e-9) -> Tensor:
        """Tokens whose logit is largest up to tol·max(1, |largest logit|), boolean (B, n, K, T)."""
        tol, logits = as_real("tol", tol, least=0), self.logits(W)
        top = logits.amax(-1, keepdim=True)
        return (logits >= top - tol * top.abs().clamp(min=1)) & self.mask

    def check_tokens(self, tokens: ArrayLike) -> Tensor:
        """Allowed token indices as long (B, n, K), from (n, K) or (B, n, K), if K = 1 also (n,) or (B, n)."""
        index = as_index("tokens", tokens).to(self.device)
        B, n, K = self.B, self.n, self.K
        shapes = {(n, K): (1, n, K), (B, n, K): (B, n, K)}
        if K == 1:
            shapes |= {(n,): (1, n, 1), (B, n): (B, n, 1)}
        if tuple(index.shape) not in shapes:
            expected = f"(n, K) = {(n, K)} or (B, n, K) = {(B, n, K)}"
            raise AttsvmError(f"tokens must have shape {expected}, but got shape {tuple(index.shape)}.")
        index = index.reshape(shapes[tuple(index.shape)]).expand(B, n, K)
        outside = index[(index < 0) | (index >= self.T)]
        if len(outside):
            raise AttsvmError(f"tokens must be in 0..{self.T - 1}, but got {outside[0].item()}.")
        hidden = (~self.mask.gather(-1, index[..., None])[..., 0]).nonzero()
        if len(hidden):
            b, i, k = hidden[0].tolist()
            raise AttsvmError(
                f"tokens must be allowed by the mask, but token {index[b, i, k].item()} is masked for "
                f"query {k} of sample {i} in trial {b}."
            )
        return index.contiguous()

    def __len__(self) -> int:
        return self.B

    def __getitem__(self, trials: int | slice | Sequence[int] | np.ndarray | Tensor) -> Self:
        """Some of the trials, by number, slice, list or boolean mask; the trial axis stays."""
        chosen = as_trials(trials, self.B)
        # Slices that go up torch takes without a copy.
        index = trials if isinstance(trials, slice) and (trials.step or 1) > 0 else chosen.to(self.device)
        tensors = (tensor[index] for tensor in (self.X, self.Z, self.Y, self.mask))
        head = None if self.head is None else self.head[index]
        return type(self)(*tensors, head=head, trials=self.trials[chosen])

    def __iter__(self) -> Iterator[Self]:
        return (self[b] for b in range(self.B))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; parameters of the head are "head.v" and so on."""
        head = {} if self.head is None else self.head.tensors()
        own = {"X": self.X, "Z": self.Z, "Y": self.Y, "mask": self.mask, "trials": self.trials}
        return own | {f"head.{name}": tensor for name, tensor in head.items()}

    def digest(self) -> str:
        """A fingerprint of all numbers and the kind of head, the same on every device."""
        total = hashlib.sha256(b"" if self.head is None else self.head.name.encode())
        for name, tensor in self.tensors().items():
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same data on another device, or in float32 / float64."""
        if dtype is not None and dtype not in FLOATS:
            raise AttsvmError(f"dtype must be torch.float32 or torch.float64, but got {dtype}.")
        X, Z, Y = (tensor.to(device=device, dtype=dtype) for tensor in (self.X, self.Z, self.Y))
        head = None if self.head is None else self.head.to(device, dtype)
        return type(self)(X, Z, Y, self.mask.to(device=device), head, self.trials)

    @classmethod
    def cat(cls, parts: Sequence["TokenData"]) -> Self:
        """The trials of several data sets of equal sizes, one after the other."""
        if not parts:
            raise AttsvmError("data to be joined must be at least one TokenData, but got an empty list.")
        kinds = {(p.n, p.T, p.d, p.K, p.e, p.dtype, p.device, p.head is None) for p in parts}
        if len(kinds) != 1:
            raise AttsvmError(
                f"data to be joined must agree in everything but B, but got {', '.join(map(repr, parts))}."
            )
        tensors = (torch.cat([getattr(p, name) for p in parts]) for name in ("X", "Z", "Y", "mask"))
        trials = torch.cat([p.trials for p in parts])
        heads = [p.head for p in parts if p.head is not None]
        return cls(*tensors, head=Head.cat(heads) if heads else None, trials=trials)

    def repeats(self) -> Tensor:
        """Tokens that equal an earlier token of their query, boolean (B, n, K, T).

        No W separates two equal tokens. If one of them is selected, the SVM is infeasible, and attention gives both the
        same weight.
        """
        earlier = torch.ones(self.T, self.T, dtype=torch.bool, device=self.device).tril(-1)
        equal = torch.stack([(self.X[:, :, t, None] == self.X).all(-1) for t in range(self.T)], -1) & earlier
        return (equal[:, :, None] & self.mask[:, :, :, None]).any(-1) & self.mask

    def without_repeats(self) -> Self:
        """The same data with `repeats` masked: the first of several equal tokens in a sequence stays."""
        return replace(self, mask=self.mask & ~self.repeats())

    def _repr_html_(self) -> str:
        hidden = int((~self.mask).sum())
        rows = [
            ("trials B", self.B),
            ("samples n", self.n),
            ("tokens T in R^d", f"{self.T} in R^{self.d}"),
            ("queries K in R^e", f"{self.K} in R^{self.e}"),
            ("labels +1", f"{int((self.Y > 0).sum())} of {self.Y.numel()}"),
            ("masked", f"{hidden} of {self.mask.numel()}" if hidden else "nothing"),
            ("head", "none" if self.head is None else repr(self.head)),
            ("numbers", f"{str(self.dtype).removeprefix('torch.')} on {self.device}"),
        ]
        return html_table(rows, caption="TokenData")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in ("B", "n", "T", "d", "K", "e"))
        head = "no" if self.head is None else self.head.name
        return f"TokenData({sizes}, {head} head, {str(self.dtype).removeprefix('torch.')} on {self.device})"
