"""gradloom chat: lines of stdin are turns; the replies are those of a Conversation."""

import io
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from gradloom.base.interrupts import SAME_SECONDS, Terminated
from gradloom.llm import Conversation
from tests.cli.command import run
from tests.llm.random_models import write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model"), "llama", chat=True, context=256)


def talked(capsys, monkeypatch, path, text, *options):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return run(capsys, "chat", path, "-n", 8, "--temperature", 0, *options)


def test_lines_are_turns(capsys, monkeypatch, path):
    code, out, err = talked(capsys, monkeypatch, path, "hello\n\nand you?\n/forget\nhello\n/quit\nnot heard\n")
    talk = Conversation(path, max_tokens=8, temperature=0)
    want = [talk.say("hello").text, talk.say("and you?").text]
    assert code == 0 and out == f"{want[0]}\n{want[1]}\n{want[0]}\n"
    assert "2 layers" in err and "/forget begins anew" in err
    code, other, _ = talked(capsys, monkeypatch, path, "hello\n", "--system", "Be brief.")
    assert (
        code == 0
        and other == Conversation(path, max_tokens=8, temperature=0, system="Be brief.").say("hello").text + "\n"
    )
    assert other != f"{want[0]}\n"


def test_a_full_context_is_said(capsys, monkeypatch, path):
    code, _, err = talked(capsys, monkeypatch, path, ("word " * 12 + "\n") * 4)
    assert code == 0 and "the context is full: the oldest 2 messages are left out of the prompt" in err


def test_what_a_cut_reply_allows_is_said(capsys, monkeypatch, path):
    _, _, err = talked(capsys, monkeypatch, path, "hello\n")
    assert "the reply was cut after 8 tokens; --max-tokens allows more" in err
    for asked in (128, 300):
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
        _, _, err = run(capsys, "chat", path, "-n", asked, "--temperature", 0)
        assert "the reply was cut after 128 tokens; half of the context is the most" in err


def test_what_cannot_be_is_one_line(capsys, monkeypatch, path, tmp_path):
    code, out, err = talked(capsys, monkeypatch, path, "word " * 300)
    assert code == 2 and out == "" and "gradloom: a turn of" in err and "Traceback" not in err
    code, _, err = talked(capsys, monkeypatch, write(tmp_path, "llama"), "hello\n")
    assert code == 2 and "has no chat template" in err
    code, _, err = talked(capsys, monkeypatch, path, "hello\n", "-n", 0)
    assert code == 2 and "--max-tokens 0" in err


class Bytes(io.TextIOWrapper):
    """Stdin that is a pipe."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"caf\xe9\n", "stdin line 2: byte 3 is no UTF-8 (invalid continuation byte); the line is left out"),
        (b"\xff\xfe\n", "stdin line 2: byte 0 is no UTF-8 (invalid start byte)"),
        (b"x" * (1 << 24) + b"yz\n", "stdin line 2: more than 16,777,216 bytes; the line is left out"),
        (b"word " * 300 + b"\n", "a turn of"),
    ],
    ids=["latin-1", "utf-16", "long", "too long for the context"],
)
def test_a_line_that_is_no_turn_is_left_out_and_said(capsys, monkeypatch, path, line, said):
    monkeypatch.setattr("sys.stdin", Bytes(b"\xef\xbb\xbfhello\r\n" + line + b"\n  \n\tand you?\n"))
    code, out, err = run(capsys, "chat", path, "-n", 8, "--temperature", 0)
    talk = Conversation(path, max_tokens=8, temperature=0)
    assert out == f"{talk.say('hello').text}\n{talk.say('and you?').text}\n"
    assert code == 2 and f"gradloom: {said}" in err and "Traceback" not in err


def test_stdin_that_is_closed(capsys, monkeypatch, path):
    monkeypatch.setattr("sys.stdin", None)
    code, out, err = run(capsys, "chat", path)
    assert code == 2 and out == "" and err.startswith("gradloom: stdin: is closed") and err.count("\n") == 1


def test_names_of_control_tokens_in_a_turn_are_text(capsys, monkeypatch, path):
    talk = Conversation(path, max_tokens=8, temperature=0)
    tokenizer = talk.model.tokenizer
    asked = f"hello {tokenizer.pieces[tokenizer.eos]}"
    code, out, _ = talked(capsys, monkeypatch, path, f"{asked}\n")
    assert code == 0 and out == talk.say(asked).text + "\n"
    ids, harmless = (talk._prompt([{"role": "user", "content": text}])[0].tolist() for text in (asked, "hello @"))
    assert ids.count(tokenizer.eos) == harmless.count(tokenizer.eos)
    assert tokenizer.encode(asked).count(tokenizer.eos) == 1


def test_control_characters_in_a_turn_are_text(capsys, monkeypatch, path):
    monkeypatch.setattr("sys.stdin", Bytes("a\0b\x1b[2J\x07\u2028c\n".encode()))
    code, out, _ = run(capsys, "chat", path, "-n", 8, "--temperature", 0)
    assert code == 0
    assert out == Conversation(path, max_tokens=8, temperature=0).say("a\0b\x1b[2J\x07\u2028c").text + "\n"


def test_a_reply_does_not_steer_the_terminal(capsys, monkeypatch):
    from gradloom.cli.generate import Shown

    Shown("").add("a\x1b[2J\x9b\t\n")
    assert capsys.readouterr().out == "a\x1b[2J\x9b\t\n"  # what is no terminal gets the text as it is
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Shown("").add("\r\u202ea\x1b[2J\x9b\t\né👨‍👩‍👧")
    assert capsys.readouterr().out == "\\r\\u202ea\\x1b[2J\\x9b\t\né👨‍👩‍👧"


class Terminal:
    """gradloom chat on a terminal, and what it shows."""

    def __init__(self, *arguments: object) -> None:
        self.end, other = pty.openpty()
        command = [sys.executable, "-m", "gradloom", "chat", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        os.set_blocking(self.end, False)
        self.shown, self.unread = b"", b""

    def wait_for(self, text: bytes, seconds: float = 60) -> None:
        """Until this is shown, behind what was waited for before."""
        ends = time.monotonic() + seconds
        while text not in self.unread:
            assert time.monotonic() < ends, self.shown
            try:
                more = os.read(self.end, 1 << 16)
            except BlockingIOError:
                time.sleep(0.02)
                continue
            self.shown, self.unread = self.shown + more, self.unread + more
        self.unread = self.unread.partition(text)[2]

    def type(self, data: bytes) -> None:
        os.write(self.end, data)


@pytest.mark.slow
def test_a_person_at_a_terminal(path):
    """A line that is no UTF-8, Ctrl-C in a reply and too long a turn do not end it; Ctrl-D does."""
    talk = Terminal(path, "-n", 100, "--temperature", 0)
    talk.wait_for(b"> ")
    talk.type(b"caf\xe9 caf\xe9\n")
    talk.wait_for(b"is no UTF-8")
    talk.wait_for(b"> ")
    talk.type(b"hello\n")
    talk.wait_for(b"hello")
    talk.wait_for(b"\n")
    for _ in range(2):  # in the reply or, where that is soon done, at the prompt: neither ends it
        talk.process.send_signal(signal.SIGINT)
        talk.wait_for(b"> ")
        time.sleep(SAME_SECONDS)
    talk.type(b"\n")
    talk.wait_for(b"> ")
    talk.type(b"and you?\n")
    talk.wait_for(b"and you?")
    talk.wait_for(b"> ")
    talk.type(b"\x04")
    assert talk.process.wait(60) == 0, talk.shown
    assert b"/quit or Ctrl-D ends" in talk.shown
    assert b"Traceback" not in talk.shown
    os.close(talk.end)


def test_ctrl_c_after_a_reply_does_not_end_the_chat(capsys, monkeypatch, path):
    def interrupted(text):
        assert "was cut" in text
        raise KeyboardInterrupt

    turns = iter(["hello", "/quit"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(turns))
    monkeypatch.setattr("gradloom.cli.chat.warn", interrupted)
    assert run(capsys, "chat", path, "-n", 2)[0] == 0 and next(turns, None) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_process_ends_a_reply_and_the_chat(capsys, monkeypatch, path, number):
    def stopped(*_):
        raise Terminated(number)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "hello")
    monkeypatch.setattr("gradloom.cli.generate.Shown.add_piece", stopped)
    assert run(capsys, "chat", path, "-n", 8)[0] == 128 + number
    monkeypatch.setattr("builtins.input", stopped)
    assert run(capsys, "chat", path, "-n", 8)[0] == 128 + number
