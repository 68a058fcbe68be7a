"""Defaults that several packages share; no imports, so that commands start fast."""

VALIDATED = 0.15  # share of a table's training rows for validation
LEAST_VALIDATED = 100  # training rows that are required for validation by default
# The first learning rate of a fine-tuning: of an adapter, and of the model's own tensors
FINETUNE_RATES = {"lora": 2e-4, "full": 2e-5}
FINETUNE_SCHEDULE, FINETUNE_WARMUP = "cosine", 0.03  # the warm-up is a share of the steps
FINETUNE_BATCH = 4
