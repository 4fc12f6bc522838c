"""Train attention for a batch of trials and record what happens."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real, describe
from attsvm.data import TokenData
from attsvm.dynamics._compile import Stepper, wants_compiled
from attsvm.dynamics._init import Gaussian, Init, Shapes, start
from attsvm.dynamics._losses import Loss, as_loss
from attsvm.dynamics._record import as_record, plan
from attsvm.dynamics._run import Row, Run
from attsvm.dynamics._schedules import Rate, as_schedules
from attsvm.dynamics._step import Rule
from attsvm.dynamics._trajectory import TrainState, Trajectory
from attsvm.errors import AttsvmError
from attsvm.geometry import Frobenius, Geometry, Nuclear, parse_geometry
from attsvm.progress import progress_bar

BLOCKS = {"W": ("W",), "KQ": ("K", "Q"), "joint": ("W", "v")}


@torch.no_grad()
def train(
    data: TokenData,
    geometry: Geometry | str = "l2",
    parameterization: str = "W",
    *,
    steps: int,
    lr: Rate | Mapping[str, Rate] = 0.1,
    normalize: bool = True,
    loss: str | Loss = "logistic",
    init: Init | None = None,
    m: int | None = None,
    ridge: float = 0.0,
    record: Sequence[str] = ("loss", "norm", "top_weight"),
    at: Sequence[int] | int | str = "log",
    stop: float | None = None,
    resume: TrainState | Trajectory | None = None,
    progress: bool = False,
    compile: bool | None = None,
) -> Trajectory:
    """Mirror descent on the attention weights of every trial, exact at any norm.

    The loss is the mean over samples and the sum over queries of ℓ(Y·h(Xᵀ softmax(X W z))). `parameterization`
    says what is trained: "W"; "KQ", factors of width m (min(d, e) if not given) with W = K Qᵀ, by gradient
    descent; "joint", W and a linear head v in place of the data's. The mirror variable θ = ∇ψ(W) is the state: a
    step is θ − η G/‖G‖_*, every block by its own norm, or θ − η G if not `normalize`.

    steps       number of the last step; a resumed run counts on from where it was
    lr          η: a number, a function of the step, a Schedule, or one of them for every block by name
    init        "zero", Gaussian(scale), Near(W), or tensors by name; if None "zero", for (K, Q) Gaussian(0.1)
    ridge       r of a penalty r·(‖W‖_F², or ‖K‖_F² + ‖Q‖_F²), exact down to 1e-300: it holds (K, Q) at a norm of
                about log(1/r) over the margin, where K Qᵀ turns to the nuclear solution; without it the margin
                closes in like 1/log(step) only
    record, at  what to record (names in QUANTITIES) and when: "log" spaced, every so many steps, or given steps
    stop        end when no trial's W/‖W‖_F has moved by this much since the last record
    resume      go on from there, with the same bits as a run that was not interrupted; `init` plays no part
    compile     a compiled step, about 3 times as fast; if None when the run is long and a compiler is there

    A trial's result does not depend on the others, except through `stop`. A trial whose numbers leave the range
    of the dtype (unnormalised steps that are too large) comes back as nan.
    """
    steps = as_count("steps", steps, least=0)
    names = _block_names(data, parameterization)
    limit, geometry = _geometries(geometry, parameterization)
    schedules = as_schedules(lr, names)
    grows = any(schedule.grows for schedule in schedules.values())
    rule = Rule(geometry, as_loss(loss), bool(normalize), grows, as_real("ridge", ridge, least=0))
    shapes = _shapes(data, names, m)
    record = as_record(record, names)
    tolerance = None if stop is None else as_real("stop", stop, least=0)

    if resume is None:
        init = init if init is not None else "zero" if parameterization != "KQ" else Gaussian(0.1)
        blocks = start(init, data, limit, shapes)
        theta = {name: geometry.mirror(block) for name, block in blocks.items()}
        state = TrainState(0, theta, wants_compiled(data, steps) if compile is None else bool(compile))
    else:
        if isinstance(resume, Trajectory):
            _check_the_same(resume, data, limit, parameterization)
        state = _resumed(resume, data, shapes, steps)
        state = state if compile is None else TrainState(state.step, state.theta, bool(compile))

    key = (rule, names, m, data.n, data.T, data.d, data.K, data.e, data.B, data.dtype, data.device)
    run = Run(data, rule, schedules, limit, Stepper(state.compiled, (*key, type(data.head))), state)
    planned = plan(at, 0, steps)
    with progress_bar(progress, state.step, steps) as report:
        rows = run.until([k for k in planned if k >= state.step], record, tolerance, report)
    recorded, records = _joined(rows, resume)
    return Trajectory(
        data=data,
        geometry=limit,
        parameterization=parameterization,
        steps=torch.tensor(recorded),
        records=records,
        **run.end(),
        settings={
            "steps": steps,
            "lr": repr(lr),
            "normalize": rule.normalize,
            "loss": rule.loss.name,
            "init": resume.settings["init"] if isinstance(resume, Trajectory) else _describe_init(init),
            "m": shapes["K"][1] if "K" in shapes else None,
            "ridge": rule.ridge,
            "stop": tolerance,
        },
    )


def _joined(rows: list[Row], resume: TrainState | Trajectory | None) -> tuple[list[int], dict[str, Tensor]]:
    """All recorded steps and records, after those of the resumed run.

    Its last step was recorded because it was the last: it goes unless it is planned now.
    """
    names = rows[0][1]
    steps = [step for step, _ in rows]
    records = {name: torch.stack([row[name] for _, row in rows]) for name in names}
    if not isinstance(resume, Trajectory):
        return steps, records
    if set(resume.records) != set(names):
        raise AttsvmError(
            f"record must be what the resumed run recorded, {', '.join(resume.records)}, but got {', '.join(names)}."
        )
    old = resume.steps.tolist()[:-1]
    kept = {name: resume.records[name][: len(old)].to(x) for name, x in records.items()}
    return old + steps, {name: torch.cat([kept[name], x]) for name, x in records.items()}


def _block_names(data: TokenData, parameterization: str) -> tuple[str, ...]:
    if not isinstance(data, TokenData):
        raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")
    if parameterization not in BLOCKS:
        raise AttsvmError(f"parameterization must be one of {', '.join(BLOCKS)}, but got {describe(parameterization)}.")
    if parameterization != "joint" and data.head is None:
        raise AttsvmError("data must have a head unless it is trained (joint), but these have head None.")
    return BLOCKS[parameterization]


def _geometries(geometry: Geometry | str, parameterization: str) -> tuple[Geometry, Geometry]:
    """The geometry of the limit and that of the steps: they differ for (K, Q), nuclear and Frobenius."""
    geometry = parse_geometry(geometry)
    if parameterization != "KQ":
        return geometry, geometry
    if geometry != Frobenius() and not isinstance(geometry, Nuclear):
        raise AttsvmError(
            f'geometry must be "l2" (of the steps) or "nuclear" (of the limit) for (K, Q), but got {geometry!r}.'
        )
    return (geometry if isinstance(geometry, Nuclear) else Nuclear()), Frobenius()


def _shapes(data: TokenData, names: tuple[str, ...], m: int | None) -> Shapes:
    if m is not None and "K" not in names:
        raise AttsvmError("m is the width of K and Q: give it with parameterization KQ only.")
    width = min(data.d, data.e) if m is None else as_count("m", m)
    shapes = {"W": (data.d, data.e), "K": (data.d, width), "Q": (data.e, width), "v": (data.d, 1)}
    return {name: shapes[name] for name in names}


def _check_the_same(resume: Trajectory, data: TokenData, geometry: Geometry, parameterization: str) -> None:
    """θ means another W in another geometry, and the records are of the resumed run's data."""
    if (resume.parameterization, resume.geometry) != (parameterization, geometry):
        ran, asked = f"{resume.parameterization}, {resume.geometry.name}", f"{parameterization}, {geometry.name}"
        raise AttsvmError(f"resume must be a run of the same kind, but it trained {ran}, not {asked}.")
    if not resume.data.equals(data):
        raise AttsvmError("resume must be a run on the same data: start from its W by init=Near(W) or tensors instead.")


def _resumed(resume: TrainState | Trajectory, data: TokenData, shapes: Shapes, steps: int) -> TrainState:
    state = resume.state if isinstance(resume, Trajectory) else resume
    if not isinstance(state, TrainState):
        raise AttsvmError(f"resume must be a TrainState or a Trajectory, but got {describe(resume)}.")
    expected = {name: (data.B, *shape) for name, shape in shapes.items()}
    came = {name: tuple(block.shape) for name, block in state.theta.items()}
    if came != expected:
        raise AttsvmError(f"resume must have blocks of shapes {expected}, but got {came}.")
    if state.step > steps:
        raise AttsvmError(f"steps must be at least {state.step}, where the resumed run is, but got {steps}.")
    return TrainState(state.step, {name: x.to(data.X) for name, x in state.theta.items()}, state.compiled)


def _describe_init(init: Init | None) -> str:
    if init is None or isinstance(init, str | Gaussian):
        return repr(init)
    return f"tensors {', '.join(init)}" if isinstance(init, Mapping) else f"Near(norm={init.norm}, angle={init.angle})"
