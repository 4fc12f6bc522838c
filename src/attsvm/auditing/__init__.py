"""An audit of real models: what each head selects, how sure it is, and what may be cut."""

from attsvm.auditing._audit import MEASURES, NORMS, QUANTILES, Audit, Head, audit
from attsvm.auditing._cut import Cut, HeadCut, certify_change, largest_pruning, pruning, quantisation
from attsvm.auditing._rules import RULES, RuleHead, audit_rule

__all__ = [
    "MEASURES",
    "NORMS",
    "QUANTILES",
    "RULES",
    "Audit",
    "Cut",
    "Head",
    "HeadCut",
    "RuleHead",
    "audit",
    "audit_rule",
    "certify_change",
    "largest_pruning",
    "pruning",
    "quantisation",
]
