"""Runs that are killed at drawn moments and resumed, held against runs that nothing stopped: the same bits?

    python bench/kill.py [--kills 100] [--seed 0] [--work fit,mlp,cnn,ranks,finetune]

Each work is a process of its own. `fit` and `finetune` are the commands on real data; `mlp` (dropout, a plateau
schedule, early stopping that restores the best) and `cnn` (batch norm, accumulation) are calls of gl.fit; `ranks` is
mlp under mpiexec. It runs once undisturbed. Then SIGKILL comes after a drawn time, and the run is resumed, at every
other resume with another number of threads (1, 2) or ranks (1, 2, 3), until it ends: its files are compared by byte
with those of the undisturbed run. After each kill every checkpoint that the folder shows must be readable. mlp and cnn
kill themselves, too, once in each of: the first step, the last batch of an epoch, an evaluation, the writing of a
checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from common import HERE, SHARED, table

DATA = HERE.parent / "examples" / "data"
MOMENTS = ("first step", "last batch", "evaluation", "writing")
LIMIT = 300.0  # seconds that a run may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", default="fit,mlp,cnn,ranks,finetune")
    parser.add_argument("--child", nargs=3, metavar=("WORK", "FOLDER", "MOMENT"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(*args.child, args.threads)
        return
    model = SHARED / "gguf" / "stories260K.gguf"
    known = {
        "fit": Work("fit", _fit_command, ("model.safetensors",)),
        "mlp": Work("mlp", _child("mlp"), ("final.safetensors", "history.txt"), moments=True),
        "cnn": Work("cnn", _child("cnn"), ("final.safetensors", "history.txt"), moments=True),
        "ranks": Work("ranks", _child("ranks"), ("final.safetensors", "history.txt"), ranks=True),
        "finetune": Work("finetune", lambda *a: _finetune_command(model, *a), ("adapter.gguf",)),
    }
    works = [known[name] for name in args.work.split(",")]
    if known["finetune"] in works and not model.exists():
        print(f"finetune is left out: {model} is not there", file=sys.stderr)
        works.remove(known["finetune"])
    rng = random.Random(args.seed)
    share = -(-args.kills // len(works))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            print(f"{work.name}: ", end="", flush=True, file=sys.stderr)
            work.measure(Path(folder), share, rng)
            print(file=sys.stderr)
            rows.append((work.name, work.kills, work.resumes, work.ends, work.changed, work.differing, work.unreadable))
    total = [sum(row[i] for row in rows) for i in range(1, 7)]
    heads = ("", "kills", "resumes", "runs ended", "other threads, ranks", "other bits", "unreadable")
    table([*rows, ("all", *total)], heads)
    sys.exit(1 if total[4] or total[5] else 0)


@dataclass
class Work:
    """What is trained, how its process is started, and which files it leaves."""

    name: str
    command: Callable[[Path, bool, int, int, str], list[str]]  # (folder, resume, threads, ranks, moment)
    files: tuple[str, ...]
    moments: bool = False
    ranks: bool = False
    kills: int = 0
    resumes: int = 0
    ends: int = 0
    changed: int = 0
    differing: int = 0
    unreadable: int = 0
    expected: dict[str, str] = field(default_factory=dict)

    def measure(self, folder: Path, kills: int, rng: random.Random) -> None:
        whole = folder / f"{self.name}-whole"
        began = time.perf_counter()
        self._run(whole, False, 1, 1, "", None)
        seconds = time.perf_counter() - began
        self.expected = _digests(whole, self.files)
        if self.moments:
            for moment in MOMENTS:
                self._chain(folder, rng, seconds, [moment])
        while self.kills < kills:
            self._chain(folder, rng, seconds, [""] * rng.randint(1, 4))

    def _chain(self, folder: Path, rng: random.Random, seconds: float, stops: list[str]) -> None:
        """One run that is killed at these moments ("": after a drawn time), then left to its end."""
        place = folder / f"{self.name}-{self.ends}"
        threads, ranks, resume = 1, 1, False
        for moment in [*stops, None]:
            if resume and rng.random() < 0.5:
                threads, ranks = rng.choice((1, 2)), rng.choice((1, 2, 3)) if self.ranks else 1
                self.changed += 1
            self.resumes += resume
            after = None if moment is None else LIMIT if moment else rng.uniform(0.05, 1.0) * seconds
            killed = self._run(place, resume, threads, ranks, moment or "", after)
            if killed:
                self.kills += 1
                self._check(place)
                print("k", end="", flush=True, file=sys.stderr)
            resume = True
            if not killed:
                break
        self.ends += 1
        found = _digests(place, self.files)
        same = found == self.expected
        self.differing += not same
        print("." if same else "D", end="", flush=True, file=sys.stderr)
        if same:
            shutil.rmtree(place)
        else:
            kept = Path(tempfile.mkdtemp(prefix="kill-")) / self.name
            shutil.move(place, kept)
            print(f"\n{self.name}: other bits, kept in {kept}", file=sys.stderr)

    def _run(self, place: Path, resume: bool, threads: int, ranks: int, moment: str, after: float | None) -> bool:
        """Start the process; whether it was killed."""
        place.mkdir(exist_ok=True)
        command = self.command(place, resume, threads, ranks, moment)
        log = place.parent / f"{place.name}.log"
        with log.open("a") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(LIMIT if after is None else after)
        except subprocess.TimeoutExpired:
            if after is None or moment:
                raise RuntimeError(f"{self.name} has not ended in {LIMIT:g} s; see {log}") from None
        finally:
            _kill_group(process)
        if process.returncode == -signal.SIGKILL or (moment and self.ranks and process.returncode):
            return True
        if process.returncode or moment:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{log.read_text()[-2000:]}")
        return False

    def _check(self, place: Path) -> None:
        bad = _unreadable(place)
        self.unreadable += bool(bad)
        for text in bad:
            print(f"\n{self.name}: {text}", file=sys.stderr)


def _unreadable(folder: Path) -> list[str]:
    """What is wrong with the checkpoints that a run's folder shows."""
    from gradloom import FileError
    from gradloom.files.checkpoint_files import manifests, read_checkpoint

    problems = []
    for place in {manifest.parent for manifest in folder.rglob("step-*.json")}:
        whole, damaged = manifests(place)
        problems += map(str, damaged.values())
        for manifest in whole:
            try:
                read_checkpoint(manifest)
            except FileError as error:  # noqa: PERF203
                problems.append(str(error))
    return problems


def _kill_group(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _digests(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _fit_command(folder: Path, resume: bool, threads: int, ranks: int, moment: str) -> list[str]:
    command = [sys.executable, "-m", "gradloom", "fit", str(DATA / "digits.npz"), "--out", str(folder)]
    command += ["--threads", str(threads), "--epochs", "30", "--val-split", "0.1", "--checkpoint-every", "50steps"]
    return command + ["--resume"] * resume


def _finetune_command(model: Path, folder: Path, resume: bool, threads: int, ranks: int, moment: str) -> list[str]:
    text = folder.parent / "text.txt"
    if not text.exists():
        text.write_text((SHARED / "text" / "tinyshakespeare.txt").read_text()[:30_000])
    command = [
        sys.executable,
        "-m",
        "gradloom",
        "finetune",
        str(model),
        str(text),
        "--out",
        str(folder / "adapter.gguf"),
    ]
    command += ["--threads", str(threads), "--steps", "60", "--context", "64", "--batch-size", "8", "--dropout", "0.1"]
    command += ["--micro-batch-size", "2", "--checkpoint-every", "5steps"]
    return command + ["--resume"] * resume


def _mpiexec() -> str:
    """mpiexec, of this environment or of the machine."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("mpiexec", path=places)
    if found is None:
        sys.exit("ranks: mpiexec is not there; need pip install '.[mpi]'")
    return found


def _child(name: str) -> Callable[[Path, bool, int, int, str], list[str]]:
    def command(folder: Path, resume: bool, threads: int, ranks: int, moment: str) -> list[str]:
        start = [_mpiexec(), "-n", str(ranks)] if name == "ranks" else []
        mine = [sys.executable, __file__, "--threads", str(threads), "--child", name, str(folder), moment or "-"]
        return [*start, *mine]

    return command


# ---- what a child does ---------------------------------------------------------------------------------------


def train(name: str, folder: str, moment: str, threads: int) -> None:
    """A run of gl.fit that goes on where its folder says. At `moment` it kills itself."""
    import numpy as np

    import gradloom as gl

    rng = np.random.default_rng(7)
    x = rng.random((1200, 1, 12, 12), dtype=np.float32)
    y = (x[:, 0, :6].sum((1, 2)) > x[:, 0, 6:].sum((1, 2))).astype(np.int32)
    nn = gl.nn
    if name == "cnn":
        net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    else:
        net = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
    micro = {"mlp": None, "cnn": 8, "ranks": 8}[name]
    rate = gl.optim.schedules.Plateau(3e-3, factor=0.5, patience=1)
    batches = 0

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch(at: gl.train.Progress) -> None:
        if moment == "first step" or (moment == "last batch" and at.rows == at.rows_total):
            die()

    def on_eval_batch(at: gl.train.Progress) -> None:
        nonlocal batches
        batches += 1
        if batches == 25:  # in the middle of the third validation
            die()

    if moment == "writing":
        syncs = iter([os.fsync] * 4)
        really = os.fsync
        os.fsync = lambda handle: really(handle) if next(syncs, None) else die()
    history = gl.fit(
        net, (x, y), optimizer=gl.optim.AdamW(lr=rate, weight_decay=0.01), epochs=12, batch_size=24, val_split=0.2,
        micro_batch_size=micro, seed=3, threads=threads, progress=False, run=folder, resume=True,
        checkpoint_every="7steps", parallel="mpi" if name == "ranks" else None,
        on_epoch=gl.train.EarlyStopping(patience=4, restore_best=True),
        on_train_batch=on_train_batch if moment in ("first step", "last batch") else None,
        on_eval_batch=on_eval_batch if moment == "evaluation" else None,
    )  # fmt: skip
    lines = [f"{r.epoch} {r.train.loss!r} {r.train.correct} {r.val.loss!r} {r.val.correct}\n" for r in history]
    if name != "ranks" or not gl.parallel.communicator("mpi").rank:
        Path(folder, "history.txt").write_text("".join(lines))
    gl.save(net, Path(folder, "final.safetensors"))


if __name__ == "__main__":
    main()
