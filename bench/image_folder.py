"""Images per second and accuracy of a CNN on a folder of PNG files with augmentation, beside the same in PyTorch.

    python bench/image_folder.py [--images 10000] [--epochs 3] [--threads 2] [--workers 2] [--photos] [--no-peers]

The images are those of MNIST (from $GRADLOOM_DATA or ../shared/data), written as PNG files of 28 x 28 pixels, or with
--photos 32 x 32 crops of two colour photographs of scikit-learn. Both networks have the same layers, initial weights by
their own rules, AdamW at 2e-3, batches of 64, random crops with a padding of 2 pixels and normalised pixels. PyTorch
decodes with Pillow in the workers of its DataLoader, in every epoch ("files"), or takes decoded images from memory
("memory"). Ours decodes once, and keeps decoded images up to `cache` bytes ("memory"), or none ("files").
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import SHARED, installed, pin, table

BATCH, PADDING = 64, 2


def write_mnist(folder: Path, count: int) -> None:
    from PIL import Image

    from gradloom.data.idx import read_idx

    data = Path(os.environ.get("GRADLOOM_DATA", SHARED)) / "mnist"
    for part, files, most in (("train", "train", count), ("test", "t10k", 2000)):
        images = read_idx(data / f"{files}-images-idx3-ubyte.gz")[:most]
        labels = read_idx(data / f"{files}-labels-idx1-ubyte.gz")[:most]
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = folder / part / f"digit {label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i:05}.png")


def write_photos(folder: Path, count: int) -> None:
    """Crops of the left and of the right of two photographs: four classes; tests come from their lowest third."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    for name, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        height, width = photo.shape[:2]
        for side, first in (("left", 0), ("right", width // 2)):
            for part, low, high, n in (
                ("train", 0, height * 2 // 3, count // 4),
                ("test", height * 2 // 3, height, 500),
            ):
                place = folder / part / f"{name} {side}"
                place.mkdir(parents=True)
                for i in range(n):
                    y, x = rng.integers(low, high - 32), first + rng.integers(0, width // 2 - 32)
                    Image.fromarray(photo[y : y + 32, x : x + 32]).save(place / f"{i:05}.png")


def ours(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    import gradloom as gl

    nn, transforms = gl.nn, gl.data.transforms
    train = gl.data.ImageFolder(
        folder, [transforms.RandomCrop(padding=PADDING), transforms.Normalize()], split="train",
        cache="1GiB" if args.source == "memory" else 1,
    )  # fmt: skip
    test = gl.data.ImageFolder(folder, like=train, split="test")
    channels, size, _ = train.shape
    net = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, len(train.classes)),
    )  # fmt: skip
    seconds: list[float] = []
    data = gl.data.MapDataset(train, workers=args.workers)
    gl.fit(
        net, data, epochs=args.epochs + 1, batch_size=BATCH, optimizer=gl.optim.AdamW(lr=2e-3), progress=False,
        val_split=0.0, threads=args.threads, on_epoch=lambda epoch: seconds.append(epoch.seconds),
    )  # fmt: skip
    accuracy = gl.evaluate(net, gl.data.MapDataset(test, workers=args.workers)).accuracy
    return {"images_per_second": len(train) / statistics.median(seconds[1:]), "accuracy": accuracy}


def theirs(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from PIL import Image
    from torch import nn

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, part: str) -> None:
            self.classes = sorted(one.name for one in (folder / part).iterdir())
            self.files = sorted((folder / part).rglob("*.png"))
            self.part, self.held = part, None
            if args.source == "memory":
                self.held = [np.asarray(Image.open(file)) for file in self.files]
            self.mean, self.std = 0.0, 1.0

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, i: int) -> Any:
            file = self.files[i]
            image = np.asarray(Image.open(file)) if self.held is None else self.held[i]
            image = image[..., None] if image.ndim == 2 else image
            if self.part == "train":
                padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
                y, x = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
                image = padded[y : y + image.shape[0], x : x + image.shape[1]]
            pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 255
            return (pixels - self.mean) / self.std, self.classes.index(file.parent.name)

    train, test = Images("train"), Images("test")
    some = np.stack([np.asarray(Image.open(file)) for file in train.files[:2000]]) / 255
    train.mean = test.mean = float(some.mean())
    train.std = test.std = float(some.std())
    channels, size, _ = train[0][0].shape
    net = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, len(train.classes)),
    )  # fmt: skip
    rule = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = torch.utils.data.DataLoader(train, batch_size=BATCH, shuffle=True, **workers)
    seconds = []
    for _ in range(args.epochs + 1):
        began = time.perf_counter()
        for x, y in loader:
            rule.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(net(x), y).backward()
            rule.step()
        seconds.append(time.perf_counter() - began)
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in torch.utils.data.DataLoader(test, batch_size=500))
    return {"images_per_second": len(train) / statistics.median(seconds[1:]), "accuracy": right / len(test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--photos", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--work", nargs=2, metavar=("WHO", "FOLDER"), help="one figure, in a process of its own")
    parser.add_argument("--source", choices=("memory", "files"), default="memory")
    args = parser.parse_args()
    pin(args.threads)
    if args.work:
        who, folder = args.work
        print(json.dumps((ours if who == "gradloom" else theirs)(Path(folder), args)))
        return
    with tempfile.TemporaryDirectory() as made:
        (write_photos if args.photos else write_mnist)(Path(made), args.images)
        runs = [("gradloom", args.workers)]
        if installed("torch") and not args.no_peers:
            runs += [("torch", 0), ("torch", args.workers)]
        lines = []
        for source in ("memory", "files"):
            for who, workers in runs:
                command = [sys.executable, __file__, "--work", who, made, "--source", source]
                for name, value in (("epochs", args.epochs), ("threads", args.threads), ("workers", workers)):
                    command += [f"--{name}", str(value)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                speed = f"{found['images_per_second']:.0f}"
                lines.append((f"{who}, {source}, {workers} workers", speed, f"{found['accuracy']:.4f}"))
    table(lines, (f"{args.threads} threads", "images/s", "accuracy of the test"))


if __name__ == "__main__":
    main()
