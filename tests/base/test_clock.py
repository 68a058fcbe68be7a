"""Dates beyond those that datetime has: a clock that is far off fails no run."""

import json
import time
from datetime import datetime

import pytest

from gradloom.base.clock import utc
from gradloom.llm.chat import ChatTemplate
from tests.cli.command import run
from tests.llm.chats import CHAT, chatml

FAR = 3e11  # seconds since 1970


def test_dates():
    assert utc(0) == "1970-01-01T00:00:00+00:00"
    assert utc(253402300799) == "9999-12-31T23:59:59+00:00"
    assert utc(FAR).startswith("+11476-") and utc(FAR).endswith("+00:00")
    assert utc(1e300) == utc(float("nan")) == ""
    assert utc(-1e11).startswith("-1199-")


class Far(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: FAR)
    monkeypatch.setattr("gradloom.base.clock.datetime", Far)


@pytest.mark.usefixtures("far")
def test_a_run_and_its_record(capsys, tmp_path):
    (tmp_path / "d.csv").write_text("x,y\n" + "".join(f"{i},{2 * i}\n" for i in range(40)))
    code, _, err = run(capsys, "fit", tmp_path / "d.csv", "--epochs", 2, "--hidden", 4, "--out", tmp_path / "run")
    assert code == 0 and "Traceback" not in err
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "+11476-" in json.dumps(about)
    code, out, _ = run(capsys, "runs", tmp_path, "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["runs"][0]["steps"] > 0
    assert run(capsys, "runs", tmp_path)[0] == 0


@pytest.mark.usefixtures("far")
def test_a_template_that_shows_the_date():
    assert ChatTemplate("{{ strftime_now('%d %B') }}", chatml()).render(CHAT)
