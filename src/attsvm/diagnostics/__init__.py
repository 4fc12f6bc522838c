"""What a training run reached: measures, token selection, cones, assumptions, constants, rates, and the verdict."""

from attsvm.diagnostics._assumptions import (
    Condition,
    assumption_a,
    assumption_b1,
    assumption_b2,
    assumption_c,
    assumption_e,
)
from attsvm.diagnostics._combinatorial import assumption_b_joint, assumption_d
from attsvm.diagnostics._cones import in_C, in_C_mu, in_cone_epsilon, in_cone_mu, in_S, separation
from attsvm.diagnostics._constants import (
    Constants,
    constants,
    excess_loss,
    lipschitz_constant,
    loss_barrier,
    loss_constants,
    radius,
    sufficient_first_step,
)
from attsvm.diagnostics._limits import Evidence, Limit, forgetting_time, outliving, predicted_limit
from attsvm.diagnostics._measures import (
    correlation,
    direction_error,
    directional_bregman,
    has_divergence,
    margin_ratio,
    margins,
    misalignment,
    numerical_rank,
)
from attsvm.diagnostics._predictions import Predictions, best_combination, predictions
from attsvm.diagnostics._rates import PRINTED, PROVED, Rate, fit_rate, theorem_rate
from attsvm.diagnostics._result import HeadVerdict, Verdict
from attsvm.diagnostics._selection import (
    SelectedSets,
    has_unique_optimum,
    is_globally_optimal,
    is_locally_optimal,
    low_high,
    selected_sets,
    selected_tokens,
)
from attsvm.diagnostics._signatures import ADVICE, Signature
from attsvm.diagnostics._theorems import applicability
from attsvm.diagnostics._verdict import verdict

__all__ = [
    "ADVICE",
    "PRINTED",
    "PROVED",
    "Condition",
    "Constants",
    "Evidence",
    "HeadVerdict",
    "Limit",
    "Predictions",
    "Rate",
    "SelectedSets",
    "Signature",
    "Verdict",
    "applicability",
    "assumption_a",
    "assumption_b1",
    "assumption_b2",
    "assumption_b_joint",
    "assumption_c",
    "assumption_d",
    "assumption_e",
    "best_combination",
    "constants",
    "correlation",
    "direction_error",
    "directional_bregman",
    "excess_loss",
    "fit_rate",
    "forgetting_time",
    "has_divergence",
    "has_unique_optimum",
    "in_C",
    "in_C_mu",
    "in_S",
    "in_cone_epsilon",
    "in_cone_mu",
    "is_globally_optimal",
    "is_locally_optimal",
    "lipschitz_constant",
    "loss_barrier",
    "loss_constants",
    "low_high",
    "margin_ratio",
    "margins",
    "misalignment",
    "numerical_rank",
    "outliving",
    "predicted_limit",
    "predictions",
    "radius",
    "selected_sets",
    "selected_tokens",
    "separation",
    "sufficient_first_step",
    "theorem_rate",
    "verdict",
]
