"""The first step after a resume whose loss differs from that of the run that was never stopped, beside peers.

    python bench/resume.py [--steps 120] [--stop 50]

An MLP 784-512-10 with layer norm and dropout, AdamW with a falling rate, 2560 rows, batch 128, shuffled in each epoch.
A process trains `steps` steps. Another trains `stop` steps (in the middle of an epoch), saves and ends; a third goes on
from there, once with as many threads and once with another number. PyTorch twice: a loop as it is often written
(weights, optimiser, scheduler, epoch: an epoch begins again), and one that saves all it can (random states, too, the
order of rows, and how many batches to skip). Hugging Face's Trainer, where it is installed, resumes from its own
checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from common import table

ROWS, BATCH, PEERS = 2560, 128, ("gradloom", "torch-plain", "torch-all", "trainer")
NAMES = {
    "gradloom": "gradloom, gl.fit(run=, resume=True)",
    "torch-plain": "PyTorch, weights and optimiser",
    "torch-all": "PyTorch, all that a loop can save",
    "trainer": "Hugging Face Trainer",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--stop", type=int, default=50)
    parser.add_argument("--child", nargs=3, metavar=("PEER", "PART", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        peer, part, folder = args.child
        losses = CHILDREN[peer](part, Path(folder), args.steps, args.stop, args.threads)
        print(json.dumps({str(step): loss.hex() for step, loss in losses.items()}))
        return
    rows = []
    for peer in PEERS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch, "run"))
            os.mkdir(folder)
            whole = _losses(args, peer, "whole", folder, 1)
            if whole is None:
                continue
            _losses(args, peer, "first", folder, 1)
            cells = []
            for threads in (1, 2):
                copy = Path(scratch, f"{peer}-{threads}")  # what is resumed here changes the folder
                shutil.copytree(folder, copy)
                again = _losses(args, peer, "rest", str(copy), threads)
                if not again:
                    sys.exit(f"{peer}: nothing was trained after the resume")
                steps = sorted(again, key=int)
                differing = [step for step in steps if again[step] != whole[step]]
                first = int(differing[0]) - args.stop if differing else None
                cells.append(f"none of {len(steps)}" if first is None else f"step {first}")
            rows.append((NAMES[peer], *cells))
    table(rows, ("first loss that differs after the resume", "same threads", "2 threads, not 1"))


def _losses(args: argparse.Namespace, peer: str, part: str, folder: str, threads: int) -> dict[str, str] | None:
    command = [sys.executable, __file__, "--steps", str(args.steps), "--stop", str(args.stop)]
    command += ["--threads", str(threads), "--child", peer, part, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if done.returncode:
        print(f"{peer}: {part}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _data():
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.random((ROWS, 784), dtype=np.float32)
    return x, (x[:, :78].sum(1) * 10 % 10).astype(np.int64)


def _gradloom(part: str, folder: Path, steps: int, stop: int, threads: int) -> dict[int, float]:
    import gradloom as gl

    losses: dict[int, float] = {}

    class Losses(gl.train.Callback):
        stateless = True

        def on_batch(self, batch) -> None:
            losses[batch.step] = float(batch.loss)
            if part == "first" and batch.step == stop:
                signal.raise_signal(signal.SIGINT)  # Ctrl-C

    nn = gl.nn
    net = nn.Sequential(nn.Linear(784, 512), nn.LayerNorm(512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10))
    rate = gl.optim.schedules.Cosine(1e-3, steps=steps)
    with contextlib.suppress(KeyboardInterrupt):
        gl.fit(
            net, _data(), optimizer=gl.optim.AdamW(lr=rate), epochs=-(-steps * BATCH // ROWS), batch_size=BATCH,
            threads=threads, progress=False, callbacks=[Losses()],
            **({} if part == "whole" else {"run": folder / "run", "resume": part == "rest"}),
        )  # fmt: skip
    return losses


def _torch(part: str, folder: Path, steps: int, stop: int, threads: int, everything: bool) -> dict[int, float]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = map(torch.from_numpy, _data())
    net = torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.LayerNorm(512), torch.nn.ReLU(), torch.nn.Dropout(0.2),
        torch.nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=BATCH, shuffle=True, generator=order
    )
    losses: dict[int, float] = {}
    step = skip = epoch = 0
    file = folder / "checkpoint.pt"
    if part == "rest":
        saved = torch.load(file, weights_only=False)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        step, epoch = saved["step"], saved["epoch"]
        if everything:
            order.set_state(saved["order"])
            skip = saved["batch"]
    while step < steps:
        began = order.get_state()
        for batch, (rows, labels) in enumerate(loader):
            if batch < skip:
                continue
            if batch == skip and skip:
                torch.set_rng_state(saved["random"])
            skip = 0
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(rows), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            losses[step] = loss.item()
            if part == "first" and step == stop:
                parts = {"net": net, "optimizer": optimizer, "schedule": schedule}
                state = {name: one.state_dict() for name, one in parts.items()}
                state |= {"step": step, "epoch": epoch, "batch": batch + 1, "order": began}
                torch.save(state | {"random": torch.get_rng_state()}, file)
                return losses
            if step == steps:
                break
        epoch += 1
    return losses


def _trainer(part: str, folder: Path, steps: int, stop: int, threads: int) -> dict[int, float]:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = map(torch.from_numpy, _data())

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(784, 512), torch.nn.LayerNorm(512), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                torch.nn.Linear(512, 10),
            )  # fmt: skip

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.cross_entropy(self.net(x), labels)}

    losses: dict[int, float] = {}

    class Told(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses[self.state.global_step + 1] = loss.item()
            return loss

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if part == "first" and state.global_step == stop:
                control.should_save = control.should_training_stop = True

    args = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3,
        lr_scheduler_type="cosine", save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True, seed=0,
        disable_tqdm=True,
    )  # fmt: skip
    data = [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)]
    trainer = Told(Net(), args, train_dataset=data, callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=part == "rest")
    return losses


CHILDREN = {
    "gradloom": _gradloom,
    "torch-plain": lambda *a: _torch(*a, everything=False),
    "torch-all": lambda *a: _torch(*a, everything=True),
    "trainer": _trainer,
}


if __name__ == "__main__":
    main()
