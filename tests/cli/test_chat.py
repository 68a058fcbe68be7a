"""gradloom chat: lines of stdin are turns; the replies are those of a Conversation."""

import io

import pytest

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
    assert code == 0 and "the context is full: the oldest 2 messages are left out of what the model sees" in err


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
