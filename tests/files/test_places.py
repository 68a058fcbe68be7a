"""Where outputs go: long names, links, pending changes, folders that vanish, places that cannot be written."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from gradloom.base.errors import FileError
from gradloom.files import atomic_write, check_target, claim, together
from tests import processes
from tests.files.test_outputs import ENV, cut_off, python, read, write

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of other users")
OTHER = 65534  # a user


def refused(work, *parts):
    """The FileError that `work` raises, which holds these texts, in one line."""
    with pytest.raises(FileError) as caught:
        work()
    message = str(caught.value)
    assert all(part in message for part in parts) and "\n" not in message, message
    return message


def claiming(path, *names):
    """A function that claims a folder, with these files, or (without them) a file."""
    return lambda: claim(path, bool(names), names).__enter__()


# -- names -------------------------------------------------------------------------------------------------------------

LONG = ["漢" * 76 + ".gguf", "a" * 255, "é" * 127, os.fsdecode(b"\xff" * 255)]


@pytest.mark.parametrize("name", LONG, ids=["multi-byte", "letters", "accents", "no UTF-8"])
def test_every_name_that_a_file_may_have(tmp_path, name):
    with claim(tmp_path / name, is_folder=False):
        refused(claiming(tmp_path / name), "another run")
        with atomic_write(tmp_path / name) as file:
            file.write(b"1")
    write(tmp_path, "2", [name, "b"])
    assert read(tmp_path, [name, "b"]) == ["2", "2"] and sorted(os.listdir(tmp_path)) == sorted([name, "b"])


def test_long_names_with_the_same_end_are_two_outputs(tmp_path):
    names = [start * 130 + "x" * 100 for start in "ab"]
    with claim(tmp_path / names[0], is_folder=False), atomic_write(tmp_path / names[0]) as file:
        file.write(b"1")
        parts = os.listdir(tmp_path)
        with claim(tmp_path / names[1], is_folder=False):
            assert set(parts) < set(os.listdir(tmp_path))


# -- what a killed run has left ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "b", "c", "result.json"])
def test_a_single_output_leaves_a_pending_change_alone(tmp_path, name):
    """The change is finished first; where that cannot be, its files stay."""
    changes = {"result.json": ("old", "new"), "b": ("old b", "new b")}
    cut_off(tmp_path, changes)
    before = {*os.listdir(tmp_path)}
    holder = os.open(tmp_path / ".gradloom.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with claim(tmp_path / name, is_folder=False):
        assert before < {*os.listdir(tmp_path)}
    os.close(holder)
    with claim(tmp_path / name, is_folder=False):
        assert (tmp_path / "result.json").read_text() == "new" and (tmp_path / "b").read_text() == "new b"
    assert not any(".part." in name for name in os.listdir(tmp_path))


def test_the_locks_of_a_killed_run_go(tmp_path):
    one = tmp_path / "one"
    script = "import sys, time; from gradloom.files import claim\n"
    script += "with claim(sys.argv[1], True, 'ab'): print('claimed', flush=True); time.sleep(60)"
    job = python(script, one)
    assert job.stdout.readline() == "claimed\n"
    with atomic_write(one / "c"):
        pass
    processes.end(job)
    left = [one / name for name in (".gradloom.lock", ".gradloom.a.lock", ".gradloom.b.lock")]
    assert all(path.exists() for path in left)
    with claim(one / "a", False), claim(one, True):
        assert left[1].exists() and not left[2].exists()
    assert not any(path.exists() for path in left)


def test_parts_are_those_of_exactly_one_name(tmp_path):
    mine = tmp_path / ".gradloom.part.aaaaaaaa.a.json"
    mine.write_text("left")
    with claim(tmp_path / "json", is_folder=False):
        assert mine.exists()
    with claim(tmp_path / "a.json", is_folder=False):
        assert not mine.exists()


def test_advice_on_a_lost_file(tmp_path):
    """Old files count only where none was moved."""
    for moved, advice in (((), "then the old files count"), ("a", "then the files stay as they are, some of them new")):
        folder = tmp_path / f"moved {moved}"
        folder.mkdir()
        cut_off(folder, {name: (f"old {name}", f"new {name}") for name in "ab"})
        for name in moved:
            (folder / f".gradloom.part.aaaaaaaa.{name}").rename(folder / name)
        (folder / ".gradloom.part.aaaaaaaa.b").unlink()
        message = refused(lambda folder=folder: read(folder, "ab"), ".aaaaaaaa.b is not there as it was written")
        assert message.endswith(advice)
    (folder / ".gradloom.commit").write_text("{}")
    assert "the old files count" not in refused(lambda: read(folder, "ab"), "it names no moves")


# -- links -------------------------------------------------------------------------------------------------------------


def test_one_run_per_file(tmp_path):
    one = tmp_path / "one"
    with claim(one, True, ["a", "b"]):
        refused(claiming(one / "a"), f"{one / 'a'}: another run (process {os.getpid()}) is writing there")
        with claim(one / "c", False):
            pass


def test_a_link_in_a_folder_is_refused(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "m").write_text("0")
    for target in ("../m", "../new", "a"):
        (tmp_path / "one" / "a").symlink_to(target)
        refused(claiming(tmp_path / "one", "a", "b"), f"{tmp_path / 'one' / 'a'}: is a symbolic link")
        assert os.listdir(tmp_path / "one") == ["a"] and sorted(os.listdir(tmp_path)) == ["m", "one"]
        (tmp_path / "one" / "a").unlink()


def test_a_change_whose_file_is_a_link_after_the_kill(tmp_path):
    """Then it is no longer the file that the change was to replace: the change is dropped."""
    (tmp_path / "one").mkdir()
    (tmp_path / "mine").write_text("mine")
    cut_off(tmp_path / "one", {"a": ("old", "new"), "b": ("old", "new")})
    (tmp_path / "one" / "a").unlink()
    (tmp_path / "one" / "a").symlink_to("../mine")
    assert read(tmp_path / "one", "ab") == ["mine", "old"] and sorted(os.listdir(tmp_path / "one")) == ["a", "b"]
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "one" / "a").is_symlink()


# -- folders that vanish -----------------------------------------------------------------------------------------------


def test_a_folder_that_vanishes_is_made_again(tmp_path):
    for claimed, gone, names in (("out", "out", ["a", "b"]), ("file/c", "file", [])):
        with claim(tmp_path / claimed, bool(names), names):
            shutil.rmtree(tmp_path / gone)
            if names:
                write(tmp_path / claimed, claimed, names)
            else:
                with atomic_write(tmp_path / claimed) as file:
                    file.write(claimed.encode())
            refused(claiming(tmp_path / claimed, *names), "another run")
        folder = tmp_path / claimed if names else tmp_path / "file"
        assert sorted(os.listdir(folder)) == (names or ["c"])
        assert all((folder / name).read_text() == claimed for name in names or ["c"])


def test_a_folder_that_another_run_has_made_again_is_its_own(tmp_path):
    out = tmp_path / "out"
    with claim(out, True, ["a"]):
        shutil.rmtree(out)
        script = "import sys, time; from gradloom.files import claim\n"
        script += "with claim(sys.argv[1], True, ['a']): print('claimed', flush=True); time.sleep(60)"
        job = python(script, out)
        assert job.stdout.readline() == "claimed\n"
        refused(lambda: write(out, "1", "a"), f"out: another run (process {job.pid}) is writing there")
    assert sorted(os.listdir(out)) == [".gradloom.a.lock", ".gradloom.lock"]  # not ours to remove
    processes.end(job)


# -- what stands in the way of a lock ----------------------------------------------------------------------------------


def test_no_other_file_becomes_a_lock(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for place, names, lock in (
        (tmp_path / "out", ("a",), "out/.gradloom.lock"),
        (tmp_path / "f", (), ".gradloom.f.lock"),
    ):
        path = tmp_path / lock
        path.parent.mkdir(exist_ok=True)
        for make, kind in (
            (partial(os.link, mine), "a file with another name (a hard link)"), (os.mkdir, "a folder"),
            (partial(os.symlink, mine), "a symbolic link"), (os.mkfifo, "a named pipe"),
        ):  # fmt: skip
            make(path)
            refused(claiming(place, *names), f"{path}: is {kind}, where the lock of {place} has to be; need it removed")
            assert mine.read_text() == "mine" and os.path.lexists(path)
            path.rmdir() if kind == "a folder" else path.unlink()
        with claim(place, bool(names), names):
            pass


# -- other users -------------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("foreign", [".gradloom.commit", ".gradloom.part.aaaaaaaa.a"])
def test_a_change_of_another_user_is_not_believed(tmp_path, foreign):
    tmp_path.chmod(0o1777)
    cut_off(tmp_path, {"a": ("old", "new"), "b": (None, "new")})
    os.chown(tmp_path / foreign, OTHER, OTHER)
    for work in (lambda: read(tmp_path, "ab"), claiming(tmp_path, "a", "b"), lambda: write(tmp_path, "2", "ab")):
        refused(work, f"{tmp_path / foreign}: is of user {OTHER}, and is to replace {tmp_path / 'a'} of user 0; need")
    assert (tmp_path / "a").read_text() == "old" and not (tmp_path / "b").exists()
    os.chown(tmp_path / "a", OTHER, OTHER)  # who may replace the file himself may leave a change of it
    assert read(tmp_path, "ab") == ["new", "new"]


def without_capabilities(script, *arguments, user=None):
    """(exit code, stderr) of Python code run by root without its rights, or by another user from the first line on."""
    words = [sys.executable, "-c", (f"import gradloom.files, os; os.setuid({user})\n" if user else "") + script]
    if os.geteuid() == 0 and user is None:
        words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words]
    job = processes.start([*words, *arguments], env=ENV)
    err = job.communicate(timeout=60)[1]
    return job.returncode, err


CLAIM = """
import sys
from gradloom.base.errors import FileError
from gradloom.files import check_target, claim
try:
    with claim(sys.argv[1], len(sys.argv) > 2, sys.argv[2:]):
        pass
except FileError as error:
    sys.exit(str(error))
"""
REPLACE = "import os, sys; open(sys.argv[1] + '.x', 'w').close(); os.replace(sys.argv[1] + '.x', sys.argv[1])"
needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv: root writes everywhere"
)


@needs_root
@needs_setpriv
def test_a_file_that_cannot_be_read(tmp_path):
    """It can be replaced alone, but not together with others: what it held could not be told apart from the new one."""
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o600)
    os.chown(path, OTHER, OTHER)
    code, err = without_capabilities(CLAIM, tmp_path, "a", "b")
    assert code == 1 and f"{path}: cannot be read: permission denied; " in err, err
    assert without_capabilities(CLAIM, path) == (0, "")


@needs_root
def test_a_file_of_another_user_in_a_folder_of_all(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        path = Path(folder, "a")
        path.write_text("old")
        path.chmod(0o666)
        assert "not permitted" in without_capabilities(REPLACE, path, user=OTHER)[1]
        for names in (["a"], []):
            code, err = without_capabilities(CLAIM, folder if names else path, *names, user=OTHER)
            assert code == 1 and f"{path}: cannot be replaced: it is of user 0, in a folder where each user may" in err
        os.chown(path, OTHER, OTHER)
        assert without_capabilities(CLAIM, folder, "a", user=OTHER) == (0, "")


@needs_root
@pytest.mark.parametrize("how", ["attribute", "mount"])
def test_a_file_that_the_system_does_not_let_go(tmp_path, how):
    path = tmp_path / "a file\\n"
    path.write_text("old")
    run = [sys.executable, "-c"]
    if how == "attribute":
        if not shutil.which("chattr") or subprocess.run(["chattr", "+i", path], capture_output=True).returncode:
            pytest.skip("needs chattr")
    else:
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
            pytest.skip("needs unshare")
        run = ["unshare", "-m", "sh", "-c", 'mount --bind "$4" "$4" && exec "$@"', "sh", *run]
    try:
        for script, why in ((REPLACE, "Error: [Errno"), (CLAIM, f"{path}: cannot be replaced: ")):
            done = subprocess.run([*run, script, path], env=ENV, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and why in done.stderr, done.stderr
    finally:
        if how == "attribute":
            subprocess.run(["chattr", "-i", path], capture_output=True)


def test_places_that_can_be_written_are_not_refused(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o444)
    check_target(path)
    with together(tmp_path), atomic_write(path) as file:
        file.write(b"new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o444
