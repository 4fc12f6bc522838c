"""Small instances as tensors, and how to make a violation simpler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from attsvm.data import LinearHead, TokenData

FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 32.0, 64.0, 100.0, 1000.0)
"""Numbers are multiplied by one of these before they are rounded."""


@dataclass(frozen=True, eq=False)
class Instance:
    """B problems with labels +1 and a linear head: X (B, n, T, d), Z (B, n, e), v (B, d)."""

    X: Tensor
    Z: Tensor
    v: Tensor

    @classmethod
    def draw(
        cls, B: int, n: int, T: int, d: int, e: int, free: tuple[str, ...], entries: int, generator: torch.Generator
    ) -> Instance:
        """Uniform integers between −entries and entries in the free tensors, or Gaussian numbers if entries is 0; 1 in
        a Z that is not free."""
        tensors = {}
        for name, shape in {"X": (B, n, T, d), "Z": (B, n, e), "v": (B, d)}.items():
            if name not in free:
                tensors[name] = torch.ones(shape, dtype=torch.float64)
            elif entries:
                tensors[name] = torch.randint(-entries, entries + 1, shape, generator=generator).double()
            else:
                tensors[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
        return cls(**tensors)

    @classmethod
    def cat(cls, parts: list[Instance]) -> Instance:
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def mutated(self, free: tuple[str, ...], entries: int, generator: torch.Generator) -> Instance:
        """Every problem with about two free entries moved, by 1 or 2 within the bounds or by Gaussian numbers."""
        tensors = {}
        size = sum(getattr(self, name)[0].numel() for name in free)
        for name in ("X", "Z", "v"):
            x = getattr(self, name)
            if name in free:
                chosen = torch.rand(x.shape, generator=generator) < 2 / size
                if entries:
                    by = torch.randint(1, 3, x.shape, generator=generator)
                    by = by * (1 - 2 * torch.randint(0, 2, x.shape, generator=generator))
                    x = torch.where(chosen, x + by, x).clamp(-entries, entries)
                else:
                    by = torch.randn(x.shape, generator=generator, dtype=torch.float64)
                    x = torch.where(chosen, x + by, x)
            tensors[name] = x
        return Instance(**tensors)

    def data(self) -> TokenData:
        return TokenData.cross(self.X, self.Z, head=LinearHead(self.v[:, None]))

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: slice | Tensor) -> Instance:
        return Instance(self.X[index], self.Z[index], self.v[index])

    def size(self) -> tuple[int, ...]:
        """Smaller is simpler: numbers in all, numbers that are not 0, their sum, how many are negative."""
        flat = torch.cat([self.X.flatten(), self.Z.flatten(), self.v.flatten()])
        return len(flat), int((flat != 0).sum()), int(flat.abs().sum().ceil()), int((flat < 0).sum())


def shrink(instance: Instance, violates: Callable[[Instance], Tensor], free: tuple[str, ...] = ("X", "v")) -> Instance:
    """The simplest violation that single changes of one `instance` lead to.

    Numbers that are no integers are first multiplied by the smallest factor with which rounding keeps the violation.
    Then whole sequences, tokens and coordinates are dropped, and entries are set to 0, halved, made smaller by 1 or
    positive. All changes of a kind are judged at once; where several entries may change, as many change together as
    possible.
    """
    instance = _rounded(instance, violates, free)
    while True:
        for candidates in _dropped(instance):
            simpler = _simplest(candidates, instance, violates)
            if simpler is not None:
                instance = simpler
                break
        else:
            simpler = _fewer(instance, violates, free)
            if simpler is None:
                return instance
            instance = simpler


def _rounded(instance: Instance, violates: Callable[[Instance], Tensor], free: tuple[str, ...]) -> Instance:
    tensors = {name: getattr(instance, name) for name in ("X", "Z", "v")}
    if all(torch.equal(tensors[name], tensors[name].round()) for name in free):
        return instance
    rounded = [
        Instance(**{name: (factor * x).round() if name in free else x for name, x in tensors.items()})
        for factor in FACTORS
    ]
    bad = violates(Instance.cat(rounded))
    return rounded[int(bad.int().argmax())] if bool(bad.any()) else instance


def _simplest(
    candidates: list[Instance], instance: Instance, violates: Callable[[Instance], Tensor]
) -> Instance | None:
    simpler = sorted((c for c in candidates if c.size() < instance.size()), key=Instance.size)
    if not simpler:
        return None
    bad = violates(Instance.cat(simpler))
    return simpler[int(bad.int().argmax())] if bool(bad.any()) else None


def _dropped(instance: Instance) -> Iterator[list[Instance]]:
    """Kinds of bold changes; those of a kind have equal shapes."""
    X, Z, v = instance.X, instance.Z, instance.v
    _, n, T, d = X.shape
    if n > 1:
        yield [Instance(_without(X, 1, i), _without(Z, 1, i), v) for i in range(n)]
    if T > 2:
        yield [Instance(_without(X, 2, t), Z, v) for t in range(T)]
    if d > 1:
        yield [Instance(_without(X, 3, k), Z, _without(v, 1, k)) for k in range(d)]
    if Z.shape[-1] > 1:
        yield [Instance(X, _without(Z, 2, k), v) for k in range(Z.shape[-1])]
    # Softmax and score differences do not change with the origin of a sequence: let a token be there.
    moved = []
    for choice in range(T**n) if T**n <= 64 else ():
        origin = torch.tensor([choice // T**i % T for i in range(n)])
        moved.append(Instance(X - X[:, torch.arange(n), origin][:, :, None], Z, v))
    yield moved


Change = tuple[str, int, float]
"""Tensor, place in it, new value."""


def _fewer(instance: Instance, violates: Callable[[Instance], Tensor], free: tuple[str, ...]) -> Instance | None:
    """Entries made simpler: the longest list of single changes that, made one after the other, still violates."""
    changes: list[Change] = []
    for name in free:
        for k, value in enumerate(getattr(instance, name).flatten().tolist()):
            closer = value - math.copysign(min(1.0, abs(value)), value)
            simpler = dict.fromkeys((0.0, float(math.trunc(value / 2)), closer, abs(value)))
            changes += [(name, k, new) for new in simpler if new != value]
    if not changes:
        return None
    bad = violates(Instance.cat([_changed(instance, [change]) for change in changes])).tolist()
    good: dict[tuple[str, int], Change] = {}
    for change, fails in zip(changes, bad):
        if fails:
            good.setdefault(change[:2], change)  # the boldest of an entry comes first
    if not good:
        return None
    order = sorted(good.values(), key=lambda change: _changed(instance, [change]).size())
    several = [_changed(instance, order[: k + 1]) for k in range(len(order))]
    together = violates(Instance.cat(several)).tolist()
    return several[max(k for k, fails in enumerate(together) if fails or k == 0)]


def _changed(instance: Instance, changes: list[Change]) -> Instance:
    tensors = {"X": instance.X.clone(), "Z": instance.Z.clone(), "v": instance.v.clone()}
    for name, k, value in changes:
        tensors[name].view(-1)[k] = value
    return Instance(**tensors)


def _without(x: Tensor, axis: int, index: int) -> Tensor:
    kept = [k for k in range(x.shape[axis]) if k != index]
    return x.index_select(axis, torch.tensor(kept))
