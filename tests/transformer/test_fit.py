"""Training: exact resume, the stopping rule, optimizers, two processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run_script
from two_processes import run_pair
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.transformer import (
    Reached,
    Settings,
    evaluate,
    fit,
    load_model,
    make_model,
    synthetic_sentiment,
    tiny_images,
)

SIZES = {"width": 16, "hidden": 24, "layers": 2, "length": 16}
TEXTS = synthetic_sentiment(48, 20, length=16)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def settings(**changes: Any) -> Settings:
    return Settings(**({"lr": 2e-3, "sizes": SIZES, "batch": 16, "epochs": 3} | changes))


class Killed(Exception):
    pass


def kill_at(step: int, batches: int):
    def report(progress: Reached) -> None:
        if progress.epoch * batches + progress.batch == step:
            raise Killed

    return report


def assert_same(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name


RUNS = {
    "mirror-descent": {},
    "mirror-descent momentum": {"momentum": 0.9},
    "mirror-adam": {"optimizer": "mirror-adam"},
    "mirror-muon": {"optimizer": "mirror-muon", "p": 1.5},
    "adamw": {"optimizer": "adamw"},
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "bf16": {"optimizer": "adam", "bf16": True},
    "mixed": {"grouped": False, "loss": "mean"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_ends_with_the_same_weights(name: str, tmp_path: Path) -> None:
    chosen = settings(**RUNS[name])
    straight = fit(TEXTS, chosen)
    assert len(straight.history) == 3
    for step in (1, 3, 5):  # inside an epoch, at its end, in the next one
        out = tmp_path / str(step)
        with pytest.raises(Killed):  # after a step whose checkpoint is not written: it is taken again
            fit(TEXTS, chosen, out=out, checkpoint_seconds=0, report=kill_at(step, 3))
        resumed = fit(TEXTS, chosen, out=out, checkpoint_seconds=0)
        assert_same(straight.model, resumed.model)
        assert [r["train_loss"] for r in resumed.history] == [r["train_loss"] for r in straight.history]


def test_images_resume_exactly_with_their_random_shifts(tmp_path: Path) -> None:
    data = tiny_images(40, 10)
    chosen = settings(optimizer="mirror-adam", sizes={"width": 12, "hidden": 12, "layers": 2, "heads": 2})
    straight = fit(data, chosen)
    stops = iter([False, False, False, True])
    half = fit(data, chosen, out=tmp_path, stop=lambda: next(stops))
    assert half.stopped == "interrupted"
    assert_same(straight.model, fit(data, chosen, out=tmp_path).model)


def test_a_run_can_go_on_for_longer(tmp_path: Path) -> None:
    short = fit(TEXTS, settings(epochs=1), out=tmp_path)
    assert short.stopped == "epochs"
    assert_same(fit(TEXTS, settings(epochs=2), out=tmp_path).model, fit(TEXTS, settings(epochs=2)).model)


def test_a_run_in_one_line() -> None:
    fitted = fit(TEXTS, settings(epochs=1))
    loss, accuracy = (fitted.history[0][f"test_{name}"] for name in ("loss", "accuracy"))
    reached = f"test loss {loss:.4f}, test accuracy {accuracy:.4f}"
    assert repr(fitted) == f"Fitted(TextTransformer, 1 epoch, stopped: epochs, {reached})"
    never = fit(TEXTS, settings(), stop=lambda: True)
    assert repr(never) == "Fitted(TextTransformer, 0 epochs, stopped: interrupted)"


def test_it_leaves_the_caller_s_random_state() -> None:
    before = torch.get_rng_state()
    fit(TEXTS, settings(epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_the_stopping_rule_and_what_is_learned() -> None:
    data = synthetic_sentiment(256, 64, length=12)
    fitted = fit(data, Settings("adamw", lr=3e-3, sizes=SIZES | {"dropout": 0.0}, batch=16, epochs=40, stop=0.97))
    accuracies = [row["train_accuracy"] for row in fitted.history]
    assert fitted.stopped == "accuracy"
    assert accuracies[-1] >= 0.97 > max(accuracies[:-1])
    assert fitted.history[-1]["test_accuracy"] > 0.9
    measured = evaluate(fitted.model, data.test)
    assert measured == {name: fitted.history[-1][name] for name in measured}


def test_a_sum_is_a_mean_with_a_larger_step() -> None:
    mean = fit(TEXTS, settings(optimizer="sgd", loss="mean", lr=1.6e-1, epochs=1))
    summed = fit(TEXTS, settings(optimizer="sgd", loss="sum", lr=1e-2, epochs=1))
    for x, y in zip(mean.model.parameters(), summed.model.parameters(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize(("mirror", "plain"), [("mirror-descent", "sgd"), ("mirror-adam", "adamw")])
def test_p_equal_to_two_is_the_plain_optimizer(mirror: str, plain: str) -> None:
    a, b = (fit(TEXTS, settings(optimizer=o, p=2.0, lr=1e-3, epochs=1, groups="all")) for o in (mirror, plain))
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_grouped_batches_have_every_row_once_and_little_padding() -> None:
    data = synthetic_sentiment(1000, 10, length=60).train
    n = torch.arange(1000)
    grouped = data.batches(20, torch.Generator().manual_seed(3))
    again = data.batches(20, torch.Generator().manual_seed(3))
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(grouped, again, strict=True))
    mixed = data.batches(20, torch.Generator().manual_seed(3), grouped=False)
    for batches in (grouped, mixed):
        assert torch.equal(torch.cat([batch.rows for batch in batches]).sort().values, n)
        assert sum(batch.work for batch in batches) == data.lengths.sum()
        for batch in batches:
            tokens, places = data.take(batch)
            for row, start, end in zip(batch.rows, places.offsets[:-1], places.offsets[1:]):
                assert torch.equal(tokens[start:end], data.tokens[row, : data.lengths[row]])
            assert batch.sizes.max() <= places.longest < batch.sizes.max() + 16
            halves = [batch.part(k, 2) for k in range(2)]
            assert sum(half.work for half in halves) == batch.work
    computed = [sum(len(batch.rows) * data.take(batch)[1].longest for batch in batches) for batches in (grouped, mixed)]
    assert computed[0] < 1.35 * data.lengths.sum()  # to multiples of 16
    assert computed[1] > 1.6 * data.lengths.sum()


def test_divergence_is_said(tmp_path: Path) -> None:
    assert fit(TEXTS, settings(optimizer="sgd", lr=1e30, epochs=5)).stopped == "diverged"


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    fit(TEXTS, settings(epochs=1), out=tmp_path)
    for changed in (settings(seed=1), settings(sizes=SIZES | {"width": 8}), settings(lr=1e-3)):
        with pytest.raises(AttsvmError, match="holds another run, with"):
            fit(TEXTS, changed, out=tmp_path)
    with pytest.raises(AttsvmError, match="holds another run, with other data"):
        fit(synthetic_sentiment(48, 20, length=16, seed=1), settings(), out=tmp_path)
    with pytest.raises(AttsvmError, match="with groups '', not all"):  # nothing is seen to be nothing
        fit(TEXTS, settings(groups="all"), out=tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no")
    with pytest.raises(AttsvmError, match=r"not a readable .*\. To begin anew, remove .*, or choose another folder\.$"):
        fit(TEXTS, settings(), out=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_cuda_is_said() -> None:
    with pytest.raises(AttsvmError, match="device 'cuda' is not available here: use cpu"):
        fit(TEXTS, settings(), device="cuda")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of mirror-descent, mirror-adam"),
        ({"p": 1.0}, "p must be above 1"),
        ({"loss": "max"}, "loss must be one of sum, mean"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"sizes": {"patch": 3}}, "sizes must be those of TextTransformer"),
        ({"lr": "1e-3"}, "lr must be a number, at least 0, but got str '1e-3'"),
        ({"p": "1.1"}, "p must be a number"),
        ({"momentum": -1}, "momentum must be finite and at least 0"),
        ({"optimizer": "adamw", "weight_decay": -1}, "weight_decay must be finite and at least 0"),
        ({"moments_of": "theta"}, "moments_of must be one of weight, mirror"),
        ({"moments_of": "mirror"}, 'moments_of="mirror" is for mirror-adam on matrices'),
        ({"moments_of": "mirror", "optimizer": "mirror-adam", "groups": "all"}, "a bias of 0 would stay 0"),
        ({"optimizer": "mirror-muon", "groups": "all"}, "a bias of 0 would stay 0"),
        ({"optimizer": "mirror-muon", "p": 3}, "mirror-muon takes p from 1 to 2"),
        ({"scope": "all", "sparsity": 0.5}, "scope must be one of global, relative, layer"),
        ({"scope": "layer"}, "set sparsity as well"),
        ({"optimizer": "mirror-adam", "rest_lr": -1}, "rest_lr must be finite and at least 0"),
        ({"optimizer": "adamw", "rest_lr": 1e-3}, "rest_lr is for mirror optimizers"),
        ({"rest_lr": 1e-3}, 'rest_lr is for mirror optimizers with groups="matrices"'),
        ({"head_lr": -1}, "head_lr must be finite and at least 0"),
        ({"head_lr": 1e-3, "optimizer": "adamw"}, "head_lr is for mirror-muon, but optimizer is adamw"),
        ({"bf16": "no"}, "bf16 must be True or False"),
        ({"sizes": None}, "sizes must map names to numbers"),
        ({"sizes": {"dropout": 2}}, "dropout must be a number between 0 and 1, but got int 2"),
        ({"sizes": {"dropout": "0.1"}}, "dropout must be a number"),
        ({"sizes": {"vocabulary": 3}}, "vocabulary must be at least 54, as in the data, not 3"),
        ({"sizes": {"length": "a"}}, "length must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        make_model(settings(**changes), TEXTS)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"size": 16}, "size must be 8, as in the data, not 16"),
        ({"channels": 1}, "channels must be 3, as in the data, not 1"),
        ({"classes": 2}, "classes must be at least 3, as in the data, not 2"),
        ({"width": "a"}, "width must be a whole number at least 1, but got str 'a'"),
    ],
)
def test_sizes_that_the_images_do_not_have_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        make_model(Settings(sizes=sizes), tiny_images(10, 5))


def test_what_is_no_data_settings_or_device_is_refused() -> None:
    with pytest.raises(AttsvmError, match="data must be what load_data gives, but got str 'synthetic'"):
        fit("synthetic", settings())  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="settings must be Settings"):
        fit(TEXTS, {"lr": 1e-3})  # type: ignore[arg-type]
    for device in ("foo", "meta"):
        with pytest.raises(AttsvmError, match=f"device '{device}' is not available here"):
            fit(TEXTS, settings(), device=device)


SMALL = "layers=1 width=16 hidden=16 length=32 lr=1e-2 batch=8 seed=4"
COMMAND = [
    "transformer",
    "fit",
    "synthetic",
    *(part for pair in SMALL.split() for part in f"--{pair}".split("=")),
    "--quiet",
]


KILLED = """
import os, signal, sys
from functools import partial
import attsvm.transformer
from attsvm.cli import main
from attsvm.transformer import _fit

saves, left = _fit.save_run, int(sys.argv.pop(1))

def save_and_die(*arguments):
    global left
    saves(*arguments)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

_fit.save_run = save_and_die
attsvm.transformer.fit = partial(_fit.fit, checkpoint_seconds=0)
sys.argv[0] = "attsvm"
main()
"""


@pytest.mark.slow
def test_a_process_killed_by_a_signal_resumes_exactly(tmp_path: Path) -> None:
    command = [*COMMAND, "--epochs", "8", "--out"]
    for name, when, status in (("a", 0, 0), ("b", 5, -signal.SIGKILL), ("b", 0, 0)):
        assert run_script(KILLED, str(when), *command, name, cwd=tmp_path).returncode == status
    weights = []
    for name in "ab":
        from attsvm.transformer._checkpoint import read_run

        tensors, described = read_run(tmp_path / name / "checkpoint.safetensors")
        assert described["place"]["epoch"] == 8
        weights.append(tensors)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _worker(rank: int, folder: str) -> None:
    from accelerate import Accelerator

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    still = settings(sizes=SIZES | {"dropout": 0.0}, optimizer="mirror-adam")
    shared = fit(TEXTS, still, accelerator=accelerator)
    dropped = settings(optimizer="mirror-adam")
    straight = fit(TEXTS, dropped, accelerator=accelerator)
    stops = iter([False, False, False, True])
    out = Path(folder) / "half"
    assert fit(TEXTS, dropped, out=out, accelerator=accelerator, stop=lambda: next(stops)).stopped == "interrupted"
    resumed = fit(TEXTS, dropped, out=out, accelerator=accelerator)
    assert_same(straight.model, resumed.model)
    accelerator.wait_for_everyone()
    accuracy = evaluate(load_model(out, best=True), TEXTS.test)["test_accuracy"]
    assert accuracy == max(row["test_accuracy"] for row in straight.history)
    if rank == 0:
        torch.save([shared.model.state_dict(), shared.history], Path(folder) / "shared.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Accelerate's own
def test_two_processes_share_every_batch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run_pair(_worker, str(tmp_path))
    weights, history = torch.load(tmp_path / "shared.pt")
    alone = fit(TEXTS, settings(sizes=SIZES | {"dropout": 0.0}, optimizer="mirror-adam"))
    for name, x in alone.model.state_dict().items():
        torch.testing.assert_close(weights[name], x, rtol=1e-3, atol=1e-4)
    for row, own in zip(history, alone.history, strict=True):
        assert abs(row["train_loss"] - own["train_loss"]) < 1e-4
        assert row["test_accuracy"] == own["test_accuracy"]


def test_a_process_without_rows_has_no_gradient() -> None:
    # The last batch may have fewer rows than there are processes.
    for data in (TEXTS, TEXTS.next_tokens()):
        nothing = data.train.batches(1)[0].part(1, 2)
        model = make_model(settings(sizes=SIZES | {"heads": 2}), data)
        logits, labels, _ = data.train.answers(nothing, model(*data.train.take(nothing)))
        torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
        assert all(weight.grad is not None and (weight.grad == 0).all() for weight in model.parameters())


def test_an_evaluation_that_is_stopped_is_done_again(tmp_path: Path) -> None:
    options = settings(epochs=2)
    whole = fit(TEXTS, options)
    steps = -(-len(TEXTS.train) // options.batch)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(len(asked))
        return len(asked) == steps + 1  # the first batch behind the last step of the epoch

    cut = fit(TEXTS, options, out=tmp_path, stop=stop)
    assert (cut.stopped, cut.history) == ("interrupted", [])
    resumed = fit(TEXTS, options, out=tmp_path)
    assert [row["epoch"] for row in resumed.history] == [1, 2]
    assert [row["test_loss"] for row in resumed.history] == [row["test_loss"] for row in whole.history]
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in whole.history]


def test_ctrl_c_keeps_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attsvm.cli import _transformer, main

    options = "synthetic --layers 1 --width 8 --hidden 8 --lr 1e-3 --epochs 2 --batch 64 --quiet --out"
    straight, cut = ([*options.split(), str(tmp_path / name)] for name in ("straight", "cut"))
    assert CliRunner().invoke(_transformer.app, ["fit", *straight]).exit_code == 0
    seen: list[Reached] = []

    def interrupt(progress: Reached) -> None:
        seen.append(progress)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(_transformer, "_told", lambda *_: interrupt)
        patched.setattr("sys.argv", ["attsvm", "transformer", "fit", *cut])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 130
    assert capsys.readouterr().err == f"Interrupted; the same command resumes the run in {tmp_path / 'cut'}.\n"
    assert (tmp_path / "cut" / "checkpoint.safetensors").is_file()
    assert CliRunner().invoke(_transformer.app, ["fit", *cut]).exit_code == 0
    a, b = (load_model(tmp_path / name).state_dict() for name in ("straight", "cut"))
    assert all(torch.equal(a[name], b[name]) for name in a)
