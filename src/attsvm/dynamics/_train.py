"""Train attention for a batch of trials and record what happens."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.data import FunctionHead, TokenData
from attsvm.dynamics._batches import Batches, as_batches
from attsvm.dynamics._compile import Stepper, wants_compiled
from attsvm.dynamics._fingerprint import fingerprints
from attsvm.dynamics._init import Gaussian, Init, Shapes, described, start
from attsvm.dynamics._optimizers import as_rule
from attsvm.dynamics._record import as_record, plan
from attsvm.dynamics._rules import MirrorDescent, Rule, limit_of
from attsvm.dynamics._run import Row, Run, first_states
from attsvm.dynamics._schedules import Rate, as_schedules
from attsvm.dynamics._step import Method, own_head
from attsvm.dynamics._trajectory import BLOCKS, TrainState, Trajectory, identity
from attsvm.errors import AttsvmError, describe
from attsvm.files import PathLike, as_texts, clear_leftovers, is_file
from attsvm.geometry import Frobenius, Geometry, Nuclear, check_mirror, check_norm, is_own, parse_geometry
from attsvm.identity import check_same_run, flat
from attsvm.interrupts import asked_to_stop
from attsvm.memory import free_bytes
from attsvm.named import facts_of
from attsvm.objective import Loss, as_loss, check_loss
from attsvm.progress import progress_bar

CHECKPOINT_SECONDS = 15.0
"""How much work a killed run may lose."""

_WITHOUT_MIRROR = {
    "l1": "take 1 < p < inf, for example l1.1",
    "linf": 'step by rule="sign" (--rule sign), or take 1 < p < inf, for example l10',
    "spectral": 'step by rule="spectral" (--rule spectral)',
    "schatten1": "take nuclear, which is the same norm",
}
"""What to do instead of mirror descent, by the name of the geometry."""


@torch.no_grad()
def train(
    data: TokenData,
    geometry: Geometry | str | float | None = None,
    parameterization: str = "W",
    *,
    steps: int,
    lr: Rate | Mapping[str, Rate] = 0.1,
    normalize: bool = True,
    rule: Rule | str | None = None,
    loss: Any = "logistic",
    batch: Batches | int | None = None,
    init: Init | None = None,
    m: int | None = None,
    heads: int = 1,
    ridge: float = 0.0,
    record: Sequence[str] | None = None,
    at: Sequence[int] | int | str = "log",
    stop: float | None = None,
    resume: Trajectory | None = None,
    checkpoint: PathLike | None = None,
    progress: bool = False,
    compile: bool | None = None,
) -> Trajectory:
    """Train the attention weights of every trial, exact at any norm: by mirror descent, unless another rule is given.

    The loss is the mean over samples and the sum over queries of ℓ(Y·h(Xᵀ softmax(X W z))). `parameterization` says
    what is trained. "W": the matrix itself. "KQ": factors of width m (min(d, e) if not given) with W = K Qᵀ, by
    gradient descent. "joint": W and a linear head v, which replaces the data's. The mirror variable θ = ∇ψ(W) is the
    state. A step is θ − η G/‖G‖_*, every block by its own norm, or θ − η G if not `normalize`. Without a `geometry` it
    is ℓ2: gradient descent.

    steps       number of the last step; a resumed run continues its count
    lr          η: a number, a function of the step, a Schedule, or one of them for every block by name
    rule        another way to step: "gd", "sign", "spectral", "adam", "rmsprop", "lion", "muon" at usual settings (but
                ε = 0, and Muon's polar factor is exact), or a `Rule` with its own (`Adam(beta2=0.95)`); `geometry` is
                then the norm of the limit, by default what theory predicts for the rule
    loss        the name of a loss, a `Loss`, or a differentiable decreasing function of f = Y·h
    batch       samples per step, a number or `Batches(size, replace, seed)`; None takes all of them. Records are always
                over all samples
    init        "zero", Gaussian(scale), Near(W), or tensors by name; if None "zero", for (K, Q) Gaussian(0.1)
    heads       with "KQ" and data of `several_heads`: every head has its own factors of width m. K is (K_1 … K_H), and
                Q has Q_1 … Q_H in its diagonal blocks
    ridge       r of a penalty r·(‖W‖_F², or ‖K‖_F² + ‖Q‖_F²), exact down to 1e-300: coupled weight decay of 2r, whereas
                a rule's `decay` is decoupled. It holds (K, Q) at a norm of about log(1/r) over the margin, where K Qᵀ
                turns to the nuclear solution. Without it the margin converges only like 1/log(step)
    record, at  what to record (names in QUANTITIES; by default what a verdict with a rate needs) and when: "log"
                spaced, every so many steps, or at given steps
    stop        end when no trial's W/‖W‖_F has moved by this much since the last record
    resume      continue this run, bit for bit as if it had not been interrupted; `init` is ignored. With another lr,
                loss, batch or ridge the run is marked as mixed, and no theorem on one kind of step applies to it
    checkpoint  a .safetensors or .npz file in which the run is kept while it trains. If it holds a run of the same data
                and options, that run is resumed; any other run is refused. Ctrl-C ends the run within seconds and keeps
                it. Your own losses, heads and step sizes are compared by what they do to fixed numbers
    compile     compile the step, about 3 times as fast; by default from 25,000 steps on, if there is a compiler; in
                large batches it pays earlier

    A trial's result does not depend on the others, except through `stop`. On the CPU of one machine it has the same
    bits alone and in a batch of any size, with two exceptions in the last bits. If a trial has more than 131,072
    products n·K·d·max(e, T), a batch of one is multiplied by other routines. And steps that decompose matrices (nuclear
    and Schatten geometries, the rules spectral and muon) may round differently; for Schatten(p) with p > 2 singular
    values that are rounding count more, as σ^(1/(p−1)).

    For p near 1 a step of 0.1 is long: W = θ^(1/(p−1)) changes by a factor, the iteration is chaotic, and a last bit
    grows 10⁸-fold in about 100 steps. At p = 1.1, lr = 0.003 avoids that. A trial whose numbers leave the range of the
    dtype (unnormalised steps that are too large) comes back as NaN.
    """
    steps = as_count("steps", steps, least=0)
    names = block_names(data, parameterization)
    limit, rule = _limit_and_rule(rule, geometry, parameterization, normalize)
    schedules = as_schedules(lr, names)
    grows = any(schedule.grows for schedule in schedules.values())
    method = Method(rule, as_loss(loss), grows, as_real("ridge", ridge, least=0), as_count("heads", heads))
    shapes = block_shapes(data, names, m, heads)
    _check_memory(shapes, data)
    _check_norms(limit, rule, shapes, data)
    check_loss(method.loss, data, trains_head="v" in names)
    planned = plan(at, 0, steps)
    record = as_record(record, names, data, planned)
    init = init if init is not None else "zero" if parameterization != "KQ" else Gaussian(0.1)
    batches = as_batches(batch, data.n)
    settings: dict[str, Any] = {
        "steps": steps,
        "lr": {name: facts_of(schedule) for name, schedule in schedules.items()},
        "init": described(init),
        "m": shapes["K"][1] // heads if "K" in shapes else None,
        "ridge": method.ridge,
        "stop": None if stop is None else as_real("stop", stop, least=0),
    }
    if batches is not None:
        settings["batch"] = facts_of(batches)
    if heads > 1:
        settings["heads"] = heads
    own = fingerprints(data, method.loss, schedules.values())
    settings |= own
    if checkpoint is not None:
        wanted = identity(data, limit, parameterization, rule, method.loss, settings)
        if resume is not None:
            raise AttsvmError("checkpoint resumes what it holds: give it or resume, not both.")
        as_texts(wanted)  # refused now, not at the first checkpoint
        clear_leftovers(checkpoint)
        if is_file(checkpoint):
            head = data.head if isinstance(data.head, FunctionHead) else None
            resume, facts = Trajectory.load_with_facts(checkpoint, limit, rule, method.loss, head)
            named = {name: facts[name] for name in ("geometry", "rule", "loss")}
            check_same_run(checkpoint, own | resume.identity() | named, wanted)  # older files have no digests

    if resume is None:
        blocks = start(init, data, limit, shapes)
        if heads > 1:
            blocks["Q"] = _of_own_heads(blocks["Q"], heads, isinstance(init, Gaussian))
        state = TrainState(
            0,
            first_states(data, rule, blocks),
            wants_compiled(data, method, steps) if compile is None else bool(compile),
        )
    else:
        state = _resumed(resume, data, limit, parameterization, rule, shapes, steps, compile)
        if resume.settings.get("heads", 1) != heads:
            raise AttsvmError(f"resume must be a run of {heads} heads, but it has {resume.settings.get('heads', 1)}.")
        before = own | resume.settings
        if before.get("head function") != own.get("head function"):
            raise AttsvmError("resume must be a run on the same data, but its head is another function.")
        settings["init"] = resume.settings["init"]
        if before.get("mixed") or _decisive(resume.loss, before) != _decisive(method.loss, settings):
            settings["mixed"] = True

    key = (method, names, m, data.n, data.T, data.d, data.K, data.e, data.B, data.dtype, data.device)
    stepper = Stepper(state.compiled, (*key, type(data.head), batches is None))
    run = Run(data, method, schedules, limit, stepper, state, batches)

    def trajectory(rows: list[Row]) -> Trajectory:
        recorded, records = _joined(rows, resume)
        common = {"data": data, "geometry": limit, "parameterization": parameterization, "rule": rule}
        return Trajectory(
            **common, loss=method.loss, steps=torch.tensor(recorded), records=records, settings=settings, **run.end()
        )

    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        if checkpoint is not None:
            trajectory([*run.rows, (run.step, run.measure(record))]).save(checkpoint)
            saved = time.monotonic()

    def pause() -> None:
        asked.obey()
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            save()

    with progress_bar(progress, state.step, steps) as report, asked_to_stop(checkpoint is not None) as asked:
        try:
            run.until([k for k in planned if k >= state.step], record, settings["stop"], report, pause)
            result = trajectory(run.rows)
            if checkpoint is not None:
                result.save(checkpoint)
        except BaseException as end:
            if not isinstance(end, Exception):  # an interrupt, wherever it came from
                run.back()
                save()
            raise
        asked.obey()
    return result


def _decisive(loss: Loss, settings: dict[str, Any]) -> dict[str, Any]:
    """What the theorems ask about and a resumed run may change."""
    names = ("lr", "batch", "ridge", "loss function", "lr function")
    return flat({"loss": facts_of(loss)} | {name: settings.get(name) for name in names})


def _joined(rows: list[Row], resume: Trajectory | None) -> tuple[list[int], dict[str, Tensor]]:
    """All recorded steps and records, after those of the resumed run.

    Its last step was recorded because it was the last: it is dropped unless it is planned now.
    """
    names = rows[0][1]
    steps = [step for step, _ in rows]
    records = {name: torch.stack([row[name] for _, row in rows]) for name in names}
    if resume is None:
        return steps, records
    if set(resume.records) != set(names):
        raise AttsvmError(
            f"record must be what the resumed run recorded, {', '.join(resume.records)}, but got {', '.join(names)}."
        )
    old = resume.steps.tolist()[:-1]
    kept = {name: resume.records[name][: len(old)].to(x) for name, x in records.items()}
    return old + steps, {name: torch.cat([kept[name], x]) for name, x in records.items()}


def block_names(data: TokenData, parameterization: str) -> tuple[str, ...]:
    """The trained matrices, if these data allow them."""
    if not isinstance(data, TokenData):
        raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")
    if parameterization not in BLOCKS:
        raise AttsvmError(f"parameterization must be one of {', '.join(BLOCKS)}, but got {describe(parameterization)}.")
    if parameterization != "joint" and data.head is None:
        raise AttsvmError("data must have a head (v in a file) unless it is trained (joint), but these have none.")
    return BLOCKS[parameterization]


def geometries(geometry: Geometry | str | float, parameterization: str) -> tuple[Geometry, Geometry]:
    """The geometry of the limit and that of the steps: they differ for (K, Q), nuclear and Frobenius."""
    geometry = parse_geometry(geometry)
    if parameterization != "KQ":
        return geometry, geometry
    if geometry != Frobenius() and not isinstance(geometry, Nuclear):
        raise AttsvmError(
            f'geometry must be "l2" (of the steps) or "nuclear" (of the limit) for (K, Q), but got {geometry!r}.'
        )
    return (geometry if isinstance(geometry, Nuclear) else Nuclear()), Frobenius()


def block_shapes(data: TokenData, names: tuple[str, ...], m: int | None, heads: int = 1) -> Shapes:
    """The shapes of the trained matrices, for K and Q of width m, in every head."""
    if m is not None and "K" not in names:
        raise AttsvmError("m is the width of K and Q: give it with parameterization KQ only.")
    if heads > 1 and ("K" not in names or data.e % heads):
        raise AttsvmError(
            f"heads must be 1, or with parameterization KQ a divisor of e = {data.e}, but got {heads}: several heads "
            "of W are trained as one wide W, see several_heads."
        )
    width = heads * (min(data.d, data.e // heads) if m is None else as_count("m", m))
    shapes = {"W": (data.d, data.e), "K": (data.d, width), "Q": (data.e, width), "v": (data.d, 1)}
    return {name: shapes[name] for name in names}


def _of_own_heads(Q: Tensor, heads: int, drawn: bool) -> Tensor:
    """The start of Q with zeros where a head's query would meet the factors of another."""
    own = Q * own_head(Q[0], heads)
    if not (drawn or torch.equal(own, Q)):
        raise AttsvmError(f"init Q must be zero outside of the diagonal blocks of {heads} heads, but it is not.")
    return own


def _limit_and_rule(
    rule: Rule | str | None, geometry: Geometry | str | float | None, parameterization: str, normalize: bool
) -> tuple[Geometry, Rule]:
    """The norm of the predicted limit, and the rule."""
    if rule is None:
        limit, of_steps = geometries("l2" if geometry is None else geometry, parameterization)
        if not (is_own(of_steps) or of_steps.has("mirror", "inverse")):
            advice = _WITHOUT_MIRROR.get(of_steps.name, "step by rule=Steepest(geometry)")
            raise AttsvmError(f"{of_steps.name} has no mirror map for mirror descent: {advice}.")
        of_steps.require("mirror", "inverse", to="be trained in by mirror descent")
        if normalize:
            of_steps.require("dual_norm", to="be trained in by normalised steps")
        return limit, MirrorDescent(of_steps, bool(normalize))
    rule = as_rule(rule)
    if not normalize:
        raise AttsvmError("normalize belongs to the rule where one is given: leave it out here.")
    if geometry is not None:
        return parse_geometry(geometry), rule
    # Nothing is known of factors but what gradient descent does to them.
    return (Nuclear() if parameterization == "KQ" else limit_of(rule) or Frobenius()), rule


def _check_memory(shapes: Shapes, data: TokenData) -> None:
    """Refuse weights that do not fit here three times: before a step, their gradient, and after it."""
    numbers = data.B * sum(math.prod(shape) for shape in shapes.values())
    free, needed = free_bytes(data.device), 3 * data.X.element_size() * numbers
    if free is not None and needed > free:
        sizes = " and ".join(f"{name} of {rows} × {columns}" for name, (rows, columns) in shapes.items())
        raise AttsvmError(
            f"training {sizes} in {data.B} trials takes {needed / 1e9:.3g} GB of memory or more, but "
            f"{free / 1e9:.3g} GB are free: take fewer trials or dimensions, or factors K and Q of a small width."
        )


def _check_norms(limit: Geometry, rule: Rule, shapes: Shapes, data: TokenData) -> None:
    """Refuse a user's geometry, of the limit or of the steps, that is no norm or has no right mirror map."""
    check_norm(limit, (data.d, data.e), data.X, smooth=False)
    of_steps = getattr(rule, "geometry", None)
    if isinstance(of_steps, Geometry):
        for shape in shapes.values():
            check_norm(of_steps, shape, data.X, smooth=not isinstance(rule, MirrorDescent))
            if isinstance(rule, MirrorDescent):
                check_mirror(of_steps, shape, data.X)


def _resumed(
    resume: Trajectory,
    data: TokenData,
    geometry: Geometry,
    parameterization: str,
    rule: Rule,
    shapes: Shapes,
    steps: int,
    compile: bool | None,
) -> TrainState:
    """The state to resume from. Under another rule it would mean other weights; records belong to the run's data."""
    if not isinstance(resume, Trajectory):
        raise AttsvmError(f"resume must be a Trajectory, but got {describe(resume)}.")
    if (resume.parameterization, resume.geometry, resume.rule) != (parameterization, geometry, rule):
        ran, asked = f"{resume.parameterization} by {resume.rule}", f"{parameterization} by {rule}"
        raise AttsvmError(f"resume must be a run of the same kind, but it trained {ran}, not {asked}.")
    if resume.data.digest() != data.digest():
        raise AttsvmError("resume must be a run on the same data: start from its W by init=Near(W) or tensors instead.")
    state = resume.state
    came = {name: tuple(next(iter(block.values())).shape[1:]) for name, block in state.blocks.items()}
    if came != shapes:
        raise AttsvmError(f"resume must have blocks of shapes {shapes}, but got {came}.")
    if state.step > steps:
        raise AttsvmError(f"steps must be at least {state.step}, where the resumed run is, but got {steps}.")
    blocks = {name: {key: x.to(data.X) for key, x in block.items()} for name, block in state.blocks.items()}
    direction = None if state.direction is None else state.direction.to(data.X)
    return TrainState(state.step, blocks, state.compiled if compile is None else bool(compile), direction)
