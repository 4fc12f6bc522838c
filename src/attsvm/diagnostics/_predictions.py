"""What Section 6 of TF-as-SVM predicts of a trained W that composes several tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics._selection import SelectedSets, selected_sets, selected_tokens
from attsvm.geometry import Frobenius, Geometry, parse_geometry
from attsvm.svm import MaxMargin, att_svm, finite_part, gen_svm, solve
from attsvm.tolerances import MASKED, SELECTED


@dataclass(frozen=True, eq=False)
class Predictions:
    """The sets that W selects and four predictions of its direction, (B, d, e) each.

    W_mm        solution of (Gen-SVM): equal logits inside the selected sets, margin 1 to the others
    W_fin       smallest W with the selected tokens' softmax ratios
    W_svmeq     W_fin + γ W_mm/‖W_mm‖_F of largest correlation with W, as a unit vector
    W_1token    solution of (Att-SVM) for the heaviest token of each query
    gamma (B,)  the γ ≥ 0 of W_svmeq; +∞ where W_mm alone is best, as it is where all sets are single tokens

    NaN where the problem behind it is infeasible; W_svmeq is then W_fin alone.
    """

    sets: SelectedSets
    W_mm: Tensor
    W_fin: Tensor
    W_svmeq: Tensor
    W_1token: Tensor
    gamma: Tensor
    solution: MaxMargin


def predictions(
    data: TokenData,
    W: Tensor,
    geometry: Geometry | str = "l2",
    *,
    selected: float = SELECTED,
    masked: float = MASKED,
) -> Predictions:
    """W_mm, W_fin, W_svmeq and W_1token for a trained W (B, d, e)."""
    geometry = parse_geometry(geometry)
    weights = data.attention(W)
    sets = selected_sets(weights, selected, masked, data.mask)
    general = solve(gen_svm(data, sets.selected), geometry)
    finite = solve(finite_part(data, weights, sets.selected), geometry)
    one = solve(att_svm(data, selected_tokens(data, W)), geometry)
    W_svmeq, gamma = best_combination(W, finite.W, general.W)
    return Predictions(sets, general.W, finite.W, W_svmeq, one.W, gamma, general)


def best_combination(W: Tensor, W_fin: Tensor, W_mm: Tensor) -> tuple[Tensor, Tensor]:
    """The unit vector along W_fin + γ W_mm/‖W_mm‖_F, γ ≥ 0, of largest correlation with W; and γ.

    As γ grows the direction sweeps the arc from W_fin to W_mm. The best point is the projection of W on their plane
    if that lies on the arc, and the better end of the arc if not. NaN or zero in place of one leaves the other.
    """
    F, M = torch.nan_to_num(W_fin), Frobenius().unit(torch.nan_to_num(W_mm))
    F_unit = Frobenius().unit(F)
    f, a, b, c = (_dot(*pair) for pair in ((F_unit, F), (W, F_unit), (W, M), (F_unit, M)))
    # W's projection is (x F_unit + y M)/(1 − c²); on the arc both coefficients are positive.
    x, y = a - c * b, b - c * a
    inside = (x > 0) & (y > 0)
    # Scaled to coefficient ‖W_fin‖ = f of F_unit, that of M is γ.
    gamma = torch.where(inside, f * y / torch.where(inside, x, 1.0), torch.where((f > 0) & (a > b), 0.0, torch.inf))
    direction = torch.where(inside, x, (gamma == 0).to(x.dtype))[:, None, None] * F_unit
    direction = direction + torch.where(inside, y, (gamma == torch.inf).to(y.dtype))[:, None, None] * M
    unit = Frobenius().unit(direction)
    empty = (unit == 0).flatten(1).all(1)
    return torch.where(empty[:, None, None], torch.nan, unit), torch.where(empty, torch.nan, gamma)


def _dot(A: Tensor, B: Any) -> Tensor:
    return (A * B).sum((1, 2))
