"""
MirrorAdam in Lightning
=======================

`configure_optimizers` returns MirrorAdam, and a callback prunes. Nothing else changes.
"""

import logging
import warnings

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch
from torch import nn

from attsvm.optim import MirrorAdam, lightning_pruning, param_groups

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Reader(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 2)
        self.losses: list[float] = []

    def training_step(self, batch, number):
        ids, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.layer(self.words(ids)).mean(1)), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return MirrorAdam(param_groups(self, p=1.1), lr=3e-3)


# %%
# Does word 5 occur?
ids = torch.randint(6, 64, (256, 12))
labels = torch.arange(256) % 2
ids[labels == 1, 3] = 5
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, labels), batch_size=32, shuffle=True)
model = Reader()
trainer = pl.Trainer(
    max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[lightning_pruning(0.5, every=4)],
)  # fmt: skip
trainer.fit(model, loader)

# %%
# Half of the attention weights are exact zeros at the end.
print(f"zeros in the query, key and value matrix: {(model.layer.self_attn.in_proj_weight == 0).float().mean():.0%}")
figure, ax = plt.subplots(layout="constrained", figsize=(5.5, 3))
ax.plot(model.losses)
_ = ax.set(xlabel="step", ylabel="loss")
