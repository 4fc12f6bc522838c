"""Linear layers that skip the zeros of their weights, for inference on a CPU."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from attsvm.errors import AttsvmError, describe
from attsvm.optim._checks import check_share

__all__ = ["CSRLinear", "to_csr"]


class CSRLinear(nn.Module):
    """What an nn.Linear on a CPU computes, in time that goes with the weights that are not 0.

    They are buffers in compressed rows (CSR), which no gradient reaches. `weight` makes a dense matrix of them, for
    whoever reads it. torch.nn.functional.linear takes CSR weights, too, but is several times as slow.
    """

    ends: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with warnings.catch_warnings():  # torch says once per process that they are in beta
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            rows = linear.weight.detach().to_sparse_csr()
        # Apart: torch neither copies nor saves CSR tensors as it does others.
        self.register_buffer("ends", rows.crow_indices())
        self.register_buffer("columns", rows.col_indices())
        self.register_buffer("values", rows.values())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def _rows(self) -> Tensor:
        shape = self.out_features, self.in_features
        return torch.sparse_csr_tensor(self.ends, self.columns, self.values, shape, check_invariants=False)

    @property
    def weight(self) -> Tensor:
        """A dense copy of the weights."""
        return self._rows().to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b for any batch of rows x."""
        if torch.is_autocast_enabled("cpu"):  # to numbers for which torch has no such product
            with torch.autocast("cpu", enabled=False):
                return self.forward(x.to(self.values.dtype))
        rows, inputs = self._rows(), x.reshape(-1, x.shape[-1]).T
        found = torch.mm(rows, inputs) if self.bias is None else torch.addmm(self.bias[:, None], rows, inputs)
        return found.T.contiguous().view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Sizes, and the share of zeros."""
        zeros = 1 - self.values.numel() / (self.in_features * self.out_features)
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, zeros={zeros:.1%}"


@torch.no_grad()
def to_csr(model: nn.Module, least: float = 0.95) -> list[str]:
    """Make the linear layers with many zeros fast, for inference on a CPU: each becomes a :class:`CSRLinear`, in place.

    Save the model before: :func:`~attsvm.optim.export` with `compressed=True` keeps the zeros out of the file.

    Args:
        model: any module on a CPU, in float32 or float64.
        least: the share of zeros from which a layer is replaced. Below 0.95 it may become slower.

    Returns:
        Names of the layers that were replaced.

    Example:
        >>> from attsvm.optim import prune
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        >>> _ = prune(model, 0.95, scope="layer")
        >>> to_csr(model)
        ['0', '2']
        >>> model[0]
        CSRLinear(in_features=64, out_features=128, bias=True, zeros=95.0%)
    """
    if not isinstance(model, nn.Module):
        raise AttsvmError(f"model must be a module, but got {describe(model)}.")
    check_share("least", least)
    places: dict[str, tuple[nn.Module, str, nn.Linear]] = {}
    most = ("", 0.0)
    for parent_name, parent in model.named_modules():
        for name, layer in parent._modules.items():
            if type(layer) is nn.Linear and layer.weight.numel():  # subclasses compute something else
                path = f"{parent_name}.{name}" if parent_name else name
                zeros, entries = _zeros(path, layer), layer.weight.numel()
                most = max(most, (path, zeros / entries), key=lambda one: one[1])
                if zeros >= int(least * entries):  # a whole number of them
                    places[path] = parent, name, layer
    if not places:
        nearest = f"the largest share is {most[1]:.1%} ({most[0]})" if most[0] else "none has a zero"
        raise AttsvmError(f"no nn.Linear inside the model has {least:.0%} zeros: {nearest}.")
    made = {layer: CSRLinear(layer) for _, _, layer in places.values()}  # before the first one is replaced
    for parent, name, layer in places.values():
        setattr(parent, name, made[layer])
        if isinstance(parent, nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0  # torch then takes no shortcut past its layers
    return list(places)


def _zeros(path: str, layer: nn.Linear) -> int:
    weight = layer.weight
    if "weight" not in layer._parameters:
        raise AttsvmError(f"{path} has a mask of torch.nn.utils.prune: call torch.nn.utils.prune.remove first.")
    if not weight.is_cpu or weight.dtype not in (torch.float32, torch.float64):
        what = f"{weight.dtype} on {weight.device}"
        raise AttsvmError(f"to_csr needs float32 or float64 weights on a CPU, but {path} is {what}.")
    return int((weight == 0).sum())
