"""What the training of a table or of images takes where nobody says otherwise; no imports: commands start fast."""

from __future__ import annotations

from typing import Any

# Of the optimisers' settings the rate, and those that a fit does not leave at their defaults
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adamw": {"lr": 0.003, "weight_decay": 0.01},
    "adam": {"lr": 0.003},
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "lion": {"lr": 0.0003, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.001},
    "adafactor": {"lr": 0.01},
    "muon": {"lr": 0.02},  # of matrices; adamw for the biases
}


TABLE: dict[str, float] = {"lr": 0.002, "weight_decay": 0.05}  # of adamw that learns a table
# Of a table's numbers: see nn.Periodic
EMBEDDING: dict[str, Any] = {"frequencies": 16, "width": 4, "scale": 0.2}
MEMBERS = 8  # networks of the ensemble that learns a table
MOST_MEMBERS = 10_000
VALIDATED = 0.15  # share of a table's training rows that say when its training ends
LEAST_VALIDATED = 100  # training rows of which a share can say that
PATIENCE = 15  # evaluations without improvement
# The first learning rate of a fine-tuning: of an adapter, and of the model's own tensors
FINETUNE_RATES = {"lora": 2e-4, "full": 2e-5}
FINETUNE_SCHEDULE, FINETUNE_WARMUP = "cosine", 0.03  # the warm-up is a share of the steps
FINETUNE_BATCH = 4


def hidden_for(images: bool) -> list[int]:
    """Widths of the hidden layers."""
    return [500] if images else [128, 128]


def dropout_for(images: bool) -> float:
    """Share of the hidden layers' outputs that a step leaves out."""
    return 0.0 if images else 0.1


def epochs_for(rows: int, images: bool) -> int:
    """Passes over so many training rows."""
    if images:
        return 100 if rows < 1000 else 10 if rows >= 20000 else 50
    return 100 if rows < 1000 else 50 if rows < 5000 else 30 if rows < 20000 else 12 if rows < 100000 else 4


def folds_for(rows: int, members: int) -> int:
    """Parts of so many training rows of a table, each of which is left out by some of so many members; 0: none."""
    return members if rows >= LEAST_VALIDATED and members > 1 else 0


def batch_for(rows: int, images: bool) -> int:
    """Rows of a step, more than there are where they are few."""
    return 32 if rows < 5000 else 500 if images else 128


def rate_for(optimizer: str, images: bool) -> float:
    """The learning rate at the start."""
    return TABLE["lr"] if optimizer == "adamw" and not images else OPTIMIZERS[optimizer]["lr"]
