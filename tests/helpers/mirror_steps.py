"""Weights of several shapes, gradients for them, the ways to step, and how far apart two results are."""

import torch
from torch import Tensor

PATHS = [("cpu", {"foreach": False}), ("cpu", {"foreach": True})]
if torch.cuda.is_available():
    PATHS += [("cuda", {"foreach": False}), ("cuda", {"foreach": True}), ("cuda", {"fused": True})]
SHAPES = [(40, 30), (7,), (1,), (3, 5, 4)]


def start(device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter((0.1 * torch.randn(s, generator=generator)).to(device, dtype)) for s in SHAPES]


def random_gradients(steps: int, seed: int = 1) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(s, generator=generator) for s in SHAPES] for _ in range(steps)]


def run(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], gradients: list[list[Tensor]]) -> None:
    for grads in gradients:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.to(param.device, param.dtype)
        optimizer.step()


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().cpu().double().flatten() for t in tensors])


def error(value: Tensor, expected: Tensor) -> float:
    return ((value - expected).norm() / expected.norm()).item()
