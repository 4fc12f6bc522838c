"""The audit of a model along its training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attsvm.auditing._audit import Audit, audit, write_heads
from attsvm.auditing._page import write_data_page
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, make_folder


@dataclass(frozen=True, eq=False)
class Steps:
    """One audit per step, the first step first."""

    audits: list[tuple[int, Audit]]

    def rows(self) -> list[dict[str, Any]]:
        """A flat row per step and head."""
        return [{"step": step} | row for step, found in self.audits for row in found.rows()]

    def facts(self) -> dict[str, Any]:
        """What the page draws: by measure and head one value per step, None where there is none."""
        rows, last = self.rows(), self.audits[-1][1]
        words = {"step", "layer", "head", "queries", "one_W", "selecting"}
        names = [name for name in rows[0] if name not in words]
        heads = [(head.layer, head.head) for head in last.heads]
        by_place = {(row["step"], row["layer"], row["head"]): row for row in rows}
        steps = [step for step, _ in self.audits]
        return {
            "model": last.model,
            "steps": steps,
            "heads": [f"{layer}, head {head}" for layer, head in heads],
            "values": {
                name: [[by_place.get((step, *place), {}).get(name) for step in steps] for place in heads]
                for name in names
            },
        }

    def save(self, folder: PathLike) -> None:
        """Write steps.html and steps.parquet, and the files of the last audit."""
        place = make_folder(folder)
        write_heads(place / "steps.parquet", self.rows())
        write_data_page(place / "steps.html", "auditing/steps.html", self.facts())
        self.audits[-1][1].save(place)


def audit_steps(
    models: Iterable[tuple[int, nn.Module]], tokenizer: Any, texts: Sequence[Any], **settings: Any
) -> Steps:
    """Audit a model at several steps of its training, always on the same texts and queries.

    `models` are pairs of step and model; they may be loaded one by one. `settings` are those of `audit`.
    """
    found = []
    for step, model in models:
        try:
            found.append((step, audit(model, tokenizer, texts, **settings)))
        except AttsvmError as error:
            raise AttsvmError(f"step {step}: {error}") from error
    if not found:
        raise AttsvmError("models must have at least one step, but there is none.")
    return Steps(sorted(found, key=lambda pair: pair[0]))
