"""examples/deploy: the slurm script stops, requeues and resumes a real run to the same bytes; the unit is valid."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gradloom.base.exit_codes import Exit
from tests import processes
from tests.cli.test_fit import ENV
from tests.cli.test_outputs import DIGITS
from tests.parallel.mpi import needs_mpi

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
FIT = ("fit", DIGITS, "--epochs", "25", "--hidden", "24,8", "--micro-batch-size", "8", "--checkpoint-every", "20steps")


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a job: `gradloom` of this source tree, and a `scontrol` that records its arguments."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, line in {
        "gradloom": f'exec "{sys.executable}" -m gradloom "$@"',
        "scontrol": f'echo "$@" >>"{tmp_path}/requeued"',
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    path = os.pathsep.join(
        [str(commands), str(Path(sys.executable).parent), ENV["PATH"]]
    )  # mpiexec: beside the interpreter
    return {**ENV, "PATH": path, "SLURM_JOB_ID": "42", "SLURM_NTASKS": "1"}


def job(env: dict[str, str], folder: Path, *words: object) -> Any:
    return processes.start(["bash", DEPLOY / "gradloom.sbatch", *words], env=env, cwd=folder)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def requeued(folder: Path) -> list[str]:
    file = folder / "requeued"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=needs_mpi)])
def test_a_job_that_slurm_stops_ends_with_the_same_bytes(tmp_path: Path, cluster: dict[str, str], ranks: int) -> None:
    env = cluster | {"SLURM_NTASKS": str(ranks)}
    whole = job(cluster, tmp_path, *FIT, "--out", "whole")
    assert whole.wait(300) == 0, whole.stderr.read()
    first = job(env, tmp_path, *FIT, "--out", "run")
    begin = time.monotonic()
    while not list(tmp_path.glob("run/checkpoints/*.json")) and time.monotonic() - begin < 120:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGTERM)  # as --signal=B: does, to the script alone
    assert first.wait(120) == Exit.TERMINATED, first.stderr.read()
    assert "resume with" in first.stderr.read() and requeued(tmp_path) == ["requeue 42"]
    assert model(tmp_path / "run") != model(tmp_path / "whole")
    again = job(env, tmp_path, *FIT, "--out", "run")
    assert again.wait(300) == 0, again.stderr.read()
    assert model(tmp_path / "run") == model(tmp_path / "whole")
    done = job(env, tmp_path, *FIT, "--out", "run")  # once more: it has finished
    assert done.wait(120) == 0 and requeued(tmp_path) == ["requeue 42"]


def test_bad_input_is_not_repeated(tmp_path: Path, cluster: dict[str, str]) -> None:
    refused = job(cluster, tmp_path, "fit", "missing.csv", "--out", "run")
    assert refused.wait(60) == Exit.REFUSED and requeued(tmp_path) == []


def test_the_script_passes_the_shells_checks() -> None:
    script = DEPLOY / "gradloom.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    if (checker := shutil.which("shellcheck")) is not None:
        subprocess.run([checker, script], check=True)
    head = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script.read_text(), re.M)
    assert dict(head)["signal"] == "B:TERM@120" and "requeue" in dict(head)


@pytest.mark.parametrize(
    ("ranks", "code", "restarts", "again"),
    [(1, 137, 0, True), (1, 137, 20, False), (1, 143, 20, True), (2, 9, 0, True), (1, 9, 0, False), (1, 1, 0, False)],
)
def test_a_killed_run_is_repeated(
    tmp_path: Path, cluster: dict[str, str], ranks: int, code: int, restarts: int, again: bool
) -> None:
    for name in ("gradloom", "mpiexec"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = cluster | {"SLURM_NTASKS": str(ranks), "SLURM_RESTART_COUNT": str(restarts)}
    ended = job(env, tmp_path, "fit", DIGITS)
    assert ended.wait(60) == (137 if code == 9 and ranks > 1 else code)
    assert requeued(tmp_path) == ["requeue 42"] * again


def test_the_codes_of_unit_and_script_are_those_of_the_command() -> None:
    """docs/command.md: a scheduler repeats a run after these codes, and not after those."""
    unit, script = (DEPLOY / "gradloom@.service").read_text(), (DEPLOY / "gradloom.sbatch").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    page = " ".join((DEPLOY.parents[1] / "docs" / "command.md").read_text().split())
    repeated = "after 129, 130, 137 and 143 (and 9 of `mpiexec`), and not after 1 and 2"
    assert repeated in page and {129, 130, 143} == {code for code in Exit if code > 2}
    assert settings["RestartPreventExitStatus"].split() == [str(Exit.FAILED.value), str(Exit.REFUSED.value)]
    assert settings["RestartForceExitStatus"].split() == ["129", "130", "137", "143"]
    assert settings["SuccessExitStatus"] == str(Exit.TERMINATED.value)  # after `systemctl stop`
    (cases,) = re.findall(r"^case \$code in\n(.*?)^esac$", script, re.M | re.S)
    assert re.findall(r"\d{3}", re.sub("#.*", "", cases)) == ["129", "130", "143", "137"]


def test_the_image_gets_no_builds_and_no_environments() -> None:
    """Each path that git ignores; the pattern of a name in any folder begins with **/."""
    root = DEPLOY.parents[1]
    ignored = {line for line in (root / ".gitignore").read_text().splitlines() if line}
    left_out = {line for line in (root / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert left_out == {line.strip("/") if line.startswith("/") else f"**/{line.strip('/')}" for line in ignored}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    def verified(text: str) -> subprocess.CompletedProcess[str]:
        unit = tmp_path / "gradloom@.service"
        unit.write_text(text.replace("/opt/gradloom/bin/gradloom", sys.executable))
        return subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)

    text = (DEPLOY / "gradloom@.service").read_text()
    good, bad = verified(text), verified(text.replace("KillMode=", "KilMode="))
    assert (good.returncode, good.stderr) == (0, "") and "KilMode" in bad.stderr


@pytest.mark.slow
def test_the_unit_starts_a_command_that_resumes(tmp_path: Path, cluster: dict[str, str]) -> None:
    """Its ExecStart: on the first start, and when the run has finished."""
    command = re.search(r"^ExecStart=\S+ (.*)$", (DEPLOY / "gradloom@.service").read_text(), re.M)
    assert command
    (tmp_path / "settings.toml").write_text(f'data = "{os.path.abspath(DIGITS)}"\nepochs = 1\nhidden = [8]\n')
    for note in ("the run starts anew", "this run has finished"):
        run = processes.start(
            ["gradloom", *command[1].split()], env=cluster, cwd=tmp_path, executable=str(tmp_path / "bin/gradloom")
        )
        assert run.wait(60) == 0 and note in run.stderr.read()
