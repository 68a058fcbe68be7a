"""No text of data, models or checkpoints steers a terminal; a pipe or a file gets the bytes as they are."""

import csv
import io
import subprocess
import sys

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.terminal import in_one_line, printable, to_stderr
from gradloom.cli.common import streams
from gradloom.cli.main import main
from gradloom.cli.progress import change_line
from gradloom.nn import Linear, Module
from gradloom.train.display import Display
from tests.cli.command import run
from tests.cli.test_fit import ENV

STEERING = "\x1b]0;x\x07\x9b2J\r\x08\x7f\u202e\u2066\u2028z"  # C0, C1, DEL, marks of direction, a line separator
ESCAPED = r"\x1b]0;x\x07\x9b2J\r\x08\x7f\u202e\u2066\u2028z"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_escaped():
    assert printable(f"a\tb\n{STEERING}é👨‍👩‍👧\udc9b") == f"a\tb\n{ESCAPED}é👨‍👩‍👧\\x9b"
    assert in_one_line("a\tb\nc\x1b") == r"a\tb\nc\x1b"
    for code in (*range(32), *range(127, 160)):
        assert printable(chr(code)) == (
            chr(code) if chr(code) in "\t\n" else chr(code).encode("unicode_escape").decode()
        )


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_the_streams_of_a_command(monkeypatch, name):
    """Whoever prints: a library, a warning. The command's own control characters come through."""
    for stream, shown in ((Terminal(), ESCAPED), (io.StringIO(), STEERING)):
        monkeypatch.setattr(sys, name, stream)
        with streams():
            print(f"a{STEERING}", file=getattr(sys, name))
            getattr(sys, name).writelines([STEERING])
            if name == "stderr":
                to_stderr(STEERING)
                change_line(f"5 % of {STEERING}\n")
        text = stream.getvalue()
        assert text.startswith(f"a{shown}\n{shown}")
        if name == "stderr":
            assert text.endswith(f"\r5 % of {ESCAPED}\\n\x1b[K") and f"{shown}\n\r5" in text


def test_lines_of_the_library(monkeypatch):
    for stream, shown in ((Terminal(), ESCAPED), (io.StringIO(), STEERING)):
        monkeypatch.setattr(sys, "stderr", stream)
        to_stderr(f"machine {STEERING}")
        assert stream.getvalue() == f"machine {shown}\n"


@pytest.mark.parametrize("live", [True, False])
def test_the_display_of_a_training(monkeypatch, live):
    monkeypatch.setenv("TERM", "xterm" if live else "dumb")
    stream = Terminal()
    with Display(2, stream=stream) as display:
        display.print_line(f"name {STEERING}")
        display._training = [f"metric {STEERING}"]
        display._refresh(0.0)
    text = stream.getvalue()
    joined = "".join(text.split())
    assert "".join(ESCAPED.split()) in joined
    for character in "\x07\x9b\x08\x7f\u202e\u2066\u2028":
        assert character not in text
    assert "\x1b]0" not in text


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(0)
    head = ["id", f"size{STEERING}", "=target"]
    with open(folder / "d.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for i in range(40):
            size = rng.normal()
            writer.writerow([f"=cmd({i})" if i else "-5", size, f"@no{STEERING}" if size < 0 else "+yes"])
    model, data = folder / "m", folder / "d.csv"
    options = ["--target", "=target", "--drop", "id", "--epochs", "2", "--hidden", "4", "--out", str(model)]
    assert main(["fit", str(data), *options]) == 0
    return model, data


def test_predictions(capsys, monkeypatch, fitted):
    model, data = fitted
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    piped = run(capsys, "predict", model, data, "--keep", "id")[1]
    assert f"@no{STEERING}" in piped and "=cmd(1)," in piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, shown, err = run(capsys, "predict", model, data, "--keep", "id")
    assert code == 0 and f"@no{ESCAPED}" in shown and not set(STEERING) - set(ESCAPED) & set(shown + err)
    assert shown == printable(piped)


def test_texts_of_a_model(fitted):
    model = gl.load(str(fitted[0]))
    for text in (model.summary(), repr(model), str(model)):
        assert ESCAPED in text and not (set(STEERING) - set(ESCAPED)) & set(text)
    assert not (set(STEERING) - set(ESCAPED)) & set(model.net.summary() + repr(model.net))


def test_names_of_modules():
    net = Module()
    setattr(net, f"a{STEERING}", Linear(2, 3))
    net.b = net
    for text in (net.summary(), repr(net)):
        assert not (set(STEERING) - set(ESCAPED)) & set(text)
    assert f"a{ESCAPED}" in net.summary()


def test_formulas_in_csv(capsys, fitted, tmp_path):
    """Texts that a spreadsheet runs are written as they are, or behind an apostrophe where that is asked for."""
    model, data = fitted

    def table(*options):
        out = tmp_path / "p.csv"
        assert run(capsys, "predict", model, data, "--keep", "id", "--out", out, *options)[0] == 0
        return [*csv.reader(io.StringIO(out.read_bytes().decode(), newline=""))]

    plain, escaped = table(), table("--escape-formulas")
    assert plain[1][0] == escaped[1][0] == "-5"  # a number
    assert plain[2][0] == "=cmd(1)" and escaped[2][0] == "'=cmd(1)"
    assert plain[0][1] == "=target" and escaped[0][1] == "'=target"
    assert {row[1] for row in escaped[1:]} <= {"'+yes", f"'@no{STEERING}"}
    assert [row[2:] for row in plain[1:]] == [row[2:] for row in escaped[1:]]
    code, _, err = run(capsys, "predict", model, data, "--escape-formulas", "--json")
    assert code == 2 and "--escape-formulas" in err


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C"}, ASCII])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["x\xff.csv"], "x\xff.csv: no such file or folder"),
        (["ü.csv"], "ü.csv: no such file or folder"),
        (["a.csv", "--lr", "ü"], "Invalid value for '--lr': 'ü' is not a valid float; see gradloom fit --help"),
        (
            ["a.csv", "--optimizer", "ü"],
            "--optimizer ü: must be adamw or adam or sgd or lion or rmsprop or adafactor or muon",
        ),
        (["a.csv", "--hidden", "ü"], "--hidden ü: must be "),
    ],
)
def test_names_in_errors_are_the_bytes_that_were_given(tmp_path, locale, words, line):
    """Also in the locale C, which has none of these bytes."""
    given = [word.encode("latin-1" if "xff" in ascii(word) else "utf-8") for word in words]
    command = [sys.executable, "-m", "gradloom", "fit", *given]
    done = subprocess.run(command, env={**ENV, **locale}, cwd=tmp_path, capture_output=True)
    expected = f"gradloom: {line}".encode("latin-1" if "xff" in ascii(line) else "utf-8")
    assert done.returncode == 2 and done.stderr.startswith(expected), done.stderr


def test_bytes_without_a_character_on_a_terminal():
    """Printable UTF-8 stays as bytes, which the locale C does not have as characters; the others are escaped."""
    name = "ü\u202e".encode() + b"\xff\x9b.csv"
    shown = printable(name.decode("ascii", "surrogateescape"))
    assert shown.encode("ascii", "surrogateescape") == "ü".encode() + rb"\u202e\xff\x9b.csv"


def test_a_command_that_does_not_exist_has_one_hint(capsys):
    assert main(["help"]) == 2
    assert capsys.readouterr().err == "gradloom: No such command 'help'; use gradloom --help\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_results_that_do_not_fit_are_an_error(tmp_path, unbuffered):
    """Also with PYTHONUNBUFFERED=1, where Python itself drops the rest of a write that is cut off."""
    code = (
        "import sys\nfrom gradloom.cli.common import streams\nwith streams(): print('x' * 100_000, end='', flush=True)"
    )
    env = {**ENV, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}  # bytecode would be cut off, too
    shell = ["bash", "-c", 'ulimit -f 8; exec "$0" -c "$1" >out', sys.executable, code]
    cut = subprocess.run(shell, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (
        cut.returncode == 1 and "StdoutError: stdout: cannot be written: file too large; raise the limit" in cut.stderr
    )
    whole = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (whole.returncode, whole.stdout) == (0, "x" * 100_000)
