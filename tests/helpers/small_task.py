"""The smallest task to train, and optimizers for it."""

import pytest
import torch
from torch import Tensor, nn

from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, MirrorMuon

MAKERS = {
    "descent": lambda params, **options: MirrorDescent(params, **({"lr": 0.05, "momentum": 0.9} | options)),
    "normalised": lambda params, **options: MirrorDescent(params, **({"lr": 0.05, "normalize": "group"} | options)),
    "adam": lambda params, **options: MirrorAdam(params, **({"lr": 0.01} | options)),
    "muon": lambda params, **options: MirrorMuon(params, **({"lr": 0.03, "moments_of": "weight"} | options)),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
make_all = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def network(dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device, dtype)


def small_transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), nn.Linear(8, 2))


def gradients(steps: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for _ in range(steps)]


def batch(step: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    X = torch.randn(32, 8, generator=generator)
    return X.to(device), (X[:, 0] > 0).long().to(device)


def loss_of(model: nn.Module, step: int) -> Tensor:
    parameter = next(model.parameters())
    X, y = batch(step, str(parameter.device))
    return nn.functional.cross_entropy(model(X.to(parameter.dtype)).float(), y)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    loss = torch.tensor(0.0)
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
    return loss.item()


def fit_pruned(model: nn.Module, optimizer: torch.optim.Optimizer, pruning: GradualPruning, steps: range) -> None:
    for step in steps:
        model.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        pruning.step()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def moved(model: nn.Module, start: nn.Module) -> Tensor:
    return torch.cat([(a - b).detach().flatten() for a, b in zip(model.parameters(), start.parameters())])
