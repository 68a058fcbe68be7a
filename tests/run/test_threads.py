"""Threads and processes under load: any object may be used from any thread; calls take turns or a typed error says why.

Each load runs for a share of STRESS_SECONDS (30 by default; a number in the environment), with STRESS_ONLY those whose
name contains it:

    STRESS_SECONDS=1200 python -m pytest -q tests/run/test_threads.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import BackendError, DataError, GradientError, GradloomError, TrainError
from gradloom.nn.initial import filled
from tests import processes

LOADS = 12  # how many share the time
SECONDS = float(os.environ.get("STRESS_SECONDS", "30")) / LOADS
ROOT = Path(__file__).parents[2]


def together(*works: Callable[[], object], timeout: float = 300 + SECONDS) -> None:
    """Run the works in threads of their own until all have ended; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    until = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def rounds(least: int = 3) -> Iterator[int]:
    """0, 1, ... until the time of this load is over."""
    until = time.monotonic() + SECONDS
    number = 0
    while number < least or time.monotonic() < until:
        yield number
        number += 1


def mlp(dropout: float = 0.0) -> gl.nn.Module:
    middle = [gl.nn.Dropout(dropout)] if dropout else []
    return gl.nn.Sequential(gl.nn.Linear(16, 64), gl.nn.ReLU(), *middle, gl.nn.Linear(64, 3))


def rows(seed: int, n: int = 200) -> gl.data.Dataset:
    rng = np.random.default_rng(seed)
    return gl.data.Dataset(rng.standard_normal((n, 16)).astype(np.float32), rng.integers(0, 3, n))


class Level(gl.nn.Module):
    """Its output is its one parameter, whose numbers are equal before and after every step of `fall`."""

    def __init__(self, n: int = 1 << 18) -> None:
        super().__init__()
        self.w = self.parameter((n,), filled(0.0))

    def forward(self, x):
        return x * self.w


def fall(module: Level, steps: int) -> None:
    """So many steps, each of which lowers every number of the parameter by 2^-10."""
    data = gl.data.Dataset(np.ones((steps, 1), np.float32))
    gl.fit(
        module, data, loss="sum", optimizer=gl.optim.SGD(lr=2.0**-10), batch_size=1, epochs=1, progress=False
    )  # fmt: skip


# ---- compiled programs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.slow
def test_one_program_called_by_several_threads_answers_each_with_its_own_numbers(backend: str) -> None:
    a = gl.parameter(np.random.default_rng(0).standard_normal((64, 64)), name="a")
    x, scale = gl.input("x", (64, 64)), gl.setting("scale")
    run = gl.compile([(x @ a) * scale, ops.sum(x)], backend=backend)

    def work(k: int) -> Callable[[], None]:
        mine = np.random.default_rng(k).standard_normal((64, 64)).astype(np.float32)
        want = [r.tobytes() for r in run(x=mine, scale=float(k))]

        def calls() -> None:
            for _ in rounds(20):
                assert [r.tobytes() for r in run(x=mine, scale=float(k))] == want

        return calls

    together(*[work(k) for k in range(1, 5)])


@pytest.mark.slow
def test_programs_are_compiled_while_others_run_in_the_arena_that_grows() -> None:
    def work(k: int) -> Callable[[], None]:
        def calls() -> None:
            rng = np.random.default_rng(k)
            for i in rounds():
                n = 16 + 8 * (i % 40) + k
                x = gl.input("x", (n, n))
                run = gl.compile(ops.relu(x @ x) @ x)
                data = rng.integers(-2, 3, (n, n)).astype(np.float32)  # exact in any order of sums
                assert np.array_equal(run(x=data)[0], np.maximum(data @ data, 0) @ data)

        return calls

    together(*[work(k) for k in range(3)])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_run_inside_of_a_signal_handler_is_refused_and_does_not_hang() -> None:
    x, y = gl.input("x", (768, 768)), gl.input("y", (2, 2))
    long = x
    for _ in range(100):
        long = long @ x
    run, small = gl.compile(long), gl.compile(y * 2)
    refused: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            gl.compile(y * 3)(y=np.ones((2, 2)))
        except BackendError as error:
            refused.append(error)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while not refused:  # where the machine is quick, the signal comes between two runs
            assert np.array_equal(run(x=np.eye(768))[0], np.eye(768))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert "signal handler" in str(refused[0])
    assert np.array_equal(small(y=np.ones((2, 2)))[0], np.full((2, 2), 2.0))


# ---- training and prediction ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fits_of_two_models_give_the_bits_that_each_gives_alone() -> None:
    def trained(k: int) -> bytes:
        net = mlp(dropout=0.3)
        gl.fit(net, rows(k), epochs=3, batch_size=20, val_split=0.2, seed=k, progress=False)
        return b"".join(a.tobytes() for a in net.state_dict().values())

    alone = [trained(k) for k in range(2)]

    def work(k: int) -> None:
        for _ in rounds():
            assert trained(k) == alone[k]

    together(lambda: work(0), lambda: work(1))


@pytest.mark.slow
def test_weights_are_read_between_two_steps_while_they_are_trained() -> None:
    module = Level()
    module.init()
    done = threading.Event()
    seen: list[float] = []

    def train() -> None:
        try:
            for _ in rounds():
                fall(module, 60)
        finally:
            done.set()

    def check(found: np.ndarray) -> None:
        assert found.min() == found.max(), "some numbers are of another step"
        seen.append(float(found.flat[0]))

    def predict() -> None:
        x = np.ones((1, 1), np.float32)
        while not done.is_set():
            check(gl.predict(module, x))

    def read() -> None:
        while not done.is_set():
            check(module.w.numpy())
            check(module.state_dict()["w"])
            check(ops.mul(module.w, gl.tensor(1.0)).numpy())

    together(train, predict, read)
    assert len(set(seen)) > 2


def test_two_fits_of_one_model_lose_no_step() -> None:
    module = Level(1 << 14)
    module.init()
    counts = [0, 0]

    def work(k: int) -> None:
        for _ in rounds():
            fall(module, 40)
            counts[k] += 40

    together(lambda: work(0), lambda: work(1))
    assert np.array_equal(module.w.numpy(), np.full(module.w.shape, -sum(counts) / 1024, np.float32))


@pytest.mark.slow
def test_prediction_drops_nothing_while_the_same_model_is_trained_with_dropout() -> None:
    net = mlp(dropout=0.5).init(0)
    data = rows(0)
    frozen = gl.optim.SGD(lr=1e-30)  # the weights keep their bits
    want = gl.predict(net, data.data).tobytes()
    trained: list[float] = []
    done = threading.Event()

    def train() -> None:
        try:
            for i in rounds():
                trainer = gl.train.Trainer(net, optimizer=frozen, dynamic=True, seed=i)
                trained.append(trainer.step(data.data[:50], data.labels[:50]).loss)
        finally:
            done.set()

    def predict() -> None:
        while not done.is_set():
            assert gl.predict(net, data.data).tobytes() == want
            assert net.training

    together(train, predict, predict)
    plain = gl.evaluate(net, gl.data.Dataset(data.data[:50], data.labels[:50])).loss
    assert all(loss != plain for loss in trained), "a step was trained without dropout"


def test_a_trainer_in_a_pass_refuses_another_thread() -> None:
    net, data = mlp(), rows(0)
    trainer = gl.train.Trainer(net)
    errors: list[GradloomError] = []

    def other() -> None:
        for use in (
            lambda: trainer.step(data.data[:10], data.labels[:10]),
            lambda: gl.epoch(trainer, data, batch_size=10),
        ):
            try:
                use()
            except GradloomError as error:
                errors.append(error)

    def listen(at: object) -> None:
        if not errors:
            together(other)

    gl.epoch(trainer, data, batch_size=10, on_train_batch=listen)
    assert len(errors) == 2 and all(isinstance(e, TrainError) and "another thread" in str(e) for e in errors)
    gl.epoch(trainer, data, batch_size=10)  # and afterwards it is free
    together(lambda: gl.epoch(trainer, data, batch_size=10))


def test_a_long_fit_lets_others_have_their_turn() -> None:
    """Calls take turns one native call at a time: predictions are answered while a fit of another model goes on."""
    net, big = mlp().init(0), gl.nn.Sequential(gl.nn.Linear(16, 512), gl.nn.ReLU(), gl.nn.Linear(512, 3))
    started, done = threading.Event(), threading.Event()
    answered: list[int] = []

    def train() -> None:
        try:
            gl.fit(
                big, rows(0, 4000), epochs=1000, batch_size=20, progress=False, on_progress=lambda at: started.set(),
                on_epoch=lambda result: stop() if len(answered) > 20 else None,
            )  # fmt: skip
        finally:
            done.set()

    def stop() -> None:
        raise gl.train.StopTraining

    def predict() -> None:
        started.wait(60)
        while not done.is_set():
            gl.predict(net, np.ones((2, 16), np.float32))
            answered.append(1)

    together(train, predict)
    assert len(answered) > 20


# ---- eager -------------------------------------------------------------------------------------------------------


def eager_steps(net: gl.nn.Module, optimizer: gl.optim.Optimizer, data: gl.data.Dataset, count: int) -> None:
    x, y = data.data[:40], data.labels[:40]
    for i in range(count):
        with gl.grad_tape(seed=1, step=i) as tape:
            loss = gl.ops.cross_entropy(net(gl.tensor(x)), gl.tensor(y))
        optimizer.step(tape.backward(loss))


@pytest.mark.slow
def test_eager_loops_side_by_side_give_the_bits_that_each_gives_alone() -> None:
    def trained(k: int) -> bytes:
        net = mlp(dropout=0.2).init(k)
        eager_steps(net, gl.optim.AdamW(net.parameters(), lr=1e-2), rows(k), 15)
        return b"".join(a.tobytes() for a in net.state_dict().values())

    alone = [trained(k) for k in range(3)]

    def work(k: int) -> None:
        for _ in rounds():
            assert trained(k) == alone[k]

    together(*[lambda k=k: work(k) for k in range(3)])


@pytest.mark.slow
def test_one_optimiser_stepped_by_two_threads_counts_every_step() -> None:
    module = Level(64)
    module.init()
    optimizer = gl.optim.SGD(module.parameters(), lr=2.0**-10)
    taken = [0, 0]

    def work(k: int) -> None:
        for _ in rounds(20):
            with gl.grad_tape() as tape:
                loss = ops.sum(module(gl.tensor(1.0)))
            try:
                optimizer.step(tape.backward(loss))
            except GradientError as error:  # the other thread has changed the weights since the loss
                assert "changed" in str(error)
                continue
            taken[k] += 1

    together(lambda: work(0), lambda: work(1))
    assert optimizer.steps == sum(taken) > 2
    assert np.array_equal(module.w.numpy(), np.full(64, -sum(taken) / 1024, np.float32))


def test_a_tensor_of_one_thread_is_used_by_others() -> None:
    def look(x: gl.Tensor, found: list[np.ndarray]) -> None:
        found.append((x + 1.0).numpy())

    for i in rounds():
        x = gl.tensor(np.arange(1000.0)) * 2.0 + float(i)
        found: list[np.ndarray] = []
        together(*[partial(look, x, found) for _ in range(4)])
        assert all(np.array_equal(f, np.arange(1000.0) * 2 + i + 1) for f in found) and len(found) == 4


# ---- language models ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_model_generates_for_several_threads_what_it_generates_for_one(tmp_path: Path) -> None:
    from gradloom.llm import load
    from gradloom.llm.generate import complete
    from gradloom.llm.sampling import Sampling
    from tests.llm.random_models import write

    model = load(write(tmp_path))
    prompts = [list(range(5 + k, 80 + 7 * k)) for k in range(3)]

    def text(k: int) -> tuple[int, ...]:
        return complete(model, prompts[k], max_tokens=12, how=Sampling(0.8, 40, 0.95, k)).tokens

    alone = [text(k) for k in range(3)]
    first = complete(model, prompts[0], max_tokens=2, how=Sampling(0.0))

    def work(k: int) -> None:
        for _ in rounds():
            assert text(k) == alone[k]

    together(*[lambda k=k: work(k) for k in range(3)])
    held: list[object] = []  # and where a listener generates with the same model
    complete(model, prompts[0], max_tokens=2, how=Sampling(0.0), stream=lambda _: held.append(text(1)))
    assert complete(model, prompts[0], max_tokens=2, how=Sampling(0.0)).tokens == first.tokens
    assert all(h == alone[1] for h in held)


def test_a_generator_fed_by_another_thread_in_between_says_so(tmp_path: Path) -> None:
    from gradloom.llm import load
    from gradloom.llm.generate import Generator
    from gradloom.llm.sampling import Sampling
    from tests.llm.random_models import write

    generator = Generator(load(write(tmp_path)), rows=100)
    tokens = generator.tokens([1, 2, 3], 5, Sampling(0.0))
    next(tokens)
    together(lambda: generator.feed([4]))
    with pytest.raises(DataError, match="another call has fed this generator"):
        next(tokens)


# ---- data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.slow
def test_batches_of_one_iterator_go_to_several_threads_each_once(prefetch: bool) -> None:
    for _ in rounds():
        x = np.arange(4096, dtype=np.float32)
        batches = iter(gl.data.DataLoader(x, batch_size=4, prefetch=prefetch))
        taken: list[np.ndarray] = []

        def take(batches: Iterator[np.ndarray] = batches, taken: list[np.ndarray] = taken) -> None:
            taken.extend(np.ravel(batch) for batch in batches)

        together(take, take, take)
        assert np.array_equal(np.sort(np.concatenate(taken)), x)


# ---- processes ---------------------------------------------------------------------------------------------------

TRAINS = """
    import os, sys, threading, time
    import numpy as np
    import gradloom as gl

    rng = np.random.default_rng(0)
    data = gl.data.Dataset(rng.standard_normal((2000, 64)).astype(np.float32), rng.integers(0, 3, 2000))

    def train(epochs=1, seed=0, threads=2, heard=None):
        net = gl.nn.Sequential(gl.nn.Linear(64, 256), gl.nn.ReLU(), gl.nn.Linear(256, 3))
        gl.fit(net, data, epochs=epochs, batch_size=50, seed=seed, progress=False, threads=threads, on_progress=heard)
        return b"".join(a.tobytes() for a in net.state_dict().values())
"""


def python(script: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    env = processes.environment()
    code = textwrap.dedent(TRAINS) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    "work",
    [
        "train(10**6, heard=lambda at: began.set())",
        "long()",
        "eager()",
    ],
)
@pytest.mark.slow
def test_a_process_ends_with_its_own_code_while_daemon_threads_train(work: str) -> None:
    script = f"""
    began = threading.Event()

    def long():  # one native call of seconds, which looks for signals
        a = gl.parameter(np.eye(768), name="a", trainable=False)
        x = y = gl.input("x", (768, 768))
        for _ in range(400):
            y = y @ a
        run = gl.compile(y)
        began.set()
        run(x=np.eye(768, dtype=np.float32))

    def eager():
        net = gl.nn.Linear(64, 64).init(0)
        while True:
            net(gl.tensor(data.data[:100])).numpy()
            began.set()

    for _ in range(2):
        threading.Thread(target=lambda: {work}, daemon=True).start()
    assert began.wait(100)
    time.sleep(0.05 + float(rng.random()) * 0.1)
    sys.exit(7)
    """
    for _ in rounds(2):
        ended = python(script)
        assert ended.returncode == 7, (ended.returncode, ended.stderr)
        assert ended.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_children_forked_while_threads_train_work_and_give_the_same_bits() -> None:
    script = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: it says that the process has threads
    want = train()
    began = threading.Event()
    threading.Thread(target=lambda: train(10**6, 1, heard=lambda at: began.set()), daemon=True).start()

    def eager():
        net = gl.nn.Linear(64, 64).init(0)
        optimizer = gl.optim.SGD(net.parameters(), lr=1e-3)
        while True:
            with gl.grad_tape() as tape:
                loss = gl.ops.sum(net(gl.tensor(data.data[:10])))
            optimizer.step(tape.backward(loss))

    threading.Thread(target=eager, daemon=True).start()
    assert began.wait(100)
    until = time.monotonic() + SECONDS
    number = 0
    while number < 10 or time.monotonic() < until:
        time.sleep(float(rng.random()) * 0.02)
        number += 1
        pid = os.fork()
        if pid == 0:
            x = float((gl.tensor(2.0) * 3.0).item())
            os._exit(0 if x == 6.0 and train() == want else 4)
        late = time.monotonic() + 60
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > late:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                print(f"child {number} hangs", file=sys.stderr)
                os._exit(5)
            time.sleep(0.005)
    os._exit(0)
    """
    ended = python(script.replace("SECONDS", str(2 * SECONDS)), timeout=600 + 2 * SECONDS)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_thread_imports_has_all_that_it_needs() -> None:
    script = """
    import os, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import gradloom as gl

    threading.Thread(target=lambda: (gl.grad_tape, gl.nn, gl.fit), daemon=True).start()
    time.sleep(DELAY)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if float(gl.tensor(2.0) * 3.0) == 6.0 and gl.fit else 4)
    late = time.monotonic() + 60
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > late:
            os.kill(pid, 9)
            os._exit(5)
        time.sleep(0.005)
    os._exit(os.waitstatus_to_exitcode(ended[1]))
    """
    for delay in (0.01, 0.1, 0.2):
        code = textwrap.dedent(script.replace("DELAY", str(delay)))
        ended = subprocess.run([sys.executable, "-c", code], env=processes.environment(), timeout=300)
        assert ended.returncode == 0, delay


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_a_thread_that_makes_a_logger_while_it_builds() -> None:
    script = """
    import os, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import gradloom as gl
    import logging
    from gradloom.base.locks import building

    def build():
        with building:
            has.set()
            time.sleep(0.3)  # the fork below has begun
            logging.getLogger("name.of.a.module")

    has = threading.Event()
    threading.Thread(target=build, daemon=True).start()
    has.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if float(gl.tensor(2.0) * 3.0) == 6.0 else 4)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=processes.environment(), timeout=60)
    assert ended.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_of_a_forking_pool_train() -> None:
    script = """
    import multiprocessing, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    want = [train(1, k) for k in range(4)]
    threading.Thread(target=lambda: train(10**6, 9), daemon=True).start()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.starmap(train, [(1, k) for k in range(4)])
    os._exit(0 if found == want else 4)
    """
    ended = python(script)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
