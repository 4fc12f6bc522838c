"""One file per experiment; the file name is the id."""

from importlib import import_module

from attsvm.errors import AttsvmError, did_you_mean
from attsvm.experiments._experiment import Experiment
from attsvm.experiments._own import load_experiments

MODULES = (
    "map_rules",  # the report opens with the map
    "svm_fig1",
    "svm_fig2",
    "svm_fig3",
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
    "svm_imdb",
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
    "emb_kq",
    "emb_tuples",
    "emb_fig1",
    "emb_fig2",
    "emb_fig3",
    "emb_fig4",
    "emb_imdb_svm",
    "map_adam",
    "map_muon",
    "map_batch",
    "map_decay",
    "map_init",
    "map_p",
    "heads_svm",
    "heads_kq",
    "heads_classes",
    "layers_svm",
    "ntp_classes",
    "ntp_svm",
    "ntp_graph",
    "sparse_gpt",
    "sparse_wikitext",
    "sparse_characters",
    "sparse_vit",
    "sparse_classifier",
    "sparse_cut",
    "sparse_lr",
)

CATALOG: dict[str, Experiment] = {}
for _name in MODULES:
    _experiment: Experiment = import_module(f"attsvm.experiments.catalog.{_name}").EXPERIMENT
    CATALOG[_experiment.id] = _experiment


def find(names: list[str]) -> list[Experiment]:
    """Experiments by id, in the order of the catalog ("all" is all of them), then those of files, "./mine.py"."""
    ids = [name for name in names if not name.endswith(".py")]
    for name in ids:
        if name != "all" and name not in CATALOG:
            hint = did_you_mean(name, ["all", *CATALOG])
            raise AttsvmError(f"{name} is no experiment of the catalog (attsvm reproduce --list) and no .py file{hint}")
    own = [experiment for name in names if name.endswith(".py") for experiment in load_experiments(name)]
    taken = [experiment.id for experiment in own]
    twice = next((name for name in taken if name in CATALOG or taken.count(name) > 1), None)
    if twice is not None:
        raise AttsvmError(f"the id {twice} is taken, in the catalog or by another file: choose another one.")
    return [experiment for name, experiment in CATALOG.items() if "all" in ids or name in ids] + own
