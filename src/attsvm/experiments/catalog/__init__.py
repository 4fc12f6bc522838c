"""One file an experiment; the file name is the id."""

from importlib import import_module

from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Experiment

MODULES = (
    "svm_fig1",
    "svm_fig2",
    "svm_fig4",
    "svm_fig5",
    "svm_fig6",
    "svm_fig7",
    "svm_fig8",
    "svm_fig9",
    "svm_fig10",
    "svm_fig11",
    "svm_fig12",
    "svm_rp",
    "svm_local_rp",
    "svm_seq",
    "svm_theorems",
    "svm_falsify",
    "svm_conjecture",
    "svm_basins",
    "svm_self",
    "svm_lemmas",
    "svm_rank",
    "md_fig2",
    "md_fig3",
    "md_fig4",
    "md_fig5",
    "md_fig6",
    "md_fig7",
    "md_rp",
    "md_joint_rp",
    "md_rate",
    "md_init",
    "md_cone",
    "md_lemmas",
    "md_table1",
    "md_fig8",
    "md_fig9",
    "md_vit",
    "emb_lemma2",
    "emb_thm5",
    "emb_lemmas",
    "emb_fig1",
    "emb_fig2",
    "emb_fig3",
    "emb_fig4",
)

CATALOG: dict[str, Experiment] = {}
for _name in MODULES:
    _experiment: Experiment = import_module(f"attsvm.experiments.catalog.{_name}").EXPERIMENT
    CATALOG[_experiment.id] = _experiment


def find(ids: list[str]) -> list[Experiment]:
    """Experiments by id, in the order of the catalog; "all" is all of them."""
    unknown = [name for name in ids if name != "all" and name not in CATALOG]
    if unknown:
        raise AttsvmError(f"experiments must be among {', '.join(CATALOG)} or all, but got {', '.join(unknown)}.")
    return [experiment for name, experiment in CATALOG.items() if "all" in ids or name in ids]
