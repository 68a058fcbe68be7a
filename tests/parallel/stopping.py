"""Run by every rank: trainings that listeners end, with a plateau, clipping and an optimiser that goes on."""

import hashlib
import sys

import numpy as np

import gradloom as gl

rng = np.random.default_rng(0)
x, y = rng.standard_normal((90, 4)).astype(np.float32), rng.integers(0, 3, 90).astype(np.int32)
net = gl.nn.Sequential(
    gl.nn.Linear(4, 16, activation="relu"), gl.nn.BatchNorm(16), gl.nn.Dropout(0.1), gl.nn.Linear(16, 3)
).init(0)
optimizer = gl.optim.AdamW(net.parameters(), lr=gl.optim.schedules.Plateau(0.05, 0.5, 1))


def fit(**options):
    return gl.fit(
        net, (x, y), optimizer=optimizer, batch_size=12, micro_batch_size=4, val_split=0.2, max_norm=0.5, seed=1,
        progress=False, parallel="mpi", **options,
    )  # fmt: skip


batches = []


def third(at):
    batches.append(at)
    if len(batches) == 3:
        raise gl.train.StopTraining


early = fit(epochs=40, on_epoch=gl.train.EarlyStopping(4, restore_best=True))
more = fit(epochs=2)
cut = fit(epochs=5, on_train_batch=third)
bits = hashlib.sha256(b"".join(array.tobytes() for array in net.state_dict().values())).hexdigest()[:16]
numbers = [len(early), [at.epoch for at in more], len(cut), cut[0].train.ndata, optimizer.steps, optimizer.epoch]
sys.stdout.write(f"{numbers} {optimizer.state.memories} {early[-1].val.loss:.9f} {bits}\n")
