"""Does training go towards the SVMs of its own selections? Transformers, audited on held-out texts as they train.

    python benchmarks/audit_training.py labels imdb.parquet labels.npz
    python benchmarks/audit_training.py run tokens/imdb.npz labels.npz --out rows/

`tokens/imdb.npz` is one of `benchmarks/sparse/corpora.py`: streams of word pieces. A GPT predicts the next piece, with
the protocol and the rates of `results/sparse.md`. The text classifier of the mirror-descent paper reads the same
reviews; its rates are chosen first, by short runs of a seed that is not used again. Some processes train and leave
checkpoints, others audit them. Every line of rows/*.jsonl is a head at a step. At the end two controls are audited
with it, on the same tokens: W_QK turned at random (the same singular values), and W_QK of the start.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.auditing import audit
from attsvm.models import GPT, TextTransformer
from attsvm.optim import MirrorAdam, param_groups

SEPARATOR, CLASS = 102, 101
"""[SEP] and [CLS] of BERT's word pieces."""
OPTIMIZERS = ("adamw", "muon", "mirror-1.1", "mirror-1.5")
GPT_RATES = {"adamw": 1.2e-3, "muon": 3.5e-3, "mirror-1.1": 3e-3, "mirror-1.5": 6e-3}
TEXT_RATES = (3e-4, 1e-3, 3e-3)
"""Of which the best is taken for every optimizer, and for AdamW a third of each."""
NORMS = ("l2", "nuclear", "spectral", "linf")
COLUMNS = ("saturated", "confidence", "entropy", "sink", "margin", "norm", "stable_rank", "selecting", "queries")


@dataclass(frozen=True)
class Size:
    """Models, batches and moments. The last moment is the length of the run."""

    vocabulary: int = 30592
    width: int = 384
    gpt_layers: int = 6
    gpt_heads: int = 6
    text_layers: int = 3
    length: int = 256
    windows: int = 64
    reviews: int = 100
    gpt_moments: tuple[int, ...] = (0, 50, 100, 200, 400, 800, 1808)
    text_moments: tuple[int, ...] = (0, 50, 100, 200, 400, 800, 1500)
    search: int = 400
    audited_windows: int = 32
    audited_reviews: int = 64


SMALL = Size(
    width=32,
    gpt_layers=2,
    gpt_heads=2,
    text_layers=2,
    length=32,
    windows=4,
    reviews=8,
    gpt_moments=(0, 4, 8),
    text_moments=(0, 4, 8),
    search=4,
)


@dataclass(frozen=True)
class Run:
    task: str
    optimizer: str
    seed: int
    lr: float = 0.0


class Reviews:
    """Labelled reviews, cut at `length` tokens, the class token first."""

    def __init__(self, stream: np.ndarray, labels: np.ndarray, length: int, device: str) -> None:
        ends = np.flatnonzero(stream == SEPARATOR)
        starts = np.concatenate([[0], ends[:-1] + 1])
        tokens = np.zeros((len(ends), length), np.int64)
        tokens[:, 0] = CLASS
        lengths = 1 + np.minimum(ends - starts, length - 1)
        for row, start, n in zip(tokens, starts, lengths):
            row[1:n] = stream[start : start + n - 1]
        self.tokens = torch.from_numpy(tokens).to(device)
        self.lengths = torch.from_numpy(lengths).to(device)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def logits(self, model: nn.Module, rows: Tensor) -> Tensor:
        lengths = self.lengths[rows]
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.tokens.is_cuda):
            return model(self.tokens[rows][:, : int(lengths.max())], lengths).float()

    def loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(model, rows), self.labels[rows])


def make_model(run: Run, size: Size) -> nn.Module:
    torch.manual_seed(run.seed)
    if run.task == "gpt":
        return GPT(
            vocabulary=size.vocabulary,
            length=size.length,
            width=size.width,
            layers=size.gpt_layers,
            heads=size.gpt_heads,
        )
    return TextTransformer(
        vocabulary=size.vocabulary,
        length=size.length,
        width=size.width,
        hidden=4 * size.width,
        layers=size.text_layers,
        heads=size.text_layers,
    )


def make_optimizers(model: nn.Module, run: Run) -> list[tuple[torch.optim.Optimizer, float]]:
    """The matrices of the layers with the named optimizer; all else with AdamW, at a rate of the task."""
    on_cuda = next(model.parameters()).is_cuda
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and name.startswith("blocks")]
    kept = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in kept]
    main: torch.optim.Optimizer
    if run.optimizer == "adamw":
        main = torch.optim.AdamW(matrices, lr=run.lr, weight_decay=0.01, fused=on_cuda)
    elif run.optimizer == "muon":
        main = torch.optim.Muon(matrices, lr=run.lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    else:
        groups = [
            group | {"params": [weight for weight in group["params"] if id(weight) in kept], "param_names": None}
            for group in param_groups(model, p=float(run.optimizer.removeprefix("mirror-")))
        ]
        groups = [{k: v for k, v in group.items() if v is not None} for group in groups if group["params"]]
        main = MirrorAdam(groups, lr=run.lr, weight_decay=0.01, fused=on_cuda)
    rest = 2e-3 if run.task == "gpt" else 3e-4
    return [(main, run.lr), (torch.optim.AdamW(others, lr=rest, weight_decay=0.01, fused=on_cuda), rest)]


class Trainer:
    def __init__(self, tokens: Path, labels: Path, size: Size, device: str) -> None:
        self.size, self.device = size, device
        with np.load(tokens) as streams, np.load(labels) as own:
            self.stream = torch.from_numpy(streams["train"].astype(np.int32)).to(device)
            held = torch.from_numpy(streams["validation"][: 64 * size.length + 1].astype(np.int64)).to(device)
            self.held = held.unfold(0, size.length + 1, size.length)
            self.reviews, self.held_reviews = (
                Reviews(streams[split], own[split], size.length, device) for split in ("train", "validation")
            )

    def train(self, run: Run, steps: int, moments: tuple[int, ...]) -> Iterator[tuple[int, dict[str, float], Any]]:
        """At every moment the step, the losses on held-out texts, and the weights."""
        model = make_model(run, self.size).to(self.device)
        optimizers = make_optimizers(model, run)
        draw = torch.Generator().manual_seed(1000 + run.seed)
        for step in range(steps + 1):
            if step in moments:
                yield (
                    step,
                    self.held_out(model, run),
                    {k: v.detach().cpu().clone() for k, v in model.state_dict().items()},
                )
            if step == steps:
                return
            warm = 0.1 * steps
            cosine = 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
            factor = (step + 1) / (warm + 1) if step < warm else cosine
            for optimizer, lr in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr * factor
                optimizer.zero_grad()
            self.loss(model, run, draw).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, _ in optimizers:
                optimizer.step()

    def loss(self, model: nn.Module, run: Run, draw: torch.Generator) -> Tensor:
        if run.task == "text":
            return self.reviews.loss(
                model, torch.randint(len(self.reviews), (self.size.reviews,), generator=draw).to(self.device)
            )
        starts = torch.randint(len(self.stream) - self.size.length - 1, (self.size.windows,), generator=draw)
        places = torch.arange(self.size.length + 1, device=self.device)
        return self.of_windows(model, self.stream[starts.to(self.device)[:, None] + places].long())

    def of_windows(self, model: nn.Module, windows: Tensor) -> Tensor:
        with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
            logits = model(windows[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def held_out(self, model: nn.Module, run: Run) -> dict[str, float]:
        model.eval()
        if run.task == "gpt":
            found = {"loss": float(torch.stack([self.of_windows(model, part) for part in self.held.split(16)]).mean())}
        else:
            own = self.held_reviews
            rows = torch.arange(len(own), device=self.device).split(250)
            logits = torch.cat([own.logits(model, part) for part in rows])
            found = {
                "loss": float(F.cross_entropy(logits, own.labels)),
                "accuracy": float((logits.argmax(-1) == own.labels).double().mean()),
            }
        model.train()
        return found

    def search(self, out: Path) -> None:
        """The best rate of every optimizer for the classifier, by the loss of a short run."""
        best: dict[str, tuple[float, float]] = {}
        for optimizer in OPTIMIZERS:
            for rate in TEXT_RATES:
                run = Run("text", optimizer, 0, rate / 3 if optimizer == "adamw" else rate)
                *_, (_, facts, _) = self.train(run, self.size.search, (self.size.search,))
                with (out / "search.jsonl").open("a") as lines:
                    lines.write(json.dumps(asdict(run) | facts) + "\n")
                loss = facts["loss"] if math.isfinite(facts["loss"]) else math.inf
                best[optimizer] = min(best.get(optimizer, (math.inf, run.lr)), (loss, run.lr))
        _write(out / "rates.json", json.dumps({name: lr for name, (_, lr) in best.items()}))


def _write(path: Path, text: str) -> None:
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def train_all(number: int, asked: argparse.Namespace, size: Size, ends: float) -> None:
    """Every process takes the runs that no other has taken, in the same order."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    trainer = Trainer(asked.tokens, asked.labels, size, asked.device)
    runs = [Run(task, optimizer, seed) for seed in asked.seeds for task in ("gpt", "text") for optimizer in OPTIMIZERS]
    if asked.runs:
        by_name = {f"{run.task}-{run.optimizer}-{run.seed}": run for run in runs}
        runs = [by_name[name] for name in asked.runs]
    for place, run in enumerate(runs if asked.rates else [None, *runs]):
        if time.time() > ends or not _take(asked.work / f"run-{place}"):
            continue
        try:
            start = time.time()
            if run is None:
                trainer.search(asked.out)
                _say(asked, f"rates after {time.time() - start:.0f} s: {(asked.out / 'rates.json').read_text()}")
                continue
            while run.task == "text" and not (asked.out / "rates.json").exists():
                time.sleep(0.5)
            rates = GPT_RATES if run.task == "gpt" else json.loads((asked.out / "rates.json").read_text())
            run = Run(run.task, run.optimizer, run.seed, rates[run.optimizer])
            moments = size.gpt_moments if run.task == "gpt" else size.text_moments
            first: dict[str, Tensor] = {}
            for step, facts, weights in trainer.train(run, moments[-1], moments):
                first = first or {name: weight for name, weight in weights.items() if name.endswith("qkv.weight")}
                if step == 0 and run.optimizer != OPTIMIZERS[0]:  # the same for all
                    continue
                order = sorted(moments, key=lambda at: (at != moments[-1], at != 0, at not in (200, 800), at))
                rank = f"{asked.seeds.index(run.seed)}-{order.index(step)}"  # what is audited first
                path = asked.work / f"checkpoint-{rank}-{run.task}-{run.optimizer}.tmp"
                saved = {"run": asdict(run), "step": step, "last": step == moments[-1], "facts": facts}
                torch.save(saved | {"weights": weights, "first": first}, path)
                path.rename(path.with_suffix(".pt"))
            _say(asked, f"{run} {facts} {time.time() - start:.0f} s")  # pyright: ignore[reportPossiblyUnboundVariable]
        except Exception:
            _say(asked, f"{run}: {traceback.format_exc()}")
    _take(asked.work / f"trained-{number}")


def _take(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _say(asked: argparse.Namespace, words: str) -> None:
    with (asked.out / "log.txt").open("a") as log:
        log.write(f"{time.strftime('%H:%M:%S')} {words}\n")


class Control(nn.Module):
    """An attention with other weights on the tokens that a layer reads; nothing reads its result."""

    def __init__(self, q: Tensor, k: Tensor, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.heads = nn.Parameter(q), nn.Parameter(k), heads

    def forward(self, x: Tensor, first: bool, causal: bool) -> None:
        queries = x[:, :1] if first else x
        q, k = (
            F.linear(y, w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for y, w in ((queries, self.q), (x, self.k))
        )
        F.scaled_dot_product_attention(q, k, k, is_causal=causal)


class Audited(nn.Module):
    """A model as it predicts, with controls beside the attention of every layer."""

    def __init__(self, model: GPT | TextTransformer, controls: dict[str, list[Control]]) -> None:
        super().__init__()
        self.model = model
        self.controls = nn.ModuleDict({name: nn.ModuleList(own) for name, own in controls.items()})
        for place, block in enumerate(model.blocks):
            own = [layers[place] for layers in controls.values()]
            block.register_forward_pre_hook(partial(self._beside, own), with_kwargs=True)

    def _beside(self, own: list[Control], block: Any, args: Any, kwargs: Any) -> None:
        causal = isinstance(self.model, GPT)
        x = block.attention_norm(args[0]) if causal else args[0][None]
        for control in own:
            control(x, kwargs.get("first", False), causal)

    def forward(self, tokens: Tensor) -> Tensor:
        if isinstance(self.model, GPT):
            return self.model.features(tokens)
        return self.model(tokens, torch.full((len(tokens),), tokens.shape[1]))


def turned(weight: Tensor, heads: int, generator: torch.Generator) -> Tensor:
    """The rows of every head in random orthogonal coordinates: W_QK keeps its singular values."""
    d = weight.shape[1]
    turns = torch.linalg.qr(torch.randn(heads, d, d, generator=generator, dtype=torch.float64))[0]
    return (weight.double().view(heads, -1, d) @ turns).flatten(0, 1).float()


def audit_checkpoint(saved: dict[str, Any], texts: dict[str, list[list[int]]], size: Size) -> list[dict[str, Any]]:
    run = Run(**saved["run"])
    model = make_model(run, size)
    assert isinstance(model, GPT | TextTransformer)
    model.load_state_dict(saved["weights"])
    heads = size.gpt_heads if run.task == "gpt" else size.text_layers
    now = [saved["weights"][f"blocks.{place}.qkv.weight"].chunk(3) for place in range(len(model.blocks))]
    controls: dict[str, list[Control]] = {}
    if saved["last"]:
        draw = torch.Generator().manual_seed(run.seed)
        controls["turned"] = [Control(turned(q, heads, draw), turned(k, heads, draw), heads) for q, k, _ in now]
        start = [saved["first"][f"blocks.{place}.qkv.weight"].chunk(3) for place in range(len(model.blocks))]
        controls["start"] = [Control(q, k, heads) for q, k, _ in start]
    # All sampled queries count, so that every head has the problem of as many: the surest 16 of 64.
    found = audit(
        Audited(model, controls),
        None,
        texts[run.task],
        norms=NORMS,
        spaces=["tokens"],
        selects=0.0,
        batch=8 if run.task == "gpt" else 1,
    )
    rows = []
    for head, row in zip(found.heads, found.rows()):
        where, kind, layer = head.layer.split(".")  # model.blocks.0 or controls.start.0
        kind = kind if where == "controls" else "own"
        facts: dict[str, Any] = saved["run"] | {"step": saved["step"]} | saved["facts"]
        facts |= {"kind": kind, "layer": int(layer), "head": head.head}
        facts |= {name: row[name] for name in COLUMNS if name in row}
        facts |= {name: value for name, value in row.items() if name.endswith(("_efficiency", "_alignment"))}
        sigma = torch.tensor(head.spectrum, dtype=torch.float64)
        facts["nuclear_norm"] = float(sigma.sum())
        facts["spectral_norm"] = float(sigma.max())
        if kind == "own":
            own = torch.cat([w.chunk(heads)[head.head] for w in now[int(layer)][:2]]).double()
            rms = own.square().mean().sqrt()
            facts["small"] = float((own.abs() < 0.1 * rms).double().mean())
            facts["l1_over_l2"] = float(own.abs().mean() / rms)
        rows.append({name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in facts.items()})
    return rows


def audit_all(number: int, asked: argparse.Namespace, size: Size, ends: float) -> None:
    os.nice(10)  # training first
    torch.set_num_threads(1)
    texts: dict[str, list[list[int]]] = {}
    with np.load(asked.tokens) as streams:
        stream = streams["test"].astype(np.int64)
    texts["gpt"] = torch.from_numpy(stream[: size.audited_windows * size.length]).view(-1, size.length).tolist()
    reviews = Reviews(stream[: 2000 * size.audited_reviews], np.zeros(0), size.length, "cpu")
    texts["text"] = [
        row[:n].tolist() for row, n in zip(reviews.tokens[: size.audited_reviews], reviews.lengths.tolist())
    ]
    while time.time() < ends:
        waiting = sorted(asked.work.glob("checkpoint-*.pt"))
        if not waiting:
            if len(list(asked.work.glob("trained-*"))) == asked.trainers:
                return
            time.sleep(0.5)
            continue
        mine = waiting[0].with_suffix(f".of-{number}")
        try:
            waiting[0].rename(mine)
        except FileNotFoundError:
            continue
        start = time.time()
        try:
            saved = torch.load(mine)
            rows = audit_checkpoint(saved, texts, size)
            with (asked.out / f"rows-{number}.jsonl").open("a") as out:
                out.write("".join(json.dumps(row) + "\n" for row in rows))
            _say(asked, f"audited {saved['run']} at {saved['step']}: {len(rows)} rows, {time.time() - start:.0f} s")
        except Exception:
            _say(asked, f"{mine}: {traceback.format_exc()}")
        mine.unlink()


def run_all(asked: argparse.Namespace) -> None:
    size = SMALL if asked.small else Size()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True)
    if asked.rates:
        _write(asked.out / "rates.json", asked.rates.read_text())
    ends = time.time() + asked.seconds
    context = mp.get_context("spawn")
    processes = [context.Process(target=train_all, args=(i, asked, size, ends)) for i in range(asked.trainers)]
    processes += [context.Process(target=audit_all, args=(i, asked, size, ends)) for i in range(asked.auditors)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def write_labels(table: Path, out: Path) -> None:
    """The labels of the texts in the order of `corpora.py`."""
    sys.path.insert(0, str(Path(__file__).parent / "sparse"))
    from corpora import imdb_texts  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet

    columns = parquet.read_table(table, columns=["text", "label"]).to_pydict()
    labels = {text.replace("<br />", " "): label for text, label in zip(columns["text"], columns["label"])}
    found = {split: np.array([labels[text] for text in texts], np.uint8) for split, texts in imdb_texts(table).items()}
    np.savez_compressed(out, **found)  # pyright: ignore[reportArgumentType]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    labels = commands.add_parser("labels")
    labels.add_argument("table", type=Path)
    labels.add_argument("out", type=Path)
    run = commands.add_parser("run")
    run.add_argument("tokens", type=Path)
    run.add_argument("labels", type=Path)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--work", type=Path, default=Path(f"/tmp/audit-{os.getpid()}"), help="where checkpoints lie")
    run.add_argument("--seeds", type=lambda x: [int(part) for part in x.split(",")], default=[1, 2])
    run.add_argument("--runs", type=lambda x: x.split(","), help="these, in order, such as gpt-muon-1,text-adamw-2")
    run.add_argument("--rates", type=Path, help="rates of the classifier by optimizer, in JSON: no search")
    run.add_argument("--trainers", type=int, default=1)
    run.add_argument("--auditors", type=int, default=1)
    run.add_argument("--seconds", type=float, default=86400)
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.add_argument("--small", action="store_true", help="tiny models and few steps: does it run?")
    asked = parser.parse_args()
    if asked.command == "labels":
        write_labels(asked.table, asked.out)
    else:
        run_all(asked)


if __name__ == "__main__":
    main()
