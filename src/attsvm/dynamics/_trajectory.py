"""What training returns, and its files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_float, as_index, as_real, as_trials
from attsvm.data import ARRAYS, Head, TokenData, from_arrays
from attsvm.dynamics._former import modernized
from attsvm.dynamics._optimizers import as_rule
from attsvm.dynamics._rules import MirrorDescent, Rule
from attsvm.errors import AttsvmError, describe
from attsvm.files import PathLike, read_arrays, under, write_arrays
from attsvm.frames import frame
from attsvm.geometry import Geometry, parse_geometry
from attsvm.named import facts_of, from_facts
from attsvm.objective import Loss, as_loss
from attsvm.pages import html_table
from attsvm.schema import Array, Schema

BLOCKS = {"W": ("W",), "KQ": ("K", "Q"), "joint": ("W", "v")}
"""The trained matrices of every parameterization."""

PLOTTED = {
    "top_weight": "softmax weight of the top token",
    "loss": "training loss",
    "norm": "norm of W",
    "log_rest": "log₁₀ of the weight of all others",
}
"""Records that are numbers of a trial or of its queries, and what they are."""

FOREIGN = {"kind": "unknown"}
"""The start of a run that another program trained."""

SCHEMA = Schema(
    format="attsvm-trajectory/2",
    what="a trajectory",
    arrays={
        **{f"data.{name}": array for name, array in ARRAYS.items()},
        "steps": Array("whole", "R", least=0),
        "records.*": Array("real whole", "R B ...", finite=False),
        "state.*": Array("real", "B ...", finite=False),
        "direction": Array("real", "B d e", optional=True, finite=False),
        "W": Array("real", "B d e", finite=False),
        "tokens": Array("whole", "B n K", least=0),
        "v": Array("real", "B d", optional=True, finite=False),
        "K": Array("real", "B d m", optional=True, finite=False),
        "Q": Array("real", "B e m", optional=True, finite=False),
    },
    facts={
        "head": str,
        "geometry": dict,
        "rule": dict,
        "loss": dict,
        "parameterization": frozenset(BLOCKS),
        "state": {"step": int, "compiled": bool},
        "settings": dict,
    },
)


@dataclass(frozen=True, eq=False)
class TrainState:
    """All that a run needs to resume bit for bit: the steps done, and what the rule keeps for every block.

    `blocks` are by name of the block and of the quantity, (B, …) each. `compiled` says which of the two arithmetics the
    run uses, eager or compiled. `direction` (B, d, e), of runs that end by `stop`, is W/‖W‖_F at the last record before
    `step`.
    """

    step: int
    blocks: dict[str, dict[str, Tensor]]
    compiled: bool = False
    direction: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run of B trials: records at R steps, and where it ended.

    geometry          the norm whose SVM the direction should reach: nuclear for (K, Q)
    steps (R,)        the recorded steps; the last one is the final step
    records           by name, (R, B, …) each
    W (B, d, e)       the final matrix, K Qᵀ for factors
    tokens (B, n, K)  of largest final logit
    v (B, d)          the head of a joint run, else None
    factors           K (B, d, m) and Q (B, e, m), else None
    state             from which `train` resumes
    settings          the other options of `train` as plain data: steps, lr (by block), init, m, ridge, stop; batch if
                      there were mini-batches, heads if there were factors of several heads; digests of what own
                      functions do (loss function, head function, lr function); mixed if the run was resumed with
                      another lr, loss, batch or ridge
    """

    data: TokenData
    geometry: Geometry
    parameterization: str
    rule: Rule
    loss: Loss
    steps: Tensor
    records: dict[str, Tensor]
    W: Tensor
    tokens: Tensor
    v: Tensor | None
    factors: tuple[Tensor, Tensor] | None
    state: TrainState
    settings: dict[str, Any]

    @classmethod
    def of(
        cls,
        data: TokenData,
        W: Any,
        geometry: Geometry | str | float = "l2",
        parameterization: str = "W",
        *,
        steps: Any = None,
        v: Any = None,
        records: Mapping[str, Any] | None = None,
        rule: Rule | str | None = None,
        loss: Any = "logistic",
        lr: float | None = None,
    ) -> Trajectory:
        """A run that another program trained, for `verdict`: W (B, d, e) at its end, or (R, B, d, e) at `steps` (R,).

        `geometry` is the norm of the limit that it should reach; `rule` is what trained it, if that is known. `records`
        may add quantities along the run (see QUANTITIES). `lr` is its step size, if that was one number. `v` (B, d) is
        the head of a joint run.
        """
        if parameterization not in BLOCKS:
            raise AttsvmError(f"parameterization must be one of {', '.join(BLOCKS)}, but got {parameterization!r}.")
        if not isinstance(data, TokenData):
            raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")
        geometry = parse_geometry(geometry)
        path = as_float("W", W, like=data.X)
        path = path if path.ndim == 4 else path[None]
        if path.shape[1:] != (data.B, data.d, data.e) or not len(path):
            raise AttsvmError(
                f"W must have shape (B, d, e) = {(data.B, data.d, data.e)}, or one more axis for the steps before it, "
                f"but got shape {tuple(path.shape)}."
            )
        at = as_index("steps", range(len(path)) if steps is None else steps).reshape(-1)
        if len(at) != len(path) or bool((at.diff() <= 0).any()) or bool((at < 0).any()):
            raise AttsvmError(f"steps must be {len(path)} ascending numbers, one for each W, but got {steps}.")
        if (v is None) != (parameterization != "joint"):
            raise AttsvmError("v must be given for a joint run, and for no other.")
        finite = torch.where(path[-1].isfinite(), path[-1], 0.0)
        kind = {"kind": "unknown"} if lr is None else {"kind": "constant", "eta": as_real("lr", lr, least=0)}
        rest = dict.fromkeys(("m", "stop")) | {"ridge": 0.0, "init": FOREIGN}
        rest |= {"rule": "unknown"} if rule is None else {}
        given = {name: as_float(name, x, like=data.X) for name, x in (records or {}).items()}
        for name, x in given.items():
            if tuple(x.shape[:2]) != path.shape[:2]:
                raise AttsvmError(
                    f"{name} must begin with the axes (R, B) = {tuple(path.shape[:2])} of W, not {tuple(x.shape)}."
                )
        return cls(
            data=data,
            geometry=geometry,
            parameterization=parameterization,
            rule=MirrorDescent(geometry) if rule is None else as_rule(rule),
            loss=as_loss(loss),
            steps=at,
            records={"W": path, "norm": geometry.norm(path)} | given,
            W=path[-1],
            tokens=data.logits(finite).argmax(-1),
            v=None if v is None else as_float("v", v, like=data.X),
            factors=None,
            state=TrainState(int(at[-1]), {}),
            settings={"steps": int(at[-1]), "lr": dict.fromkeys(BLOCKS[parameterization], kind)} | rest,
        )

    @property
    def normalized(self) -> bool:
        """Is the size of a step independent of the gradient's?"""
        return bool(getattr(self.rule, "normalize", True))

    @property
    def rule_known(self) -> bool:
        """Is it known what trained the weights?"""
        return self.settings.get("rule") != "unknown"

    @property
    def constant_lr(self) -> float | None:
        """The step size, if it is one number for all blocks and steps of a run that kept its settings."""
        if self.settings.get("mixed"):
            return None
        rates = {rate.get("eta") if rate["kind"] == "constant" else None for rate in self.settings["lr"].values()}
        return rates.pop() if len(rates) == 1 else None

    @property
    def mini_batches(self) -> dict[str, Any] | None:
        """The setting `batch`, unless every step sees all samples once."""
        batch = self.settings.get("batch")
        return None if batch is None or (not batch["replace"] and batch["size"] == self.data.n) else batch

    @property
    def starts_at_zero(self) -> Tensor:
        """Is W(0) = 0? (B,); from the records at step 0, else from the settings."""
        norm = self.recorded_norm
        if norm is not None and len(self.steps) and int(self.steps[0]) == 0:
            return norm[0] == 0
        return torch.full((len(self),), self.settings["init"]["kind"] == "zero", device=self.W.device)

    @cached_property
    def recorded_W(self) -> tuple[Tensor, Tensor]:
        """Steps (R,) and W (R, B, d, e) where it is known: at the records if they have it, else at the end."""
        W = self.records.get("W")
        if W is None or not len(self.steps):
            return self.steps.new_tensor([self.state.step]), self.W[None]
        return self.steps, W

    @cached_property
    def recorded_norm(self) -> Tensor | None:
        """‖W‖ (R, B) at the recorded steps, if it is known."""
        if "norm" in self.records:
            return self.records["norm"]
        return self.geometry.norm(self.records["W"]) if "W" in self.records else None

    def identity(self) -> dict[str, Any]:
        """What the run depends on, as plain data: two runs of one identity differ only in length."""
        return identity(self.data, self.geometry, self.parameterization, self.rule, self.loss, self.settings)

    def save(self, path: PathLike) -> None:
        """Write to a .npz or .safetensors file, whole or not at all."""
        data = self.data
        arrays = _prefixed("data", data.tensors()) | _prefixed("records", self.records)
        for name, block in self.state.blocks.items():
            arrays |= _prefixed(f"state.{name}", block)
        arrays |= {"steps": self.steps, "W": self.W, "tokens": self.tokens}
        arrays |= {} if self.v is None else {"v": self.v}
        arrays |= {} if self.state.direction is None else {"direction": self.state.direction}
        arrays |= {} if self.factors is None else dict(zip("KQ", self.factors))
        facts = {
            "format": SCHEMA.format,
            "head": data.head.name if data.head else "",
            "geometry": facts_of(self.geometry),
            "rule": facts_of(self.rule),
            "loss": facts_of(self.loss),
            "parameterization": self.parameterization,
            "state": {"step": self.state.step, "compiled": self.state.compiled},
            "settings": self.settings,
        }
        write_arrays(path, arrays, facts)

    @classmethod
    def load(
        cls,
        path: PathLike,
        *,
        geometry: Geometry | None = None,
        rule: Rule | None = None,
        loss: Loss | None = None,
        head: Head | None = None,
    ) -> Trajectory:
        """Read what `save` wrote.

        Your own geometries, rules, losses and heads are found by name if their classes are defined. If given here, they
        replace what the file names.
        """
        return cls.load_with_facts(path, geometry, rule, loss, head)[0]

    @classmethod
    def load_with_facts(
        cls,
        path: PathLike,
        geometry: Geometry | None,
        rule: Rule | None,
        loss: Loss | None,
        head: Head | None,
    ) -> tuple[Trajectory, dict[str, Any]]:
        """The run with the given objects, and what the file says of itself."""
        arrays, facts = SCHEMA.check(Path(path), *modernized(path, *read_arrays(path), SCHEMA.format))
        try:
            return cls._from(arrays, facts, geometry, rule, loss, head), facts
        except AttsvmError as error:
            raise AttsvmError(f"{path}: {error}") from error

    @classmethod
    def _from(
        cls,
        arrays: dict[str, Any],
        facts: dict[str, Any],
        geometry: Geometry | None,
        rule: Rule | None,
        loss: Loss | None,
        head: Head | None,
    ) -> Trajectory:
        settings, parameterization = facts["settings"], facts["parameterization"]
        for name in ("steps", "lr", "init", "m", "ridge", "stop"):
            if name not in settings:
                raise AttsvmError(f"settings must have {name}, but they have {', '.join(settings) or 'nothing'}.")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        data = from_arrays(under("data.", arrays), facts["head"], head)
        state = {name: under(f"state.{name}.", tensors) for name in BLOCKS[parameterization]}
        factors = (tensors["K"], tensors["Q"]) if {"K", "Q"} <= tensors.keys() else None
        foreign = settings["init"] == FOREIGN and not any(state.values()) and factors is None
        state = {} if foreign else state
        if not foreign and (not all(state.values()) or (factors is None) != (parameterization != "KQ")):
            raise AttsvmError(f"the arrays must be those of a run that trains {parameterization}, but they are not.")
        if (parameterization == "joint") != ("v" in tensors):
            raise AttsvmError("v must be there in a joint run, and in no other.")
        described = facts["rule"]
        if geometry is not None:  # a rule may hold it, too
            known = facts_of(geometry)
            described = {name: geometry if value == known else value for name, value in described.items()}
        return cls(
            data=data,
            geometry=geometry or from_facts(Geometry, "geometry", facts["geometry"]),
            parameterization=parameterization,
            rule=rule or from_facts(Rule, "rule", described, part=Geometry),
            loss=loss or from_facts(Loss, "loss", facts["loss"], part=Loss),
            steps=tensors["steps"],
            records=under("records.", tensors),
            W=tensors["W"],
            tokens=data.check_tokens(tensors["tokens"]),
            v=tensors.get("v"),
            factors=factors,
            state=TrainState(blocks=state, direction=tensors.get("direction"), **facts["state"]),
            settings=settings,
        )

    def plot(self, quantity: str | None = None, ax: Any = None) -> Any:
        """Draw a recorded quantity over the steps, median and band over trials; returns matplotlib axes.

        The default is the first recorded one of top_weight, loss and norm. For a quantity with one number per query,
        mean and minimum are drawn; log_rest, the logarithm of 1 − top_weight, is drawn in powers of ten.
        """
        from attsvm.plots import draw_curves

        drawable = [name for name in PLOTTED if name in self.records]
        name = quantity or next(iter(drawable), None)
        if name is None or name not in drawable:
            raise AttsvmError(
                f"quantity must be recorded and one of {', '.join(PLOTTED)}, but got {quantity} and records "
                f"{', '.join(self.records) or 'none'}."
            )
        values = self.records[name]
        curves = {name: values}
        if values.ndim > 2:
            values = values.flatten(2) / (math.log(10) if name == "log_rest" else 1)
            worst = values.amax(2) if name == "log_rest" else values.amin(2)
            curves = {"mean over queries": values.mean(2), "least certain query": worst}
        title = f"{self.parameterization} in {self.geometry.name}, {len(self)} trials"
        return draw_curves(
            ax, self.steps, curves, xlabel="step", ylabel=PLOTTED[name], log=name in ("loss", "norm"), title=title
        )

    def to_dataframe(self) -> Any:
        """One row per recorded step and trial, with the scalar records; of records per query the minimum.

        A pandas data frame if pandas is installed, else a pyarrow table.
        """
        scalars = {
            name: x if x.ndim == 2 else x.flatten(2).amin(2) for name, x in self.records.items() if name in PLOTTED
        }
        R, B = len(self.steps), len(self)
        columns: dict[str, Any] = {
            "step": self.steps.repeat_interleave(B).tolist(),
            "trial": self.data.trials.repeat(R).tolist(),
        }
        return frame(columns | {name: x.reshape(-1).tolist() for name, x in scalars.items()})

    def table(self) -> list[tuple[str, str]]:
        """What the run is, in words."""
        lr = self.constant_lr
        rows = [
            ("data", repr(self.data)),
            ("trains", f"{self.parameterization} by {self.rule}, {self.loss.name} loss"),
            ("limit", f"{self.geometry.name} max-margin solution"),
            ("steps", f"{self.state.step}, {len(self.steps)} recorded"),
            ("step size", f"{lr:g}" if lr is not None else ", ".join(str(x) for x in self.settings["lr"].values())),
            ("records", ", ".join(self.records) or "none"),
        ]
        norm = self.geometry.norm(self.W)
        return [*rows, ("final norm", f"{norm.median().item():.4g} (median)")] if len(self) else rows

    def _repr_html_(self) -> str:
        return html_table(self.table(), caption="Trajectory")

    def __len__(self) -> int:
        return self.data.B

    def __getitem__(self, trials: Any) -> Trajectory:
        """Some of the trials, by number, slice, list or boolean mask; the trial axis stays."""
        data = self.data[trials]
        index = as_trials(trials, len(self)).to(self.W.device)
        state = {name: {key: x[index] for key, x in block.items()} for name, block in self.state.blocks.items()}
        direction = self.state.direction
        return replace(
            self,
            data=data,
            records={name: x[:, index] for name, x in self.records.items()},
            W=self.W[index],
            tokens=self.tokens[index],
            v=None if self.v is None else self.v[index],
            factors=None if self.factors is None else (self.factors[0][index], self.factors[1][index]),
            state=replace(self.state, blocks=state, direction=None if direction is None else direction[index]),
        )

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[b] for b in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"Trajectory({self.parameterization} of {len(self)} trials in {self.geometry.name}, "
            f"{self.state.step} steps, records {', '.join(self.records) or 'none'} at {len(self.steps)} steps)"
        )


def identity(
    data: TokenData, geometry: Geometry, parameterization: str, rule: Rule, loss: Loss, settings: dict[str, Any]
) -> dict[str, Any]:
    """See `Trajectory.identity`."""
    facts = {name: facts_of(thing) for name, thing in (("geometry", geometry), ("rule", rule), ("loss", loss))}
    free = {name: value for name, value in settings.items() if name != "steps"}
    return {"data": data.digest(), "parameterization": parameterization} | facts | free


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
