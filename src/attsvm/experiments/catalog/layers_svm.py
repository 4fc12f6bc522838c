"""Two attention layers with residual connections: the SVM of each layer on the tokens that it sees at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.data import TokenData, sphere
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Gaussian
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, median, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.experiments._two_layers import TwoLayers, saturated
from attsvm.svm import att_svm, solve

SIZES = {"4, 5, 10": (4, 5, 10), "6, 6, 16": (6, 6, 16)}
NOTHING, MLP = "nothing", "MLP"
RECORDED = [30, 60, 100, 200, 400, 800]


def _step(W: Tensor, G: Tensor, k: int) -> Tensor:
    """A normalised step of gradient descent that grows with the norm, as `Growing` does."""
    size = torch.linalg.matrix_norm(W, keepdim=True)
    return W - (4 * size / k).clamp(min=0.1) * G / torch.linalg.matrix_norm(G, keepdim=True)


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(*SIZES[params["size"]], trials=trials, seed=0).to(device)
    model = TwoLayers.of(data, mlp=params["between"] == MLP)
    shapes = {"W1": (data.d, data.d), "W2": (data.d, data.d)}
    start = Gaussian(params["scale"]).draw(data.trials, shapes)
    W1, W2 = (start[name].to(data.X) for name in shapes)
    settled = torch.zeros(len(data.X), dtype=torch.bool)
    errors: dict[str, list[Tensor]] = {"layer1": [], "layer2": [], "layer1_all": []}
    for k in range(1, max(RECORDED) + 1):
        (G1, _), (G2, _) = model.gradients(W1, W2)
        W1, W2 = _step(W1, G1, k), _step(W2, G2, k)
        if k in RECORDED:
            (read, seen), (above, chosen) = model.attentions(W1, W2)
            whole = TokenData.cross(data.X, data.X)
            errors["layer2"].append(_error(above, chosen, W2))
            errors["layer1"].append(_error(read, seen, W1))
            errors["layer1_all"].append(_error(whole, whole.logits(W1).argmax(-1), W1))
            settled = saturated(read, W1)
    columns = {name: curves(torch.stack(values)) for name, values in errors.items()}
    return columns | {
        "steps": steps_of(torch.tensor(RECORDED), trials),
        "saturated": array(settled),
        "norm1": array(torch.linalg.matrix_norm(W1)),
        "norm2": array(torch.linalg.matrix_norm(W2)),
    }


def _error(data: TokenData, tokens: Tensor, W: Tensor) -> Tensor:
    """1 − correlation of W with the SVM of these tokens, NaN where there is none."""
    solution = solve(att_svm(data, tokens), "l2")
    return torch.where(solution.solved, misalignment(W, torch.nan_to_num(solution.W)), torch.nan)


def figure(rows: Rows) -> Figure:
    cells = [(size, between) for between in rows.values("between") for size in rows.values("size")]
    figure, axes = new_figure(1, len(cells), (4.2 * len(cells), 3.6))
    labels = {
        "layer2": "layer 2, its own SVM",
        "layer1": "layer 1, SVM of the queries that layer 2 reads",
        "layer1_all": "layer 1, SVM of all queries",
    }
    for ax, (size, between) in zip(axes[0], cells):
        cell = rows.where(size=size, between=between)
        keep = cell["saturated"].astype(bool)
        for k, (name, label) in enumerate(labels.items()):
            band(ax, cell["steps"][0], cell[name][keep], SERIES[k], label, spread="quantiles", markers=True)
        ax.set(xscale="log", yscale="log", xlabel="step", ylabel="1 − correlation")
        ax.set_title(f"n, T, d = {size}" + (", MLP between" if between == MLP else ""))
        ax.set_xticks(RECORDED, [str(k) for k in RECORDED])
        ax.set_xticks([], minor=True)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for size in rows.values("size"):
        for between in rows.values("between"):
            cell, case = rows.where(size=size, between=between), f"n, T, d = {size}"
            keep = cell["saturated"].astype(bool)
            case += "" if between == NOTHING else ", MLP between, first layer saturated"
            last = {name: median(cell[name][keep, -1]) for name in ("layer1", "layer2", "layer1_all")}
            words = f"{case}: median 1 − correlation of layer 2 with its SVM"
            found.append(at_most(words, last["layer2"], 0.01, "the SVM of the tokens that it sees at the end"))
            words = f"{case}: median 1 − correlation of layer 1 with the SVM of the queries that layer 2 reads"
            found.append(at_most(words, last["layer1"], 0.02, "only what is read is trained"))
            words = f"{case}: the same with the SVM of all queries of layer 1"
            found.append(at_least(words, last["layer1_all"], 0.1, "not that of all queries"))
            words = f"n, T, d = {size}, {between} between: share of trials in which layer 1 does not saturate"
            if between == NOTHING:
                found.append(at_most(words, float(1 - keep.mean()), 0.05, "one token is best"))
            else:
                found.append(at_least(words, float(1 - keep.mean()), 0.2, "a mean of tokens may be best"))
    return found


EXPERIMENT = Experiment(
    id="layers-svm",
    title="Two layers: the SVM of what is seen, and of what is read",
    statement="Two attention layers with residual connections, trained together by normalised gradient descent: the "
    "second goes to the attention SVM of the tokens that it sees at the end. The first comes close to the SVM of those "
    "queries whose outputs the second reads, and not of all its queries: the median correlation levels off at "
    "0.997 to 0.999. With a ReLU MLP of fixed weights between them the same holds where the first layer saturates; in "
    "about half of the trials it does not, but keeps mixing tokens: above an MLP a mean of tokens may serve better "
    "than any one of them, and then no SVM describes the first layer. Not proved; measured here.",
    grid={"size": list(SIZES), "between": [NOTHING, MLP], "scale": [0.0, 0.3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    cost=lambda params: 0.4,
    remark="x¹ = x + ½ Σ s x in the first layer, Σ s x¹ in the second, then a fixed linear head. Gradients are exact "
    "however far both layers have saturated. With a weight of 1 instead of ½ two tokens that attend to each other turn "
    "equal, and nothing separates them any more. Queries that are not read still pull on the first layer, the less the "
    "larger the second's margin; whether this is what keeps it off its SVM was not tested.",
)
