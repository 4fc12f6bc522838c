"""What training returns, and its files."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.data._heads import HEADS
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, read_arrays, write_arrays
from attsvm.geometry import Geometry, Nuclear, parse_geometry

FORMAT = "attsvm-trajectory/1"


@dataclass(frozen=True, eq=False)
class TrainState:
    """All that a run needs to go on with the same bits: steps done, mirror variables (B, rows, columns) by name.

    `compiled` says which of the two arithmetics, eager or compiled, the run uses.
    """

    step: int
    theta: dict[str, Tensor]
    compiled: bool = False

    def save(self, path: PathLike) -> None:
        write_arrays(path, *self._contents())

    @classmethod
    def load(cls, path: PathLike) -> "TrainState":
        return cls._from(*read_arrays(path), path)

    def _contents(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        facts = {"step": self.step, "compiled": self.compiled}
        return _prefixed("theta", self.theta), {"state": json.dumps(facts)}

    @classmethod
    def _from(cls, arrays: dict[str, Any], strings: dict[str, str], path: PathLike) -> "TrainState":
        if "state" not in strings:
            raise AttsvmError(f"{path} must hold a state of training, but it has none.")
        return cls(theta=_unprefixed("theta", arrays), **json.loads(strings["state"]))


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run of B trials: records at R steps, and where it ended.

    `steps` (R,) are the recorded steps, the last one is the final step. `records` by name, (R, B, …) each.
    `geometry` is the one whose SVM the direction should meet: nuclear for (K, Q). `W` (B, d, e) is the final
    (combined) matrix, `tokens` (B, n, K) the tokens of largest final logit, `v` (B, d) the head of a joint run,
    `factors` K (B, d, m) and Q (B, e, m), each None where there is none. `state` resumes the run.
    """

    data: TokenData
    geometry: Geometry
    parameterization: str
    steps: Tensor
    records: dict[str, Tensor]
    W: Tensor
    tokens: Tensor
    v: Tensor | None
    factors: tuple[Tensor, Tensor] | None
    state: TrainState
    settings: dict[str, Any]

    def save(self, path: PathLike) -> None:
        """Write to a .npz or .safetensors file, whole or not at all."""
        state, strings = self.state._contents()
        data = self.data
        arrays = _prefixed("data", data.tensors()) | _prefixed("records", self.records) | state
        arrays |= {"steps": self.steps, "W": self.W, "tokens": self.tokens}
        arrays |= {} if self.v is None else {"v": self.v}
        arrays |= {} if self.factors is None else dict(zip("KQ", self.factors))
        strings |= {
            "format": FORMAT,
            "head": data.head.name if data.head else "",
            "geometry": self.geometry.name,
            "beta": repr(self.geometry.beta) if isinstance(self.geometry, Nuclear) else "",
            "parameterization": self.parameterization,
            "settings": json.dumps(self.settings),
        }
        write_arrays(path, arrays, strings)

    @classmethod
    def load(cls, path: PathLike) -> "Trajectory":
        """Read what `save` wrote."""
        arrays, strings = read_arrays(path)
        if strings.get("format") != FORMAT:
            raise AttsvmError(f"{path} must hold a trajectory ({FORMAT}), but it does not.")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        data = _unprefixed("data", arrays)
        head = _unprefixed("head", data)
        kind = strings["head"]
        beta = strings["beta"]
        return cls(
            data=TokenData(
                *(data[name] for name in ("X", "Z", "Y", "mask")), head=HEADS[kind](**head) if kind else None
            ),
            geometry=Nuclear(float(beta)) if beta else parse_geometry(strings["geometry"]),
            parameterization=strings["parameterization"],
            steps=tensors["steps"],
            records=_unprefixed("records", arrays),
            W=tensors["W"],
            tokens=tensors["tokens"],
            v=tensors.get("v"),
            factors=(tensors["K"], tensors["Q"]) if "K" in tensors else None,
            state=TrainState._from(arrays, strings, path),
            settings=json.loads(strings["settings"]),
        )

    def __len__(self) -> int:
        return self.data.B

    def __repr__(self) -> str:
        return (
            f"Trajectory({self.parameterization} of {len(self)} trials in {self.geometry.name}, "
            f"{self.state.step} steps, records {', '.join(self.records) or 'none'} at {len(self.steps)} steps)"
        )


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _unprefixed(prefix: str, arrays: dict[str, Any]) -> dict[str, Tensor]:
    named = {name.removeprefix(prefix + "."): x for name, x in arrays.items() if name.startswith(prefix + ".")}
    return {name: x if isinstance(x, Tensor) else torch.from_numpy(x) for name, x in named.items()}
