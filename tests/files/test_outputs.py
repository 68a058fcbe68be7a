"""Several files change together or not at all; one run writes at a time; only regular files are replaced."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gradloom.base.errors import FileError
from gradloom.files import (
    atomic_path,
    atomic_write,
    check_target,
    claim,
    load_arrays,
    read_together,
    save_arrays,
    together,
    write_gguf,
)
from gradloom.files.atomic import write_inside
from tests import processes

ENV = processes.environment()
NAMES = ("a", "b", "c")


def write(folder, text, names=NAMES):
    with together(folder):
        for name in names:
            with atomic_write(Path(folder) / name) as file:
                file.write(text.encode())


def read(folder, names=NAMES):
    """The texts of the files, as readers see them."""
    return read_together(folder, names, lambda *paths: [p.read_text() if p.exists() else None for p in paths])


def python(script, *arguments, **options):
    return processes.start([sys.executable, "-c", script, *arguments], env=ENV, **options)


# -- a change of several files -----------------------------------------------------------------------------------------


def test_all_or_none(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    write(tmp_path, "1")
    assert read(tmp_path) == ["1"] * 3
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error), together(tmp_path):
            for name in NAMES[:2]:
                with atomic_write(tmp_path / name) as file:
                    file.write(b"2")
                assert read(tmp_path) == ["1"] * 3
            raise error
    assert [(tmp_path / name).read_text() for name in NAMES] == ["1"] * 3
    assert sorted(os.listdir(tmp_path)) == [*NAMES, "mine.txt"]
    with pytest.raises(FileError, match="c: is a folder"), together(tmp_path):
        (tmp_path / "c").unlink()
        (tmp_path / "c").mkdir()
        for name in NAMES:
            with atomic_write(tmp_path / name) as file:
                file.write(b"3")
    assert [(tmp_path / name).read_text() for name in NAMES[:2]] == ["1"] * 2


def write_one(folder, text, names=NAMES):
    for name in names:
        with atomic_write(Path(folder) / name) as file:
            file.write(text.encode())


def write_of_run(folder, text, names=NAMES):
    for name in names:
        write_inside(Path(folder) / name, text.encode())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs the paths of open files")
@pytest.mark.parametrize("kind", [write, write_one, write_of_run])
def test_a_power_cut_loses_no_file_that_was_renamed(tmp_path, monkeypatch, kind):
    """The bytes are synced before the file gets its name, the folder afterwards: and before the commit file goes."""
    events = []

    def path_of(name, folder=None):
        return os.path.join(tmp_path if folder is None else os.readlink(f"/proc/self/fd/{folder}"), name)

    def recorded(name, of):
        call = getattr(os, name)

        def record(*arguments, **options):
            events.append((name, *of(*arguments, **options)))
            return call(*arguments, **options)

        monkeypatch.setattr(os, name, record)

    recorded("fsync", lambda handle: [os.readlink(f"/proc/self/fd/{handle}")])
    recorded("replace", lambda old, new, src_dir_fd=None, dst_dir_fd=None: [path_of(old, src_dir_fd), path_of(new)])
    recorded("unlink", lambda name, dir_fd=None: [path_of(name, dir_fd)])
    kind(tmp_path, "new")
    moves = [i for i, event in enumerate(events) if event[0] == "replace"]
    assert len(moves) >= len(NAMES)
    for i in moves:
        assert ("fsync", events[i][1]) in events[:i], f"{events[i][2]} is moved before its bytes are synced"
        assert ("fsync", str(tmp_path)) in events[i:], f"{events[i][2]} is moved, and its folder is not synced"
    commit = ("unlink", str(tmp_path / ".gradloom.commit"))
    if commit in events:
        at = events.index(commit)
        assert ("fsync", str(tmp_path)) in events[moves[-1] : at], "the commit file goes before the moves are synced"
    assert (commit in events) == (kind is write)


def test_links_and_other_folders(tmp_path):
    """The folder may be a link; a file in it may not, and nothing is changed then. What is written elsewhere is a
    change of its own."""
    for name in ("real", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("0")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with together(tmp_path / "link"):
        for name in ("link/a", "out/b", "real/c"):
            with atomic_write(tmp_path / name) as file:
                file.write(b"1")
        assert not (tmp_path / "out" / "b").exists() and (tmp_path / "real" / "c").read_text() == "1"
    assert read(tmp_path / "link", "ab") == ["1", "1"]
    (tmp_path / "out" / "a").unlink()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "real" / "a")
    with pytest.raises(FileError, match="a: is a symbolic link"), together(tmp_path / "link"):
        for name in "ba":
            with atomic_write(tmp_path / "out" / name) as file:
                file.write(b"2")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"] and sorted(os.listdir(tmp_path / "real")) == ["a", "c"]
    assert (tmp_path / "out" / "b").read_text() == "1" and (tmp_path / "real" / "a").read_text() == "0"


def test_a_link_that_appears_before_the_moves_is_replaced(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with together(tmp_path / "out"):
        for name in "ab":
            with atomic_write(tmp_path / "out" / name) as file:
                file.write(b"1")
        (tmp_path / "out" / "a").symlink_to("../mine")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "out" / "a").is_symlink()
    assert read(tmp_path / "out", "ab") == ["1", "1"]


# For each k: a child ends without a word before the k-th call that changes the folder, until one comes through.
CUT_OFF = """
import os, sys, traceback
from gradloom.files import atomic_write, together
folder = sys.argv[1]
def work(k):
    calls = 0
    def counted(honest):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == k:
                os._exit(9)
            return honest(*arguments, **options)
        return call
    for name in ("replace", "unlink", "fsync", "chmod", "open", "write"):
        setattr(os, name, counted(getattr(os, name)))
    with together(folder):
        for name in "abc":
            with atomic_write(folder + "/" + name) as file:
                file.write(str(k).encode())
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            work(int(line))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("kind", ["read", "locked"])
def test_a_process_that_ends_at_any_moment(tmp_path, kind):
    """Old or new in all files, for a reader that may finish the change and for one that may not."""
    tmp_path = tmp_path / "out"
    tmp_path.mkdir()
    write(tmp_path, "0")
    job = python(CUT_OFF, tmp_path, stdin=subprocess.PIPE, stderr=None)
    before, outcomes, k, locked = "0", set(), 0, kind == "locked"
    while True:
        k += 1
        job.stdin.write(f"{k}\n")
        job.stdin.flush()
        code = int(job.stdout.readline())
        pending = (tmp_path / ".gradloom.commit").exists()
        if locked:  # another run has the folder: the change stays as it is, and is read through
            holder = os.open(tmp_path / ".gradloom.lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(holder, fcntl.LOCK_EX)
        found = read(tmp_path)
        assert found in ([before] * 3, [str(k)] * 3)
        outcomes.add((found[0] == str(k), pending))
        assert (tmp_path / ".gradloom.commit").exists() == (pending and locked)
        if locked:
            os.close(holder)
            assert read(tmp_path) == found
        assert [(tmp_path / name).read_text() for name in NAMES] == found
        before = found[0]
        if code == 0:
            break
        assert code == 9
    assert outcomes == {(False, False), (True, True), (True, False)} and k > 20
    with claim(tmp_path, is_folder=True):
        assert sorted(os.listdir(tmp_path)) == [".gradloom.lock", *NAMES]
    assert sorted(os.listdir(tmp_path)) == [*NAMES] and read(tmp_path) == [str(k)] * 3


SAVES = """
import sys
import numpy as np
from gradloom.files import atomic_write, save_arrays, together
print("ready", flush=True)
n = int(sys.argv[2])
while True:
    n += 1
    with together(sys.argv[1]):
        save_arrays(sys.argv[1] + "/w.safetensors", {"n": np.full(1000, n)})
        with atomic_write(sys.argv[1] + "/n.json") as file:
            file.write(str(n).encode())
"""


@pytest.mark.slow
def test_a_killed_process_leaves_all_old_or_all_new(tmp_path):
    def seen(weights, number):
        (value,) = set(load_arrays(weights)[0]["n"].tolist())
        return value, int(number.read_text())

    last, rng = 0, random.Random(0)
    for _ in range(12):
        job = python(SAVES, tmp_path, last)
        assert job.stdout.readline() == "ready\n"
        until = time.monotonic() + rng.uniform(0.02, 0.3)
        while time.monotonic() < until:  # a reader beside the writer
            if (tmp_path / "n.json").exists():
                a, b = read_together(tmp_path, ("w.safetensors", "n.json"), seen)
                assert a == b >= last
                last = a
        processes.end(job)
        a, b = read_together(tmp_path, ("w.safetensors", "n.json"), seen)
        assert a == b >= last
        last = a
    assert last > 12
    with claim(tmp_path, is_folder=True):
        pass
    assert sorted(os.listdir(tmp_path)) == ["n.json", "w.safetensors"]


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def cut_off(folder, changes, present=None):
    """A change that was cut off before its moves: name -> (old text or None, new text). present: what lies there."""
    moves = {}
    for name, (old, new) in changes.items():
        moves[name] = {"part": f".gradloom.part.aaaaaaaa.{name}", "new": sha(new), "old": old and sha(old)}
        (folder / moves[name]["part"]).write_text(new)
        now = old if present is None else present.get(name, old)
        if now is not None:
            (folder / name).write_text(now)
    (folder / ".gradloom.commit").write_text(json.dumps(moves))
    return moves


GOOD = {"part": ".gradloom.part.aaaaaaaa.a", "new": sha("new"), "old": sha("old")}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "[" * 100_000, '{"a": 1}', '{"a": "b"}', json.dumps({"../a": GOOD}),
        json.dumps({"a": GOOD | {"part": "/etc/passwd"}}), json.dumps({"a": GOOD | {"part": "b"}}),
        json.dumps({"a": GOOD | {"part": ".gradloom.part.aaaaaaaa.b"}}), json.dumps({"a/": GOOD}),
        json.dumps({"a": GOOD | {"more": 1}}), json.dumps({"a": {"part": GOOD["part"]}}),
    ],
)  # fmt: skip
def test_damaged_commit_files(tmp_path, text):
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("mine")
    (tmp_path / GOOD["part"]).write_text("new")
    (tmp_path / ".gradloom.commit").write_text(text)
    for work in (lambda: read(tmp_path), lambda: write(tmp_path, "new")):
        with pytest.raises(
            FileError, match=r"\.gradloom\.commit: is damaged: .*; need it as it was written, or removed"
        ):
            work()
    assert (tmp_path / "a").read_text() == "old" and (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("made", ["pipe", "folder", "link", "nothing", "other", "cut"])
def test_new_files_that_are_not_as_they_were_written(tmp_path, made):
    """Nothing is moved: neither of the two files."""
    cut_off(tmp_path, {"a": ("old a", "new a"), "b": ("old b", "new b")})
    part = tmp_path / ".gradloom.part.aaaaaaaa.b"
    part.unlink()
    (tmp_path / "mine").write_text("new b")
    {
        "pipe": lambda: os.mkfifo(part), "folder": part.mkdir, "link": lambda: part.symlink_to(tmp_path / "mine"),
        "nothing": lambda: None, "other": lambda: part.write_text("new a"), "cut": lambda: part.write_text("new"),
    }[made]()  # fmt: skip
    for work in (lambda: read(tmp_path, "ab"), lambda: write(tmp_path, "newer")):
        with pytest.raises(FileError, match="damaged: .gradloom.part.aaaaaaaa.b is not there as it was written"):
            work()
    assert [(tmp_path / name).read_text() for name in "ab"] == ["old a", "old b"]


def test_a_commit_file_that_is_no_regular_file(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "mine").write_text("{}")
    commit = tmp_path / ".gradloom.commit"
    for make, kind in (
        (lambda: os.mkfifo(commit), "a named pipe"), (commit.mkdir, "a folder"),
        (lambda: commit.symlink_to("mine"), "a symbolic link"),
    ):  # fmt: skip
        make()
        for work in (lambda: read(tmp_path, "a"), lambda: claim(tmp_path, is_folder=True).__enter__()):
            with pytest.raises(FileError, match=f".gradloom.commit: is {kind}, which gradloom does not make of that"):
                work()
        commit.rmdir() if kind == "a folder" else commit.unlink()
    assert sorted(os.listdir(tmp_path)) == ["a", "mine"]


@pytest.mark.parametrize("present", [{"a": "mine a", "b": "mine b"}, {"a": "mine a"}, {"a": "new a", "b": "mine b"}])
def test_files_that_were_put_back_after_a_change_was_cut_off_stay(tmp_path, present):
    cut_off(tmp_path, {"a": ("old a", "new a"), "b": ("old b", "new b")}, present)
    there = [present.get(name, f"old {name}") for name in "ab"]
    assert read(tmp_path, "ab") == there
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    write(tmp_path, "newer", "c")
    assert [(tmp_path / name).read_text() for name in "ab"] == there


def test_a_change_that_was_cut_off_is_finished(tmp_path):
    cut_off(tmp_path, {"a": ("old a", "new a"), "b": (None, "new b")})
    (tmp_path / ".gradloom.part.aaaaaaaa.a").rename(tmp_path / "a")
    assert read(tmp_path, "ab") == ["new a", "new b"] and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_single_file_is_written_after_a_change_that_was_cut_off(tmp_path):
    """The older change, finished later, must not replace the newer file."""
    cut_off(tmp_path, {"a": (None, "older")})
    with atomic_write(tmp_path / "a") as file:
        file.write(b"newer")
    assert read(tmp_path, "a") == ["newer"] and os.listdir(tmp_path) == ["a"]


# -- one run at a time -------------------------------------------------------------------------------------------------

CLAIM = """
import sys, time
from gradloom.base.errors import FileError
from gradloom.files import claim
try:
    with claim(sys.argv[1], is_folder=sys.argv[2] == "folder"):
        print("claimed", flush=True)
        time.sleep(float(sys.argv[3]))
except FileError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_second_run_is_refused_while_the_first_lives(tmp_path, kind):
    out, link = tmp_path / "new" / "out", tmp_path / "link"
    link.symlink_to(out)
    job = python(CLAIM, out, kind, 60)
    assert job.stdout.readline() == "claimed\n"
    for name in (out, link):
        with pytest.raises(FileError) as caught, claim(name, is_folder=kind == "folder"):
            pass
        assert str(caught.value).startswith(f"{name}: another run (process {job.pid}) is writing there; need another")
    job.kill()
    job.wait()
    mine = f"process {os.getpid()}"
    with claim(out, is_folder=kind == "folder"), pytest.raises(FileError, match=mine):  # a lock file alone is no lock
        claim(link, is_folder=kind == "folder").__enter__()
    assert [p for p in tmp_path.rglob("*") if not p.is_dir() and p != link] == []  # the folders are the killed run's


def test_what_was_made_for_a_claim_goes_when_nothing_was_written(tmp_path):
    with claim(tmp_path / "a" / "b", is_folder=True):
        assert (tmp_path / "a" / "b").is_dir()
    assert os.listdir(tmp_path) == []
    with claim(tmp_path / "a" / "b", is_folder=True):
        write(tmp_path / "a" / "b", "1", "a")
    assert os.listdir(tmp_path / "a" / "b") == ["a"]
    (tmp_path / "file").write_bytes(b"")
    for place, message in (("file", "is no folder"), ("file/a", "cannot be written: not a directory")):
        with pytest.raises(FileError, match=message), claim(tmp_path / place, is_folder=True):
            pass


FORKS = """
import os, sys
from gradloom.files import claim
with claim(sys.argv[1], is_folder=True):
    child = os.fork()
    if not child:
        sys.exit()  # through the end of the block
    os.waitpid(child, 0)
    print(os.listdir(sys.argv[1]))
"""


def test_a_child_of_a_run_leaves_its_lock_alone(tmp_path):
    assert python(FORKS, tmp_path).communicate(timeout=60)[0] == "['.gradloom.lock']\n"
    assert os.listdir(tmp_path) == []


COUNT = """
import sys, time
from pathlib import Path
from gradloom.base.errors import FileError
from gradloom.files import claim
out, mine = sys.argv[1], 0
until = time.monotonic() + 1.5
while time.monotonic() < until:
    try:
        with claim(out + "/x", is_folder=True):
            count = int(Path(out, "count").read_text())
            Path(out, "count").write_text(str(count + 1))
            mine += 1
    except FileError as error:
        assert "another run" in str(error), error
print(mine)
"""


def test_a_folder_that_another_run_removes_while_it_is_made(tmp_path, monkeypatch):
    """mkdir fails because the folder is there, and then it is gone."""
    make, calls = os.mkdir, []

    def mkdir(path, *args, **options):
        calls.append(path)
        if len(calls) == 1:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        make(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with claim(tmp_path / "x", is_folder=True):
        assert len(calls) == 2 and (tmp_path / "x").is_dir()
    (tmp_path / "y").write_text("a file")
    with pytest.raises(FileError), claim(tmp_path / "y", is_folder=True):
        pass


@pytest.mark.slow
def test_no_two_at_once_however_they_race(tmp_path):
    (tmp_path / "count").write_text("0")
    jobs = [python(COUNT, tmp_path) for _ in range(4)]
    mine = []
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
        mine.append(int(out))
    assert sum(mine) == int((tmp_path / "count").read_text()) > 20
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == [tmp_path / "count"]


def test_threads_of_one_process_wait_for_each_other(tmp_path):
    def work(i):
        for n in range(10):
            write(tmp_path, f"{i} {n}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(set(read(tmp_path))) == 1
    for thread in threads:
        thread.join()
    assert len(set(read(tmp_path))) == 1 and sorted(os.listdir(tmp_path)) == [*NAMES]


def test_only_what_killed_writers_left_is_removed(tmp_path):
    mine = [".gradloom.part.mine", ".gradloom.notes", ".a.abcdefgh.part", "x.gradloom.part.abcdefgh.a"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".gradloom.part.abcdefgh.a").write_text("left")
    (tmp_path / ".gradloom.part.abcdefgh.m.gguf").write_text("left")
    os.mkfifo(tmp_path / ".gradloom.part.abcdefgh.pipe")
    with claim(tmp_path / "m.gguf", is_folder=False):
        assert not (tmp_path / ".gradloom.part.abcdefgh.m.gguf").exists()
        assert (tmp_path / ".gradloom.part.abcdefgh.a").exists()  # of another output
    with atomic_path(tmp_path / "live") as part:
        part.write_text("live")
        with claim(tmp_path, is_folder=True):
            assert part.exists() and not (tmp_path / ".gradloom.part.abcdefgh.a").exists()
    assert sorted(os.listdir(tmp_path)) == sorted([*mine, "live", ".gradloom.part.abcdefgh.pipe"])


# -- what is no regular file -------------------------------------------------------------------------------------------


def test_named_pipes_and_devices_are_not_replaced(tmp_path):
    pipe, device = tmp_path / "m.safetensors", tmp_path / "m.gguf"
    os.mkfifo(pipe)
    places = [(pipe, "is a named pipe")]
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
    except PermissionError:
        pass
    else:
        places.append((device, "is a device"))
    for path, message in places:
        kind = path.stat().st_mode
        for work in (
            lambda path=path: save_arrays(path, {"a": np.zeros(3)}),
            lambda path=path: write_gguf(path, {}, {"a": np.zeros(3, "f4")}),
            lambda path=path: check_target(path),
            lambda path=path: claim(path, is_folder=False).__enter__(),
        ):
            with pytest.raises(FileError, match=f"{message}, which cannot be replaced; need the name of a regular"):
                work()
        assert path.stat().st_mode == kind and len(os.listdir(tmp_path)) == len(places)
        check_target(path, streams=True)
    with pytest.raises(FileError, match="is a folder"):
        check_target(tmp_path, streams=True)
    if len(places) == 2:
        with atomic_write(device) as file:
            file.write(b"1")
        assert stat.S_ISCHR(device.stat().st_mode)


def test_a_named_pipe_is_streamed_to(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with atomic_write(pipe) as file:
        file.write(b"text")
    reader.join(timeout=30)
    assert found == [b"text"] and stat.S_ISFIFO(pipe.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]


TO_STDOUT = """
from gradloom.base.errors import FileError
from gradloom.files import atomic_path, atomic_write
print("before", flush=True)
with atomic_write("/dev/stdout") as file:
    file.write(b"text\\n")
try:
    with atomic_path("/dev/stdout"):
        pass
except FileError as error:
    print("refused", "named pipe" in str(error) or "open file" in str(error))
"""


@pytest.mark.parametrize("to", ["pipe", "file", "file that is gone"])
def test_stdout_by_its_name(tmp_path, to):
    want = "before\ntext\nrefused True\n"
    if to == "pipe":
        assert python(TO_STDOUT).communicate(timeout=60)[0] == want
        return
    with open(tmp_path / "out", "w+") as file:
        if to != "file":
            (tmp_path / "out").unlink()
        job = python(TO_STDOUT, stdout=file)
        assert job.wait(timeout=60) == 0, job.stderr.read()
        file.seek(0)
        assert file.read() == want and os.listdir(tmp_path) == (["out"] if to == "file" else [])
