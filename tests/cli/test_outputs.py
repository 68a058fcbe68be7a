"""What commands leave on disk, whatever stops them: signals, NaN, kills, full and closed streams, a second run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import FileError
from gradloom.cli import common
from gradloom.cli.main import main
from gradloom.cli.model import load_model
from gradloom.files import load_arrays, read_together
from gradloom.llm.finetune import Run
from gradloom.runs.folder import read_run
from gradloom.tables.perceptron import perceptron
from tests import processes
from tests.cli.command import FILES, run
from tests.llm.random_models import write
from tests.parallel.mpi import finish, needs_mpi
from tests.parallel.mpi import start as start_ranks

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "examples" / "data" / "digits.npz")
ENV = processes.environment(GRADLOOM_THREADS="1")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("GRADLOOM_THREADS", "1")


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """(a model, a text)"""
    folder = tmp_path_factory.mktemp("language")
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat, and the dog sat on the log. " * 60)
    return str(write(folder, "llama", chat=True, context=256)), str(text)


def start(*arguments, **options):
    return processes.start([sys.executable, "-m", "gradloom", *arguments], env=ENV, **options)


def table(path, rows=200, bad=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    if bad is not None:
        x[bad] = 1e30
    lines = [",".join(f"{v:.6g}" for v in (*row, row.sum())) for row in x]
    path.write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    return str(path)


def good(out, data=DIGITS):
    """A model and its result, and what is in the folder."""
    assert main(["fit", data, "--epochs", "1", "--hidden", "4", "--out", str(out)]) == 0
    return content(out)


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def wait_for_epoch(job, least):
    """A line of this epoch or of a later one; the lines of short epochs are not all there."""
    for line in job.stderr:
        if line.startswith("epoch ") and int(line.split()[1].split("/")[0]) >= least:
            return
    pytest.fail("the line did not come")


def belong_together(out):
    """The result of a folder; its weights are those of that run."""

    def read(weights, result):
        about = json.loads(load_arrays(weights)[1]["gradloom.model"])["about"]
        return about, json.loads(result.read_text())

    about, result = read_together(out, ("model.safetensors", "result.json"), read)
    assert about["ending"] == result["ending"] and about["seed"] == result["seed"]
    return result


# -- nothing before a step, and all together ---------------------------------------------------------------------------


def test_ctrl_c_before_the_first_step_leaves_model_and_result(capsys, tmp_path, monkeypatch):
    before = good(tmp_path / "out")
    monkeypatch.setattr(gl.Trainer, "run_rows", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = run(capsys, "fit", DIGITS, "--out", tmp_path / "out")
    assert code == 130 and err.splitlines()[-1] == "interrupted before the first step; nothing is saved"
    assert content(tmp_path / "out") == before


def test_a_loss_that_is_not_finite_at_the_first_step_leaves_model_and_result(capsys, tmp_path, monkeypatch):
    before = good(tmp_path / "out")
    capsys.readouterr()

    def build(*arguments):
        net = perceptron(*arguments)
        net.init(0)
        net.parameters()[0].assign(np.full(net.parameters()[0].shape, np.nan))
        return net

    monkeypatch.setattr("gradloom.tables.perceptron.perceptron", build)
    code, out, err = run(capsys, "fit", DIGITS, "--out", tmp_path / "out")
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("gradloom: training stopped at step 1 "), err
    assert last.endswith("; this was before the first step was done, and nothing is saved")
    assert content(tmp_path / "out") == before


def test_a_loss_that_is_not_finite_later_saves_model_and_result_of_one_run(capsys, tmp_path):
    data = table(tmp_path / "t.csv")
    good(tmp_path / "out", data)
    options = ("--optimizer", "sgd", "--lr", "1e15", "--epochs", 3, "--seed", 7, "--out", tmp_path / "out")
    code, _, err = run(capsys, "fit", data, *options)
    last = err.splitlines()[-1]
    stopped = int(re.match(r"gradloom: training stopped at step (\d+)", last)[1])
    assert (
        code == 2
        and stopped > 1
        and last.endswith(f"the weights before the failed step are in {tmp_path / 'out' / 'model.safetensors'}")
    )
    result = belong_together(tmp_path / "out")
    assert result["ending"].startswith("stopped: training stopped at step") and result["seed"] == 7
    assert result["steps"] == stopped - 1 and result["interrupted"] is False and "test_loss" not in result
    load_model(tmp_path / "out")


@pytest.mark.parametrize("ending", [None, gl.TrainError("it stopped"), KeyboardInterrupt()])
def test_weights_that_are_not_finite_are_not_saved(capsys, tmp_path, monkeypatch, ending):
    """The last step may spoil the weights without any loss that is not finite."""
    before = good(tmp_path / "out")
    capsys.readouterr()
    honest = gl.fit

    def fit(net, *arguments, **options):
        history = honest(net, *arguments, **options)
        net.parameters()[0].assign(np.full(net.parameters()[0].shape, np.inf))
        if ending is not None:
            raise ending
        return history

    monkeypatch.setattr("gradloom.tables.recipe.fit", fit)
    code, out, err = run(capsys, "fit", DIGITS, "--epochs", 1, "--out", tmp_path / "out")
    last = err.splitlines()[-1]
    assert code == (130 if isinstance(ending, KeyboardInterrupt) else 2) and out == "", err
    assert last.endswith(
        "; nothing is saved: array '1.weight' holds 32000 of 32000 numbers that are NaN or infinite"
    ), err
    now = content(tmp_path / "out")  # the checkpoint, which was taken before they were spoilt, is that of the new run
    assert all(now[name] == before[name] for name in ("model.safetensors", "result.json"))


def test_a_stop_while_the_test_rows_are_measured_saves_the_weights(capsys, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gl, "evaluate", stop)
    code = run(capsys, "fit", DIGITS, "--epochs", 2, "--out", tmp_path / "out")[0]
    result = belong_together(tmp_path / "out")
    assert code == 130 and result["ending"] == "done" and result["interrupted"] is True
    assert result["epochs"] == 2 and "test_loss" not in result
    assert sorted(os.listdir(tmp_path / "out")) == FILES


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("a fault of ours")])
def test_an_unforeseen_error_after_a_step_loses_nothing(capsys, tmp_path, monkeypatch, language, error):
    from gradloom.train import display

    def fail(*_, **__):
        raise error

    def stopped(*arguments):
        """A fault of ours shows itself; memory that is short is one line."""
        if isinstance(error, MemoryError):
            assert main(list(arguments)) == 2
        else:
            with pytest.raises(type(error)):
                main(list(arguments))

    monkeypatch.setattr(display.Display, "on_pass", fail)
    stopped("fit", DIGITS, "--epochs", "3", "--out", str(tmp_path / "out"))
    result = belong_together(tmp_path / "out")
    assert result["ending"] == f"stopped: {error}" and result["steps"] == -(-result["rows_train"] // 32)
    assert "the weights before the failed step are in" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(gl, "evaluate", fail)
    stopped("fit", DIGITS, "--epochs", "1", "--seed", "5", "--out", str(tmp_path / "out"))
    assert belong_together(tmp_path / "out")["seed"] == 5
    monkeypatch.setattr(display.StepDisplay, "on_pass", fail)
    stopped("finetune", *language, "--context", "32", "--steps", "2", "--out", str(tmp_path / "a.gguf"))
    assert (tmp_path / "a.gguf").exists()


def test_full_fine_tuning_saves_no_weights_that_are_not_finite(capsys, tmp_path, language):
    out = tmp_path / "m.gguf"
    out.write_bytes(b"old")
    decay = ("--lr", "3e38", "--weight-decay", 9)  # their product is infinite
    options = (*decay, "--steps", 1, "--warmup", 0, "--schedule", "constant", "--context", 32, "--val-split", 0)
    code, _, err = run(capsys, "finetune", *language, "--method", "full", *options, "--out", out)
    assert code == 2 and "numbers that are NaN or infinite" in err.splitlines()[-1], err
    assert out.read_bytes() == b"old"


@needs_mpi
def test_ranks_that_differ_leave_model_and_result(tmp_path):
    before = good(tmp_path / "out")
    code = "import os, sys; from gradloom.cli.main import main; "
    code += "sys.exit(main([*sys.argv[1:], '--lr', '0.1' if os.environ['PMI_RANK'] == '1' else '0.2']))"
    ended = finish(start_ranks(2, "-c", code, "fit", DIGITS, "--parallel", "mpi", "--out", tmp_path / "out"))
    assert ended.code == 2 and "nothing is saved" in ended.err and "Traceback" not in ended.err, ended.err
    assert content(tmp_path / "out") == before


@pytest.mark.slow
def test_a_killed_run_leaves_all_old_or_all_new(tmp_path):
    """SIGKILL at moments around the saving of a run that is ended by Ctrl-C."""
    good(tmp_path / "out")
    old, rng, seeds = belong_together(tmp_path / "out"), random.Random(1), set()
    for seed in range(1, 9):
        job = start("fit", DIGITS, "--epochs", 100000, "--seed", seed, "--out", tmp_path / "out", "--overwrite")
        wait_for_epoch(job, 2)
        job.send_signal(signal.SIGINT)
        time.sleep(rng.uniform(0, 0.12))
        processes.end(job)
        found = belong_together(tmp_path / "out")
        assert found == old or (found["seed"] == seed and found["ending"] == "interrupted")
        old = found
        seeds.add(found["seed"])
        load_model(tmp_path / "out")
    words = ["fit", DIGITS, "--epochs", "1", "--hidden", "4", "--out", str(tmp_path / "out")]
    assert main([*words, "--overwrite"]) == 0  # and what a kill has left goes
    assert sorted(os.listdir(tmp_path / "out")) == FILES


# -- one run at a time, regular files only -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_run_is_refused_before_any_work(capsys, tmp_path, language):
    out = tmp_path / "out"
    job = start("fit", DIGITS, "--epochs", 100000, "--out", out)
    wait_for_epoch(job, 1)
    refused = f"out: another run (process {job.pid}) is writing there; need another place"
    for command in (["fit", "nowhere.csv"], ["finetune", "nowhere.gguf", "nowhere.txt"]):
        code, _, err = run(capsys, *command, "--out", out)
        assert code == 2 and refused in err and len(err.splitlines()) == 1, err
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == 143
    assert sorted(os.listdir(out)) == FILES
    assert run(capsys, "predict", out, DIGITS)[0] == 0

    out = tmp_path / "a.gguf"
    job = start("finetune", *language, "--context", 32, "--epochs", 100000, "--out", out)
    wait_for_epoch(job, 1)
    for command in (["finetune", *language], ["merge", language[0], tmp_path / "none.gguf"]):
        code, _, err = run(capsys, *command, "--out", out)
        assert code == 2 and f"a.gguf: another run (process {job.pid}) is writing there" in err, err
    job.kill()
    job.wait()
    options = ("--context", 32, "--steps", 2, "--val-split", 0)
    assert run(capsys, "finetune", *language, *options, "--out", out)[0] == 0
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "a.run", "out"]


def test_what_is_no_regular_file_stays(capsys, tmp_path, language):
    good(tmp_path / "out")
    adapter, pipe = tmp_path / "a.gguf", tmp_path / "p.gguf"
    options = ("--context", 32, "--steps", 1, "--val-split", 0)
    assert run(capsys, "finetune", *language, *options, "--out", adapter)[0] == 0
    (tmp_path / "pipes").mkdir()
    (tmp_path / "peft").mkdir()
    pipes = [pipe, *(tmp_path / "pipes" / name for name in ("model.safetensors", "result.json"))]
    pipes += [tmp_path / "peft" / "adapter_config.json"]
    for one in pipes:
        os.mkfifo(one)
    for command in (
        ["fit", DIGITS, "--out", tmp_path / "pipes"],
        ["finetune", *language, "--out", pipe],
        ["finetune", *language, "--method", "full", "--out", pipe],
        ["finetune", *language, "--out", tmp_path / "peft"],
        ["merge", language[0], adapter, "--out", pipe],
    ):
        code, out, err = run(capsys, *command)
        assert code == 2 and out == "" and len(err.splitlines()) == 1, err
        assert "is a named pipe, which cannot be replaced" in err
        assert all(stat.S_ISFIFO(one.stat().st_mode) for one in pipes)
    assert sorted(os.listdir(tmp_path / "pipes")) == ["model.safetensors", "result.json"]


@pytest.mark.slow
def test_predictions_go_through_a_pipe(capfd, tmp_path):
    good(tmp_path / "out")
    os.mkfifo(tmp_path / "pipe")
    job = start("predict", tmp_path / "out", DIGITS, "--out", tmp_path / "pipe")
    with open(tmp_path / "pipe") as pipe:
        assert len(pipe.read().splitlines()) == 1798
    assert job.wait(timeout=60) == 0 and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    job = start("predict", tmp_path / "out", DIGITS, "--out", "/dev/stdout", "--json")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0 and len(out.splitlines()) == 1799, err
    job = start("predict", tmp_path / "out", DIGITS, "--out", "/dev/full")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 2 and "/dev/full: cannot be written: no space left on device" in err.splitlines()[-1]


# -- SIGTERM -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_saves_as_ctrl_c_does(tmp_path, language):
    job = start("fit", DIGITS, "--epochs", 100000, "--out", tmp_path / "out")
    wait_for_epoch(job, 2)
    for _ in range(3):  # a second signal does not stop the saving
        job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 143 and "Traceback" not in err, err
    result = belong_together(tmp_path / "out")
    assert result["interrupted"] is True and result["steps"] >= 2 * -(-result["rows_train"] // 32)

    command = ["finetune", *language, "--context", 32, "--epochs", 100000, "--out", tmp_path / "peft", "--json"]
    job = start(*command)
    wait_for_epoch(job, 2)
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 143 and json.loads(out)["interrupted"] is True and "Traceback" not in err, err
    assert sorted(os.listdir(tmp_path / "peft")) == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.slow
def test_sigterm_before_the_first_step(capsys, tmp_path, monkeypatch):
    before = good(tmp_path / "out")
    monkeypatch.setattr(gl.Trainer, "run_rows", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert run(capsys, "fit", DIGITS, "--out", tmp_path / "out")[0] == 143
    assert content(tmp_path / "out") == before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a caller in Python gets the handlers back


def test_an_interrupt_while_a_class_is_made(monkeypatch, capsys):
    """During an import: Python 3.11 raises a RuntimeError from the interrupt."""
    from gradloom.cli import main as command

    class Wrapped:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def importing(parsed):
        try:
            type("Life", (), {"demands": Wrapped()})
        except KeyboardInterrupt as stop:
            raise RuntimeError("Error calling __set_name__") from stop

    monkeypatch.setattr(command.app, "invoke", importing)
    assert command.main(["doctor"]) == 130
    assert capsys.readouterr().err == "gradloom: interrupted\n"


def test_no_thread_is_one_line(monkeypatch, capsys):
    from gradloom.cli import main as command

    def invoked(parsed):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(command.app, "invoke", invoked)
    assert command.main(["doctor"]) == 2
    assert "gradloom: threads: the system starts no further one; need more memory, or" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_while_the_command_starts(tmp_path):
    """It ends by the signal itself, or with its code and a word; never as if by Ctrl-C."""
    outcomes = set()
    for moment in range(16):
        job = start("fit", DIGITS, "--epochs", 2000, "--out", tmp_path / f"{moment}")
        time.sleep(0.1 * (moment + 1))
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        assert job.returncode == -signal.SIGTERM or (job.returncode == 143 and "interrupted" in err), (moment, err)
        outcomes.add(job.returncode)
    assert 143 in outcomes


def test_a_signal_whose_exception_is_lost_is_heeded_before_the_training(capsys, tmp_path, monkeypatch):
    from gradloom.cli import fit_report as module

    def announce(*_):
        with contextlib.suppress(KeyboardInterrupt):  # as an import or a destructor may do
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "announce", announce)
    assert run(capsys, "fit", DIGITS, "--out", tmp_path / "out")[0] == 143
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("place", ["x" * 300 + ".gguf", "loop.gguf", "o.gguf/", ""])
def test_places_that_cannot_be_are_refused_before_the_work(capsys, tmp_path, monkeypatch, language, place):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop.gguf", "loop.gguf")
    code, _, err = run(capsys, "finetune", *language, "--context", 32, "--steps", 1, "--out", place)
    assert code == 2 and len(err.splitlines()) == 1 and err.startswith(f"gradloom: {place or '--out'}: ")


def test_what_a_file_says_does_not_steer_the_terminal(capsys, tmp_path, monkeypatch):
    (tmp_path / "a\x1b[31m\x9b\u202e.csv").write_text("x,y\n1\n")
    name = "a\x1b[31m\x9b\u202e.csv"
    code, _, err = run(capsys, "fit", tmp_path / name)
    assert code == 2 and name in err  # a pipe or a file gets it as it is
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, _, err = run(capsys, "fit", tmp_path / name)
    assert code == 2 and r"a\x1b[31m\x9b\u202e.csv" in err and not {"\x1b", "\x9b", "\u202e"} & set(err)


def test_sigterm_during_the_saving(capsys, tmp_path, monkeypatch):
    from gradloom.files import arrays

    honest = arrays.save_arrays

    def save(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        honest(*arguments)

    monkeypatch.setattr("gradloom.tables.model.save_arrays", save)
    code, out, _ = run(capsys, "fit", DIGITS, "--epochs", 1, "--out", tmp_path / "out")
    assert code == 143 and belong_together(tmp_path / "out")["ending"] == "done" and "saved" in out


@pytest.mark.slow
def test_sigterm_in_commands_that_save_nothing(tmp_path, language):
    good(tmp_path / "out")
    model, text = language
    long = tmp_path / "long.txt"
    long.write_text(Path(text).read_text() * 500)
    for command in (
        ["evaluate", model, long, "--context", 256],
        ["generate", model, "--prompt", "the", "-n", 250],
        ["verify", model, text, "--context", 256, "--batch-size", 4],
    ):
        job = start(*command)
        assert (job.stderr if command[0] == "evaluate" else job.stdout).read(1)
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        assert job.returncode == 143 and "Traceback" not in err, (command, err)
    os.mkfifo(tmp_path / "slow.csv")
    job = start("predict", tmp_path / "out", DIGITS, "--out", tmp_path / "slow.csv")
    with open(tmp_path / "slow.csv", "rb", buffering=0) as pipe:
        assert pipe.read(1)  # it waits for us to read the rest
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
    assert job.returncode == 143 and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_what_is_ignored_stays_ignored(tmp_path, number):
    def ignore():
        signal.signal(number, signal.SIG_IGN)

    job = start("fit", DIGITS, "--epochs", 60, "--out", tmp_path / "out", preexec_fn=ignore)
    wait_for_epoch(job, 1)
    job.send_signal(number)
    _, err = job.communicate(timeout=100)
    assert job.returncode == 0 and belong_together(tmp_path / "out")["ending"] == "done", err


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_ranks_that_are_stopped_save_once(tmp_path, number):
    job = start_ranks(
        2, "-m", "gradloom", "fit", DIGITS, "--parallel", "mpi", "--epochs", 100000, "--out", tmp_path / "o"
    )
    wait_for_epoch(job, 2)
    job.send_signal(number)
    if (
        number == signal.SIGTERM
    ):  # mpiexec answers a second SIGINT itself; one that comes a second later ends ranks at once
        for pause in (0.05, 0.1, 0.1):
            time.sleep(pause)
            job.send_signal(number)
    ended = finish(job, 60)
    assert ended.code == 128 + number and (tmp_path / "o" / "model.safetensors").exists(), ended
    assert belong_together(tmp_path / "o")["ending"] == "interrupted" and "Traceback" not in ended.err
    assert sorted(os.listdir(tmp_path / "o")) == FILES


def trained_and_saved(at=None, number=signal.SIGTERM):
    """What is done of a command's work when a signal comes at line `at` of it; and how many lines it passes."""
    done, passed = [], 0

    def work():
        with common.uninterrupted() as interruptible:
            try:
                with interruptible():
                    done.append("trained")
            except KeyboardInterrupt:
                done.append("stopped")
            done.append("saved")

    def trace(frame, event, _):
        nonlocal passed
        if event == "line" and frame.f_code.co_filename in (common.__file__, __file__):
            passed += 1
            if passed == at:
                signal.raise_signal(number)
        return trace

    old = sys.gettrace()
    with common.signals(lasting=False), contextlib.suppress(KeyboardInterrupt):
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(old)
    return done, passed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_signal_comes_between_training_and_saving(number):
    done, lines = trained_and_saved()
    assert done == ["trained", "saved"]
    ends = [trained_and_saved(at, number)[0] for at in range(1, lines + 1)]
    assert all("saved" in done for done in ends if "trained" in done) and ["trained", "stopped", "saved"] in ends


# -- streams that cannot be written ------------------------------------------------------------------------------------


def shell(redirection, *arguments):
    words = [sys.executable, "-m", "gradloom", *map(str, arguments)]
    job = processes.start(["sh", "-c", f'exec "$@" {redirection}', "sh", *words], env=ENV)
    out, err = job.communicate(timeout=100)
    return job.returncode, out, err


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.slow
def test_stdout_that_takes_nothing(tmp_path, language, redirection):
    model, text = language
    good(tmp_path / "out")
    closed = "bad file descriptor; need a file or a reader that takes it"
    full = "no space left on device; free some space or choose another place"
    line = f"gradloom: stdout: cannot be written: {closed if '&-' in redirection else full}"
    small = ("--context", 32, "--steps", 1, "--val-split", 0)
    adapter = tmp_path / "a.gguf"
    for command in (
        ["fit", DIGITS, "--epochs", 1, "--seed", 3, "--out", tmp_path / "out"],
        ["fit", DIGITS, "--epochs", 1, "--seed", 4, "--out", tmp_path / "out", "--json"],
        ["predict", tmp_path / "out", DIGITS],
        ["predict", tmp_path / "out", DIGITS, "--json"],
        ["finetune", model, text, *small, "--out", adapter],
        ["finetune", model, text, *small, "--out", adapter, "--json"],
        ["generate", model, "--prompt", "the", "-n", 3],
        ["evaluate", model, text, "--context", 32],
        ["plan", model, "--context", 32],
        ["verify", model, text, "--context", 16, "--no-reference"],
        ["info", model],
        ["merge", model, adapter, "--out", tmp_path / "m.gguf"],
        ["doctor", "--quick"],
        ["--version"],
        ["--help"],
    ):
        code, _, err = shell(redirection, *command)
        assert code == 2 and err.splitlines()[-1] == line and "Traceback" not in err, (command, code, err)
        assert "Exception ignored" not in err
    assert belong_together(tmp_path / "out")["seed"] == 4 and load_model(tmp_path / "out")
    assert (tmp_path / "m.gguf").stat().st_size > 1000 and adapter.stat().st_size > 1000


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.slow
def test_stderr_that_takes_nothing(tmp_path, language, redirection):
    """The work is done, and what was asked for goes to stdout, and nothing else; bad input keeps its code."""
    model, text = language
    code, out, _ = shell(redirection, "fit", DIGITS, "--epochs", 2, "--out", tmp_path / "out", "--json")
    assert code == 0 and len(out.splitlines()) == 1 and json.loads(out) == belong_together(tmp_path / "out")
    code, out, _ = shell(redirection, "predict", tmp_path / "out", DIGITS)
    assert code == 0 and len(out.splitlines()) == 1798
    small = ("--context", 32, "--steps", 1, "--val-split", 0)
    code, out, _ = shell(redirection, "finetune", model, text, *small, "--out", tmp_path / "a.gguf", "--json")
    assert code == 0 and len(out.splitlines()) == 1 and json.loads(out)["steps"] == 1
    code, out, _ = shell(redirection, "generate", model, "--prompt", "the", "-n", 3, "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["prompt"] == "the"
    assert shell(redirection, "fit", "nowhere.csv", "--out", tmp_path / "out")[:2] == (2, "")
    assert shell(redirection, "fit", "--no-such-option")[:2] == (2, "")


def full(path, *_, **__):
    raise FileError(f"{path}: cannot be written: no space left on device")


@pytest.mark.parametrize("command", ["fit", "finetune"])
def test_a_last_checkpoint_that_cannot_be_written(command, capsys, tmp_path, monkeypatch, language):
    """Exit code, JSON and run.json agree; the result is saved all the same."""
    monkeypatch.setattr("gradloom.runs.checkpoint.write_checkpoint", full)
    folder, out = tmp_path / "a", tmp_path / "a"
    words = (DIGITS, "--epochs", 1, "--hidden", "4")
    if command == "finetune":
        folder, out = tmp_path / "a.run", tmp_path / "a.gguf"
        words = (*language, "--context", 32, "--steps", 2, "--val-split", 0)
    code, stdout, err = run(capsys, command, *words, "--out", out, "--json")
    result, about = json.loads(stdout), read_run(folder)
    assert code == 2 and result["interrupted"] is False and "was not saved; it has no checkpoint" in err
    assert about["state"] == "failed" and about["error"].startswith("FileError: the checkpoint of step ")
    assert about["error"].endswith(f"{folder / 'checkpoints'}: cannot be written: no space left on device")
    if command == "fit":
        assert belong_together(out) == result and "test_loss" in result
        assert f"FileError: {result['ending'].removeprefix('stopped: ')}" == about["error"]
        load_model(out)
    else:
        assert out.exists() and result["out"] == str(out)
    monkeypatch.undo()
    assert run(capsys, command, *words, "--out", out, "--json")[0] == 0
    assert read_run(folder)["state"] == "finished" and "error" not in read_run(folder)


@pytest.mark.parametrize("command", ["fit", "finetune"])
def test_a_result_that_cannot_be_saved(command, capsys, tmp_path, monkeypatch, language):
    """The run is marked as failed; it can be resumed when there is room."""
    folder, out, words = tmp_path / "a", tmp_path / "a", (DIGITS, "--epochs", 1, "--hidden", "4")
    monkeypatch.setattr("gradloom.tables.saving.save", lambda model, path: full(path))
    if command == "finetune":
        folder, out = tmp_path / "a.run", tmp_path / "a.gguf"
        words = (*language, "--context", 32, "--steps", 2, "--val-split", 0)
        monkeypatch.setattr(Run, "save", lambda self, path: full(path))
    code, stdout, err = run(capsys, command, *words, "--out", out, "--json")
    assert (code, stdout) == (2, "") and "cannot be written: no space left on device" in err.splitlines()[-1]
    about = read_run(folder)
    assert about["state"] == "failed" and f"FileError: {out}" in about["error"] and about["step"] > 0
    monkeypatch.undo()
    assert run(capsys, command, *words, "--out", out, "--resume")[0] == 0
    assert read_run(folder)["state"] == "finished" and "error" not in read_run(folder)


@pytest.mark.slow
def test_no_stream_at_all(tmp_path):
    """The files do not get the numbers of streams that are closed, and no text goes into them."""
    code, _, _ = shell("<&- >&- 2>&-", "fit", DIGITS, "--epochs", 2, "--out", tmp_path / "out")
    assert code == 2 and belong_together(tmp_path / "out")["ending"] == "done"
    load_model(tmp_path / "out")
