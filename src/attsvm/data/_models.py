"""Larger models as data of one attention layer: several heads, classes, next tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, as_index, check_real
from attsvm.data._heads import ClassHead, LabelHead, LinearHead, SampleHead
from attsvm.data._token_data import TokenData
from attsvm.errors import AttsvmError


def several_heads(data: TokenData, v: Any) -> TokenData:
    """The data of H heads with separate weights W_1 … W_H, whose outputs v_hᵀ Xᵀ softmax(X W_h z) are added.

    `v` (H, d) or (B, H, d); equal rows are one v for all heads. A head is a query e_h ⊗ z, and W is (W_1 … W_H) side by
    side. So all else stays as it is: the attention SVM of W asks for margin 1 in every head, and in ℓ2 it is the SVM
    of each head alone. Train with `loss=Added()`, which adds the outputs before the loss; `of_heads` takes W apart.
    """
    if data.K != 1:
        raise AttsvmError(f"data must have one query per sample to be given several heads, but they have {data.K}.")
    v = as_float("v", v, like=data.X)
    v = v.expand(data.B, *v.shape) if v.ndim == 2 else v
    if v.ndim != 3 or v.shape[0] != data.B or v.shape[2] != data.d:
        raise AttsvmError(f"v must have shape (H, d) or (B, H, d), but got shape {tuple(v.shape)}.")
    H = v.shape[1]
    Z = torch.einsum("hg,bne->bnhge", torch.eye(H).to(data.X), data.Z[:, :, 0]).flatten(3)
    wide = {"Y": data.Y.expand(-1, -1, H).clone(), "mask": data.mask.expand(-1, -1, H, -1).clone()}
    return replace(data, Z=Z, head=LinearHead(v), **wide)


def of_heads(W: Tensor, heads: int) -> Tensor:
    """W (…, d, H·e) of several heads as (…, H, d, e)."""
    return W.unflatten(-1, (heads, -1)).movedim(-2, -3)


def class_data(H: Any, labels: Any, classes: int | None = None) -> TokenData:
    """Classification of samples H (n, d) or (B, n, d) with labels 0..C−1 by softmax(W h), W (C, d).

    Classes are one-hot tokens, and f is the probability of the label: with `loss="log"` training minimises the
    cross-entropy, and `att_svm(data, labels)` is the SVM of Crammer and Singer. A context that is followed by several
    next tokens is a sample for each of them, as often as it was seen.
    """
    H, labels = as_float("H", H), as_index("labels", labels)
    if H.ndim not in (2, 3) or labels.shape != H.shape[:-1]:
        raise AttsvmError(
            f"H must be (n, d) or (B, n, d) and labels its first axes, but got shapes {tuple(H.shape)} and "
            f"{tuple(labels.shape)}."
        )
    H, labels = (H, labels) if H.ndim == 3 else (H[None], labels[None])
    found = range(int(labels.min()), int(labels.max()) + 1) if labels.numel() else range(1)
    C = max(1, found.stop) if classes is None else as_count("classes", classes)
    if found.start < 0 or found.stop > C:
        raise AttsvmError(f"labels must be in 0..{C - 1}, but they reach from {found.start} to {found.stop - 1}.")
    eye = torch.eye(C).to(H)
    return TokenData.cross(eye.expand(*H.shape[:2], C, C), H, head=SampleHead(eye[labels.to(H.device)][:, None]))


def attended_classes(data: TokenData, V: Any, labels: Any) -> TokenData:
    """The same tokens and queries, with C classes by softmax(V o) of the attended token o; labels (B, n) or (n,).

    V (C, d) or (B, C, d) is fixed. Train with the logistic loss: it is the cross-entropy.
    """
    V, labels = as_float("V", V, like=data.X), as_index("labels", labels)
    V = V.expand(data.B, *V.shape) if V.ndim == 2 else V
    labels = labels.expand(data.B, *labels.shape) if labels.ndim == 1 else labels
    if V.ndim != 3 or V.shape[0] != data.B or V.shape[1] < 2 or V.shape[2] != data.d:
        raise AttsvmError(f"V must have shape (C, d) or (B, C, d), C at least 2, but got shape {tuple(V.shape)}.")
    C = V.shape[1]
    if labels.shape != (data.B, data.n) or not bool(((labels >= 0) & (labels < C)).all()):
        raise AttsvmError(
            f"labels must be classes 0..{C - 1} of shape {(data.B, data.n)}, but they are not: shape "
            f"{tuple(labels.shape)}, from {labels.min()} to {labels.max()}."
        )
    labels = labels.to(data.device)
    apart = V[:, None] - V.gather(1, labels[..., None].expand(-1, -1, data.d))[:, :, None]  # (B, n, C, d)
    others = torch.arange(C, device=data.device) != labels[..., None]
    U = apart[others].reshape(data.B, data.n, C - 1, data.d)
    return replace(data, head=ClassHead(U[:, None]), Y=torch.ones_like(data.Y))


def next_token_data(E: Any, sequences: Any, labels: Any) -> TokenData:
    """Next tokens by self-attention with tied embeddings: the last token attends to its sequence, and f is the softmax
    weight of the label's tokens.

    E (V, d) or (B, V, d) independent embeddings; `sequences` (B, n, T) or (n, T) token numbers; `labels` (B, n) or
    (n,), each of them in its sequence. Train with `loss="log"`.
    """
    E, sequences, labels = as_float("E", E), as_index("sequences", sequences), as_index("labels", labels)
    sequences, labels = (sequences, labels) if sequences.ndim == 3 else (sequences[None], labels[None])
    if sequences.ndim != 3 or labels.shape != sequences.shape[:2] or E.ndim not in (2, 3):
        raise AttsvmError(
            f"E must be (V, d), sequences (B, n, T) and labels (B, n), but got shapes {tuple(E.shape)}, "
            f"{tuple(sequences.shape)} and {tuple(labels.shape)}."
        )
    if not bool((sequences == labels[..., None]).any(-1).all()):
        raise AttsvmError("labels must be tokens of their sequences, but not all of them are.")
    check_real("E", E)
    if E.ndim == 3 and len(E) != len(sequences):
        raise AttsvmError(f"E must have B = {len(sequences)} trials, as sequences have, but it has {len(E)}.")
    E = E.expand(len(sequences), -1, -1)
    if sequences.numel() and not 0 <= int(sequences.min()) <= int(sequences.max()) < E.shape[1]:
        raise AttsvmError(f"sequences must hold token numbers in 0..{E.shape[1] - 1}, but they hold others.")
    if bool((torch.linalg.matrix_rank(E) < E.shape[1]).any()):
        raise AttsvmError(f"E must be V = {E.shape[1]} independent embeddings, but they are dependent.")
    trial = torch.arange(len(E))[:, None]
    X = E[trial[..., None], sequences]
    dual = torch.linalg.pinv(E).mT  # rows that give 1 with their own embedding and 0 with the others
    return TokenData.cross(X, X[:, :, -1:], head=LabelHead(dual[trial, labels][:, None]))
