"""
MirrorAdam in the Hugging Face Trainer
======================================

One line changes: the optimizer. `param_groups` finds the attention matrices of the model, and a callback prunes while
the Trainer trains.
"""

import tempfile

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from attsvm.optim import MirrorAdam, param_groups, trainer_pruning

torch.manual_seed(0)
config = BertConfig(
    vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)

# %%
# A task that a small model learns: does word 5 occur?
ids = torch.randint(6, 64, (256, 12))
labels = torch.arange(256) % 2
ids[labels == 1, 3] = 5
rows = [{"input_ids": i, "labels": label} for i, label in zip(ids, labels)]

# %%
# The Trainer as usual, with MirrorAdam and a callback that sets half of the weights to 0.
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=15, per_device_train_batch_size=32, logging_steps=8, report_to="none",
        disable_tqdm=True, save_strategy="no", use_cpu=True,
    )  # fmt: skip
    optimizer = MirrorAdam(param_groups(model, p=1.1), lr=1e-2)
    trainer = Trainer(
        model, arguments, train_dataset=rows, optimizers=(optimizer, None), callbacks=[trainer_pruning(0.5, every=4)]
    )
    trainer.train()

# %%
# The loss over the steps.
log = [entry for entry in trainer.state.log_history if "loss" in entry]
figure, ax = plt.subplots(layout="constrained", figsize=(5.5, 3))
ax.plot([entry["step"] for entry in log], [float(entry["loss"]) for entry in log], "o-")
_ = ax.set(xlabel="step", ylabel="loss")
