"""The margin problems of neighbouring papers: classes, next tokens, graphs of tokens, several heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_bool, as_count, as_float, as_index, check_real
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.svm._exact import two_sum
from attsvm.svm._problem import MarginProblem, att_svm, check_data, finite_part, gen_svm

_NEWTON_STEPS = 200


def multiclass_svm(H: Any, labels: Any, classes: int | None = None) -> MarginProblem:
    """Crammer–Singer: (e_y − e_c)ᵀ W h_i ≥ 1 for the label y of sample i and every other class c. W is (C, d).

    H (n, d) or (B, n, d) samples, `labels` (n,) or (B, n) in 0..C−1; C is the largest label plus one, unless given.
    """
    H, labels = as_float("H", H), as_index("labels", labels)
    if H.ndim in (2, 3) and labels.shape not in (H.shape[:-1], H.shape[-2:-1]):
        raise AttsvmError(f"labels must have shape {tuple(H.shape[:-1])}, but got shape {tuple(labels.shape)}.")
    if bool((labels < 0).any()):
        raise AttsvmError(f"labels must be at least 0, but got {labels.min()}.")
    found = int(labels.max()) + 1 if labels.numel() else 1
    data = _one_hot(H, as_count("classes", classes, max(2, found)) if classes is not None else max(2, found))
    return att_svm(data, labels)


def ntp_svm(H: Any, support: Any) -> MarginProblem:
    """NTP-SVM: equal logits for the next tokens that follow a context, margin 1 to those that never do. W is (V, d).

    H (m, d) or (B, m, d) embeddings of the distinct contexts; `support` (m, V) or (B, m, V), True for the tokens that
    follow. (e_z − e_z')ᵀ W h_j = 0 inside the support of context j, (e_z − e_v)ᵀ W h_j ≥ 1 for v outside.
    """
    support = as_bool("support", support, torch.device("cpu"))
    data = _one_hot(H, _vocabulary("support", support))
    return gen_svm(data, _per_context("support", support.to(data.device), data))


def ntp_finite_part(H: Any, probabilities: Any) -> MarginProblem:
    """The problem of the finite part of next-token prediction: the smallest W with (e_z − e_z')ᵀ W h_j = log(p_z/p_z').

    `probabilities` (m, V) or (B, m, V) of the next token after each context; tokens of probability 0 do not count.
    """
    probabilities = as_float("probabilities", probabilities)
    check_real("probabilities", probabilities)
    data = _one_hot(H, _vocabulary("probabilities", probabilities))
    weights = _per_context("probabilities", probabilities.to(data.X), data)
    if bool((weights < 0).any()):
        raise AttsvmError("probabilities must not be negative.")
    return finite_part(data, weights, weights > 0)


def per_head_svm(data: TokenData, tokens: Any) -> MarginProblem:
    """The attention SVM of every head, as B·H instances: head h of trial b is instance b·H + h.

    `tokens` (H, n), (H, n, K) or (B, H, n, K): the token that a head selects for a query.
    """
    check_data(data)
    index = as_index("tokens", tokens)
    index = index[..., None] if index.ndim == 2 else index
    index = index[None] if index.ndim == 3 else index
    if index.ndim != 4 or index.shape[0] not in (1, data.B) or index.shape[2:] != (data.n, data.K):
        raise AttsvmError(
            f"tokens must have shape (H, n, K) or (B, H, n, K) with B, n, K = {data.B}, {data.n}, {data.K}, "
            f"but got shape {tuple(index.shape)}."
        )
    heads = index.shape[1]
    return att_svm(data[torch.arange(data.B).repeat_interleave(heads)], index.expand(data.B, -1, -1, -1).flatten(0, 1))


def graph_svm(E: Any, sequences: Any, labels: Any) -> MarginProblem:
    """Graph-SVM of next-token prediction by self-attention. W is (d, d).

    E (V, d) embeddings, `sequences` (n, T) token numbers padded at the end with −1, `labels` (n,) the next tokens, each
    of which occurs in its sequence. For every last token k the graph G⁽ᵏ⁾ has the edges label → token of all sequences
    that end in k. Tokens of one strongly connected component get equal logits, (e_i − e_j)ᵀ W e_k = 0; an edge i → j
    between two components asks for (e_i − e_j)ᵀ W e_k ≥ 1. A path adds no constraint beyond those of its edges.
    """
    E, sequences, labels, last = _sequences(E, sequences, labels)
    groups = [_rows_of_graph(sequences[last == k], labels[last == k]) for k in last.unique()]
    R = max(len(pairs) for pairs, _ in groups)
    pairs = torch.stack([torch.nn.functional.pad(p, (0, 0, 0, R - len(p)), value=-1) for p, _ in groups]).to(E.device)
    tied = torch.stack([torch.nn.functional.pad(t, (0, R - len(t))) for _, t in groups]).to(E.device)
    present = pairs[..., 0] >= 0
    first, second = (E[side.clamp_min(0)] * present[..., None] for side in pairs.unbind(-1))
    A, low = two_sum(first, -second)
    b = torch.where(present & ~tied, 1.0, 0.0).to(E.dtype)
    Z = E[last.unique().to(E.device)]
    return MarginProblem(A[None], Z[None], b[None], tied[None], present[None], A_low=low[None])


def graph_finite_part(E: Any, sequences: Any, labels: Any) -> Tensor:
    """W_fin (d, d) of the Graph-SVM: the minimiser of the log loss inside the strongly connected components.

    Every sequence keeps the tokens of its label's component, and W lies in the span of (e_i − e_j)e_kᵀ for i, j in one
    component of G⁽ᵏ⁾. There the loss is strictly convex and grows in every direction; Newton's method finds the
    minimiser to rounding. Training goes to W_fin + R·W_svm with growing R.
    """
    E, sequences, labels, last = _sequences(E, sequences, labels)
    d = E.shape[1]
    problem = graph_svm(E, sequences, labels)
    tied = problem.equality[0]
    ties = (problem.A[0][..., :, None] * problem.Z[0][:, None, None, :])[tied].flatten(1)
    if not len(ties):
        return E.new_zeros(d, d)
    _, sizes, Vh = torch.linalg.svd(ties, full_matrices=False)
    basis = Vh[sizes > 1e-10 * sizes[0]]

    kept = torch.zeros_like(sequences, dtype=torch.bool)
    for k in last.unique():
        some = last == k
        tokens, edges = _edges(sequences[some], labels[some])
        component = _components(len(tokens), edges)
        names = torch.full((len(E) + 1,), -1).scatter(0, tokens, component)
        kept[some] = (names[sequences[some]] == names[labels[some]][:, None]) & (sequences[some] >= 0)
    x = E[sequences.clamp_min(0).to(E.device)]
    features = torch.einsum("rde,ntd,ne->ntr", basis.unflatten(1, (d, d)), x, E[last.to(E.device)])
    target = torch.einsum("rde,nd,ne->nr", basis.unflatten(1, (d, d)), E[labels.to(E.device)], E[last.to(E.device)])
    theta = _least_log_loss(features, kept.to(E.device), target)
    return (theta @ basis).unflatten(0, (d, d))


def _least_log_loss(features: Tensor, kept: Tensor, target: Tensor) -> Tensor:
    """The θ that minimises the mean of logsumexp(features·θ) − target·θ, by Newton's method with halved steps."""

    def loss(theta: Tensor) -> Tensor:
        return ((features @ theta).masked_fill(~kept, -torch.inf).logsumexp(1) - target @ theta).mean()

    theta = features.new_zeros(features.shape[2])
    for _ in range(_NEWTON_STEPS):
        p = (features @ theta).masked_fill(~kept, -torch.inf).softmax(1)
        mean = (p[..., None] * features).sum(1)
        gradient = (mean - target).mean(0)
        centred = p.sqrt()[..., None] * (features - mean[:, None])
        hessian = torch.einsum("ntr,nts->rs", centred, centred) / len(features)
        step = -torch.linalg.pinv(hessian, hermitian=True) @ gradient  # lstsq rounds differently every time
        decrease, value = -float(gradient @ step), loss(theta)
        length = 1.0
        while length > 1e-8 and bool(
            loss(theta + length * step) > value - 0.1 * length * decrease + 1e-15 * abs(value)
        ):
            length /= 2
        theta = theta + length * step
        if decrease <= 1e-30:
            break
    return theta


def _one_hot(H: Any, V: int) -> TokenData:
    """Contexts that attend to V one-hot tokens: logits of tokens are W h."""
    H = as_float("H", H)
    if H.ndim not in (2, 3):
        raise AttsvmError(f"H must have shape (n, d) or (B, n, d), but got shape {tuple(H.shape)}.")
    return TokenData.cross(torch.eye(V, dtype=H.dtype, device=H.device).expand(*H.shape[:-1], V, V), H)


def _vocabulary(name: str, table: Tensor) -> int:
    if table.ndim not in (2, 3) or table.shape[-1] < 2:
        raise AttsvmError(f"{name} must have shape (m, V) or (B, m, V) with V ≥ 2, but got {tuple(table.shape)}.")
    return table.shape[-1]


def _per_context(name: str, table: Tensor, data: TokenData) -> Tensor:
    """(m, V) or (B, m, V) as (B, m, 1, V)."""
    try:
        return table.reshape(-1, table.shape[-2], 1, table.shape[-1]).expand(data.mask.shape)
    except RuntimeError as error:
        raise AttsvmError(f"{name} must have a row for each of the {data.n} contexts of H.") from error


def _sequences(E: Any, sequences: Any, labels: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments of a graph problem as tensors, and the last tokens (n,)."""
    E, sequences, labels = as_float("E", E), as_index("sequences", sequences), as_index("labels", labels)
    if E.ndim != 2 or sequences.ndim != 2 or labels.shape != sequences.shape[:1] or not len(labels):
        raise AttsvmError("E must be (V, d), sequences (n, T) and labels (n,), with n ≥ 1.")
    there = sequences >= 0
    if bool(((sequences < -1) | (sequences >= len(E))).any()) or not bool(there[:, 0].all()):
        raise AttsvmError(f"sequences must be token numbers in 0..{len(E) - 1}, padded at the end with −1.")
    if bool((there[:, 1:] & ~there[:, :-1]).any()):
        raise AttsvmError("sequences must be padded at the end: −1 stands before a token.")
    missing = ~(sequences == labels[:, None]).any(1)
    if bool(missing.any()):
        raise AttsvmError(f"labels must occur in their sequences, but that of {int(missing.nonzero()[0])} does not.")
    return E, sequences, labels, sequences.gather(1, there.sum(1, keepdim=True) - 1)[:, 0]


def _edges(sequences: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of these sequences, and the edges label → token (M, 2) between them, by position."""
    pairs = torch.stack((labels[:, None].expand_as(sequences), sequences), -1)[sequences >= 0].unique(dim=0)
    tokens, positions = pairs.unique(return_inverse=True)
    return tokens, positions[positions[:, 0] != positions[:, 1]]


def _components(v: int, edges: Tensor) -> Tensor:
    """The first position of the strongly connected component of each of v tokens."""
    reach = torch.eye(v)
    reach[edges[:, 0], edges[:, 1]] = 1.0
    for _ in range(max(1, v.bit_length())):
        reach = (reach @ reach).clamp_max(1.0)
    same = (reach > 0) & (reach.mT > 0)
    return torch.where(same, torch.arange(v), v).amin(1)


def _rows_of_graph(sequences: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of tokens (M, 2) whose logits one last token compares, and whether they are tied."""
    tokens, edges = _edges(sequences, labels)
    component, own = _components(len(tokens), edges), torch.arange(len(tokens))
    ties = torch.stack((component, own), 1)[component != own]
    between = edges[component[edges[:, 0]] != component[edges[:, 1]]]
    pairs = tokens[torch.cat((ties, between))]
    return pairs, torch.arange(len(pairs)) < len(ties)
