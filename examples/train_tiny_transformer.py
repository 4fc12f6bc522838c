"""Train a small transformer with AdamW, MirrorAdam and MirrorDescent, then zero its attention weights.

The task is made here and takes seconds: a sentence of random words holds one pivotal word, which is positive or
negative, and in a quarter of the sentences a negation, which flips the label. All other words mean nothing.

    python examples/train_tiny_transformer.py
    python examples/train_tiny_transformer.py --optimizers MirrorAdam --p 1.1 1.5 2 --lr 1e-3 --seeds 5
"""

import argparse
import copy
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attsvm.optim

WORDS, PIVOTS, NEGATIONS, LENGTH = 100, 4, 1, 12  # PIVOTS of each sign; ids: pivots, negations, other words
KEPT = (1.0, 0.2, 0.1, 0.05)  # shares of the attention weights that are kept
LR = {"AdamW": 3e-3, "MirrorAdam": 3e-3, "MirrorDescent": 3e-3}  # by a sweep: docs/optimizers.md


def make_data(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences (size, LENGTH) and labels 0 or 1 (size,)."""

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (size,), generator=generator)

    special = 2 * PIVOTS + NEGATIONS
    x = torch.randint(special, WORDS, (size, LENGTH), generator=generator)
    pivot, negated = draw(0, 2 * PIVOTS), draw(0, 4) == 0
    place = draw(0, LENGTH)
    other = (place + draw(1, LENGTH)) % LENGTH
    rows = torch.arange(size)
    x[rows, other] = torch.where(negated, draw(2 * PIVOTS, special), x[rows, other])
    x[rows, place] = pivot
    return x, (pivot < PIVOTS).logical_xor(negated).long()


class Classifier(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        for copied in self.encoder.layers:  # the encoder's layers are copies of one
            for module in copied.modules():
                if isinstance(module, nn.Linear):
                    module.reset_parameters()
                elif isinstance(module, nn.MultiheadAttention):
                    module._reset_parameters()
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.encoder(h).mean(dim=1))


def make_optimizer(name: str, model: nn.Module, lr: float, p: float, args: argparse.Namespace) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr)  # replace this line by one of those below
    # Attention and other matrices get p; embeddings, biases and norms keep p = 2, which is AdamW or SGD.
    groups = attsvm.optim.param_groups(model, p=p)
    if args.groups == "attention":
        groups = attsvm.optim.param_groups(model, p=p, matrices={"p": 2.0})
    elif args.groups == "all":
        groups = [{"params": list(model.parameters()), "p": p}]
    if args.translate:
        for group in groups:
            group["lr"] = attsvm.optim.starting_lr(lr, group["p"], group["params"])
    if name == "MirrorAdam":
        return attsvm.optim.MirrorAdam(groups, lr=lr, p=p)
    normalize = None if args.normalize == "none" else args.normalize
    return attsvm.optim.MirrorDescent(groups, lr=lr, p=p, momentum=0.9, normalize=normalize)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return 100 * (model(x).argmax(dim=1) == y).float().mean().item()


def attention_weights(model: nn.Module) -> list[Tensor]:
    groups = attsvm.optim.param_groups(model)
    return [weight.detach() for group in groups if group["name"] == "attention" for weight in group["params"]]


@torch.no_grad()
def keep_largest(model: nn.Module, share: float) -> nn.Module:
    """A copy with the smallest attention weights set to 0, all attention matrices taken together."""
    model = copy.deepcopy(model)
    weights = attention_weights(model)
    sizes = torch.cat([w.abs().flatten() for w in weights])
    threshold = sizes.sort(descending=True).values[round(share * len(sizes)) - 1]
    for w in weights:
        w.mul_(w.abs() >= threshold)
    return model


def run(name: str, lr: float, p: float, seed: int, args: argparse.Namespace) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    x, y = make_data(args.samples, generator)
    x_test, y_test = make_data(2000, generator)
    torch.manual_seed(seed)
    model = Classifier()
    with torch.no_grad():
        for group in attsvm.optim.param_groups(model):
            for weight in group["params"] if group["name"] in ("attention", "matrices") else []:
                weight.mul_(args.scale)
    optimizer = make_optimizer(name, model, lr, p, args)
    steps = args.epochs * math.ceil(args.samples / args.batch)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total_steps=steps,
        pct_start=0.1,
        cycle_momentum=False,
    )
    start = time.process_time()
    for _ in range(args.epochs):
        model.train()
        for batch in torch.randperm(len(x), generator=generator).split(args.batch):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    seconds = time.process_time() - start
    weights = attention_weights(model)
    small = sum(int((w.abs() < 0.01 * w.abs().max()).sum()) for w in weights) / sum(w.numel() for w in weights)
    kept = {f"keep {100 * share:g}%": accuracy(keep_largest(model, share), x_test, y_test) for share in KEPT}
    return {"train": accuracy(model, x, y), **kept, "tiny": 100 * small, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", default=list(LR), choices=list(LR))
    parser.add_argument("--lr", nargs="+", type=float, help="default: " + str(LR))
    parser.add_argument("--translate", action="store_true", help="lr is AdamW's or SGD's: use starting_lr")
    parser.add_argument("--p", nargs="+", type=float, default=[1.1])
    parser.add_argument("--groups", choices=["matrices", "attention", "all"], default="matrices", help="what gets p")
    parser.add_argument("--normalize", choices=["tensor", "group", "none"], default="tensor", help="MirrorDescent's")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all matrices at the start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)

    print(f"test accuracy in %, mean ± std over {args.seeds} seeds, with a share of the attention weights kept;")
    print("tiny: % of the attention weights below 1% of the largest of their matrix")
    header = ["train", *(f"keep {100 * share:g}%" for share in KEPT), "tiny", "seconds"]
    print(f"{'optimizer':<14}{'p':>5}{'lr':>9}" + "".join(f"{column:>13}" for column in header))
    for name in args.optimizers:
        for p in args.p if name != "AdamW" else [2.0]:
            for lr in args.lr or [LR[name]]:
                results = [run(name, lr, p, seed, args) for seed in range(args.seeds)]
                cells = []
                for column in header:
                    values = [result[column] for result in results]
                    spread = statistics.stdev(values) if len(values) > 1 else math.nan
                    cells.append(f"{statistics.mean(values):7.1f} ±{spread:4.1f}")
                print(f"{name:<14}{p:>5g}{lr:>9.1g}" + "".join(cells))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
