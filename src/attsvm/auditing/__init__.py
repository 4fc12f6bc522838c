"""An audit of real models: what each head selects, how sure it is, and what may be cut."""

from attsvm.auditing._audit import MEASURES, NORMS, QUANTILES, SUMMARY, Audit, Head, audit
from attsvm.auditing._cut import Cut, HeadCut, certify_change, largest_pruning, pruning, quantisation
from attsvm.auditing._inputs import Document
from attsvm.auditing._load import (
    checkpoints,
    config_of,
    has_config,
    has_tokenizer,
    load_hugging_face,
    load_tokenizer,
    reads_images,
)
from attsvm.auditing._rules import RULES, RuleHead, audit_rule
from attsvm.auditing._steps import Steps, audit_steps

__all__ = [
    "MEASURES",
    "NORMS",
    "QUANTILES",
    "RULES",
    "SUMMARY",
    "Audit",
    "Cut",
    "Document",
    "Head",
    "HeadCut",
    "RuleHead",
    "Steps",
    "audit",
    "audit_rule",
    "audit_steps",
    "certify_change",
    "checkpoints",
    "config_of",
    "has_config",
    "has_tokenizer",
    "largest_pruning",
    "load_hugging_face",
    "load_tokenizer",
    "pruning",
    "quantisation",
    "reads_images",
]
