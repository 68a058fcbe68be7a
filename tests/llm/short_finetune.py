"""A short fine-tuning, and all its numbers for a comparison."""

import gradloom as gl
from tests.train.split_training import told


def finetune(path, data, parallel, adapter=None, **settings):
    """(trained arrays, results, report) of a short run; all settings are those of Run."""
    model = gl.llm.load(path)
    given = gl.llm.LoRA(rank=4, dropout=0.1, seed=1) if adapter is None else adapter()
    settings = {"batch_size": 5, "micro_batch_size": 2, "epochs": 2, "val_split": 0.2, "threads": 1} | settings
    run = gl.llm.finetune(model, data, given, parallel=parallel, progress=False, lr=1e-2, **settings)
    arrays = {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}
    results = [told(r) for r in (run.before, *(r for epoch in run.history for r in (epoch.train, epoch.val)))]
    same = ("steps", "tokens", "train_loss", "val_loss", "rows_train", "micro_batch_size", "ranks")
    return arrays, results, {name: run.report[name] for name in same}
