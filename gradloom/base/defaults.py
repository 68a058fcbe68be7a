"""What the training of a table or of images takes where nobody says otherwise; no imports: commands start fast."""

from __future__ import annotations

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


def hidden_for(images: bool) -> list[int]:
    """Widths of the hidden layers."""
    return [500] if images else [64, 64]


def epochs_for(rows: int, images: bool) -> int:
    """Passes over so many training rows."""
    return 100 if rows < 1000 else 10 if images and rows >= 20000 else 50


def batch_for(rows: int, images: bool) -> int:
    """Rows of a step, more than there are where they are few."""
    return 32 if rows < 5000 else 500 if images else 128
