"""Training on ranks that are threads, and all its numbers for a comparison."""

from __future__ import annotations

import threading

import gradloom as gl
from gradloom.parallel import threads
from tests.train.small_models import data


def on_ranks(count, work, timeout=120.0):
    """What `work(communicator)` gave on each rank, or the error that it raised."""
    ranks = threads(count, timeout)
    found = [None] * count

    def run(rank):
        try:
            with ranks[rank] as own:
                found[rank] = work(own)
        except BaseException as error:
            found[rank] = error

    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def raised(found):
    """The first error of those that `on_ranks` returned, or None; one of a rank alone before those of its peers."""
    errors = [each for each in found if isinstance(each, BaseException)]
    return next((error for error in errors if not isinstance(error, gl.TrainError)), errors[0] if errors else None)


def told(result, kept=True):
    """Every number of a Result; kept: with its predictions."""
    shown = (result.loss, result.loss_unc, result.accuracy, result.accuracy_unc, result.ndata, result.batches)
    return str(shown), result.predictions.tobytes() if kept else b""


def train(make, parallel, micro, rows=150, **options):
    """Weights and buffers, and all results, of two epochs with short last batches."""
    net, found = make(), data(make, rows)
    settings = {"epochs": 2, "batch_size": 64, "val_split": 0.2, "progress": False, "threads": 1} | options
    settings.setdefault("optimizer", gl.optim.AdamW(lr=0.01))
    history = gl.fit(net, found, seed=3, micro_batch_size=micro, parallel=parallel, **settings)
    test = gl.evaluate(net, found, batch_size=20, parallel=parallel, threads=1)
    results = [told(r, epoch is history[-1]) for epoch in history for r in (epoch.train, epoch.val)]
    return {name: array.tobytes() for name, array in net.state_dict().items()}, [*results, told(test)]
