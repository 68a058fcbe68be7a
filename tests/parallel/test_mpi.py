"""The communicator over MPI, with real processes: the same bits, and ends that name the rank."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.mpi import HERE, ROOT, Ended, finish, needs_mpi, run, start
from tests.processes import busy


@needs_mpi
@pytest.mark.slow
def test_same_bits_for_any_number_of_processes() -> None:
    seen = set()
    for ranks in (1, 2, 3):
        ended = run(ranks, HERE / "sums.py")
        assert ended.code == 0, ended.err
        assert ended.err == ""
        seen.add(ended.out)
    assert len(seen) == 1 and len(seen.pop().strip()) == 16


def meet(what: str, folder: Path, timeout: float = 2.0, rank: int = 1) -> Ended:
    """Three ranks, one misfortune; whatever happens, what rank 0 has written is whole."""
    ended = run(3, HERE / "misfortune.py", what, timeout, folder, rank, limit=60)
    check_weights(folder)
    return ended


def check_weights(folder: Path) -> None:
    if (folder / "weights").exists():
        steps, total = np.fromfile(folder / "weights", np.float32).reshape(2, 50_000)
        assert (total == 3).all() and (steps == steps[0]).all()


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("what", ["killed", "killed early", "killed with a child"])
@pytest.mark.slow
def test_a_killed_rank_ends_all_by_its_number(what: str, rank: int, tmp_path: Path) -> None:
    """The launcher kills the others at once; where there is more to do than cores, those may be gone before anybody
    looks."""
    with busy():
        ended = meet(what, tmp_path, timeout=30, rank=rank)
    assert ended.code != 0 and "done" not in ended.out
    said = [line for line in ended.err.splitlines() if "gradloom:" in line]
    assert len(said) == 1 and said[0].startswith(f"gradloom: rank {rank} of 3 ended without a word (killed? process ")
    assert ended.seconds < 20
    assert (tmp_path / "weights").exists() == (what != "killed early")


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("what", ["stopped", "sleeps"])
@pytest.mark.slow
def test_a_rank_without_a_sign_of_life_ends_all(what: str, rank: int, tmp_path: Path) -> None:
    ended = meet(what, tmp_path, timeout=4, rank=rank)
    assert ended.code != 0 and "done" not in ended.out
    said = f"TrainError: rank {rank} gave no sign of life for 4 s (add); all 3 ranks end\n"
    others = [other for other in range(3) if other != rank]
    assert any(f"gradloom: rank {other}: {said}" in ended.err for other in others), ended.err  # one may end the other
    assert "Traceback" not in ended.err
    assert ended.seconds < 20
    assert (tmp_path / "weights").exists()


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_where_the_others_are_silent(tmp_path: Path) -> None:
    """Ranks that leave words to rank 0, as those of the commands do, speak where rank 0 cannot."""
    ended = meet("stopped unheard", tmp_path, timeout=4, rank=0)
    assert ended.code != 0 and ended.seconds < 20
    said = "rank 0 gave no sign of life for 4 s (add); all 3 ranks end\n"
    assert any(f"gradloom: rank {other}: {said}" in ended.err for other in (1, 2)), ended.err


@needs_mpi
def test_a_child_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    ended = meet("forks", tmp_path, timeout=30)
    assert ended.code == 0 and ended.err == "", ended.err
    said, done = ended.out.splitlines()
    assert re.fullmatch(r"rank 1: called in process \d+, a fork of the rank; need the process that .*", said)
    assert done == "done"


@needs_mpi
@pytest.mark.parametrize("what", ["raises", "tells"])
@pytest.mark.slow
def test_an_error_of_one_rank_is_told_by_all(what: str, tmp_path: Path) -> None:
    ended = meet(what, tmp_path, timeout=30)
    assert ended.code != 0 and ended.seconds < 20
    for rank in (0, 2):
        assert f"rank {rank}: TrainError: rank 1 failed with ValueError: row 7 is bad; all 3 ranks end" in ended.err
    assert ended.err.count("Traceback") == 1  # where it happened, once
    assert "gradloom: rank 1 of 3 failed:" in ended.err


@needs_mpi
def test_a_rank_that_ends_early_is_named(tmp_path: Path) -> None:
    ended = meet("exits", tmp_path, timeout=30)
    assert ended.code != 0 and ended.seconds < 20
    assert "rank 0: TrainError: rank 1 ended while the others wait for it in add; all 3 ranks end" in ended.err


@needs_mpi
def test_a_rank_that_goes_another_way_is_named(tmp_path: Path) -> None:
    ended = meet("other call", tmp_path, timeout=30)
    assert ended.code != 0 and ended.seconds < 20
    assert "rank 0: TrainError: rank 1 came to gather while rank 0 is in add; all 3 ranks end" in ended.err


@needs_mpi
def test_a_rank_that_differs_is_named(tmp_path: Path) -> None:
    ended = meet("differs", tmp_path, timeout=30)
    assert ended.code != 0 and ended.seconds < 20
    for rank in range(3):
        assert f"rank {rank}: TrainError: rank 2 differs from rank 0 in the data: b against a" in ended.err
    assert "Traceback" not in ended.err


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    ended = meet("never", tmp_path, timeout=0.3)
    assert ended.code != 0 and ended.seconds < 20
    assert "rank 1 did not come within 3 s; all 3 ranks end" in ended.err


@needs_mpi
@pytest.mark.parametrize("what", ["never starts", "never needs it"])
@pytest.mark.slow
def test_a_rank_that_never_starts_mpi_ends_all(what: str, tmp_path: Path) -> None:
    ended = meet(what, tmp_path, timeout=0.3)
    assert ended.code != 0 and ended.seconds < 20
    assert "gradloom: not all ranks came within 3 s: each of the 3 must call this; all end\n" in ended.err


@needs_mpi
@pytest.mark.slow
def test_work_is_a_sign_of_life(tmp_path: Path) -> None:
    ended = meet("slow", tmp_path, timeout=2.0)
    assert ended.code == 0, ended.err
    assert ended.out == "done\n" and ended.err == ""
    assert ended.seconds > 6


@needs_mpi
@pytest.mark.slow
def test_a_machine_that_sleeps_blames_nobody(tmp_path: Path) -> None:
    """All ranks stand still for longer than the time-out, as on a laptop that is closed."""
    job = start(3, HERE / "misfortune.py", "paused", 1, tmp_path)
    assert job.stdout is not None
    pids = [int(word) for word in job.stdout.readline().split()]
    assert len(pids) == 3
    time.sleep(0.3)
    for what in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, what)
        time.sleep(3)
    ended = finish(job, 60)
    assert ended.code == 0, ended.err
    assert ended.err == ""


@needs_mpi
@pytest.mark.parametrize("what", ["interrupt work", "interrupt wait"])
@pytest.mark.slow
def test_an_interrupt_of_mpiexec_ends_all_and_lets_rank_0_save(what: str, tmp_path: Path) -> None:
    job = start(3, HERE / "misfortune.py", what, 30, tmp_path)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGINT)
    ended = finish(job, 30)
    assert ended.code != 0 and ended.seconds < 20
    assert (tmp_path / "saved").exists(), ended.err
    assert (tmp_path / "saved").read_bytes() == b"whole"
    check_weights(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


@needs_mpi
@pytest.mark.slow
def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """Neither a rank nor the one that watches them."""
    marker = f"gradloom-test-{os.getpid()}"
    for what in ("none", "killed", "stopped"):
        run(3, HERE / "misfortune.py", what, 2, tmp_path, 1, marker)
        until = time.monotonic() + 10  # the one that watches ends a moment after them
        while left := running(marker):
            assert time.monotonic() < until, left
            time.sleep(0.05)


def running(marker: str) -> list[str]:
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line]


def test_without_mpi4py_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import gradloom as gl\nfrom gradloom.parallel import communicator\n"
        "try:\n    communicator('mpi')\nexcept gl.BackendError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("parallel='mpi': mpi4py with a working MPI is missing (")
    assert done.stdout.endswith("run pip install 'gradloom[mpi]'\n") and done.stdout.count("\n") == 1


@needs_mpi
def test_an_mpiexec_of_another_mpi_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would train alone and all would write the same file."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    code = "from gradloom.parallel import communicator\ncommunicator('mpi')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1
    assert "BackendError: parallel='mpi': mpiexec started 3 processes, but mpi4py's MPI sees 1" in done.stderr


@needs_mpi
def test_without_mpiexec_there_is_one_rank() -> None:
    code = (
        "from gradloom.parallel import communicator\nranks = communicator('mpi')\n"
        "print(ranks.rank, ranks.size, ranks.gather(7)); ranks.gather(None); ranks.check('x', 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "0 1 [7]\n"
