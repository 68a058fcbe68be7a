"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import processes
from tests.budgets import Budgets
from tests.collection import Rotation
from tests.json_checks import Document, check_values
from tests.quick import Quick

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests send it to their own process
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands that the tests start buffer their output and keep what Python compiles, as for most users
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a sample of the cases of each test, and none that is slow")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Budgets(config))
    config.pluginmanager.register(Rotation())
    if config.getoption("--quick"):
        config.pluginmanager.register(Quick())


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    _settle()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:  # the fixtures of the file are gone
        _settle()


def _settle() -> None:
    """Take what lives on (modules, cases, reports) out of every later search for cycles: trainings and tests that call
    gc.collect would walk through all of it each time, which took a tenth of the time of the tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    processes.end_all()


@pytest.fixture(autouse=True)
def json_fits_its_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each JSON object that a test prints or writes has the declared keys and types (docs/json.md)."""
    named = Document.named

    def checked(self: Document, values: Any) -> dict[str, Any]:
        check_values(self, values)
        return named(self, values)

    monkeypatch.setattr(Document, "named", checked)


@pytest.fixture
def nothing_left() -> None:
    """For tests that count what belongs to the process (programs, native calls, objects, files): whatever earlier tests
    left behind, tensors that wait and tapes with their models, goes before the count begins and not during it."""
    import gradloom as gl

    gc.collect()  # tapes in cycles, as an error's traceback makes them
    with gl.grad_tape():  # the tapes before this one are let go
        pass
    (gl.tensor(0.0) + 1.0).item()  # what waits outside of tapes is computed
    gc.collect()
