"""The process that renders chat templates: what it may take, who is blamed, when it ends."""

import copy
import dataclasses
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import gradloom
from gradloom.base.errors import BackendError, DataError
from gradloom.llm import template_process
from gradloom.llm.chat import ChatTemplate
from gradloom.llm.data import read_samples
from tests import processes
from tests.llm.chats import CHAT, CHATML, MARKED, QWEN3, chatml

ROOT = Path(gradloom.__file__).parents[1]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
# What a word of the user's costs a template: nothing, or one of its limits
ASKED = (
    "{% set asked = messages[0].content %}"
    "{% if asked == 'time' %}" + LOOPS + "{% elif asked == 'memory' %}{{ ('x' * 10**9) ~ ('y' * 10**9) }}"
    "{% elif asked == 'length' %}{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endif %}" + CHATML
)


@pytest.fixture
def limits(monkeypatch):
    """Smaller limits: limits(seconds=0.3)."""

    def change(**values):
        monkeypatch.setattr(template_process, "LIMITS", dataclasses.replace(template_process.LIMITS, **values))

    return change


def chat(word):
    return [{"role": "user", "content": word}, CHAT[1]]


def pid(template):
    return template._renderer._process.popen.pid


def alive(number):
    """Whether a process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def exists(number):
    return Path(f"/proc/{number}").exists()


def ends(number, seconds=20):
    until = time.monotonic() + seconds
    while alive(number) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(number)


# -- limits ------------------------------------------------------------------------------------------------------------

COSTS = [
    LOOPS,
    "{% set _turn_of_a_loop = namespace %}" + LOOPS,  # the name by which turns were counted once
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(90) }}",
    "{% for a in [1] recursive %}{% for b in range(99999) %}{{ loop(a * 99) if b < 0 }}{% endfor %}"
    "{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ lipsum(n=10**7, html=false) }}",
    "{{ range(99999) | list | slice(10**9) | list }}",
    "{{ ('a ' * 10**7) | wordwrap(1) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ '%1000000000d' % 7 }}",
    "{{ '{:1000000000}'.format(7) }}",
    "{{ 'x'.ljust(10**9 * 2) }}",
    "{{ 'x' | center(10**9 * 2) }}",
    "{{ ('x' * 10**5).replace('x', 'y' * 10**5) }}",
    "{{ (range(99999) | list) | join('y' * 10**5) }}",
    "{% set ns = namespace(x='xx') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=7) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[7]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set n = messages | length * 10**6 %}{{ 7 ** n ** 2 }}",
    "{{ 'x' * (messages | length) * 10**10 }}",
    "{{ ('x\n' * 10**6) | indent(10**6) }}",
    "{{ range(99999) | batch(10**10, 'x') | list }}",
]


@pytest.mark.slow
@pytest.mark.parametrize("source", COSTS)
def test_templates_with_a_cost(limits, source):
    """One line that says which limit was passed; afterwards the next chat is rendered."""
    limits(silence=60.0, seconds=0.5, memory=1 << 28)
    good = ChatTemplate(CHATML, chatml())
    before = pid(good)
    with pytest.raises(DataError) as caught:
        ChatTemplate(source + CHATML, chatml()).encode(CHAT)
    shown = str(caught.value)
    assert shown.startswith("model.gguf: chat template ") and "\n" not in shown and len(shown) < 300
    reasons = ("more than 0.5 s of processor time", "more than 256 MiB of memory", "its text passes 10000")
    assert any(reason in shown for reason in reasons) or "OverflowError" in shown, shown
    assert good.parts(CHAT)[1] == ("Hello! <|im_end|>", True)
    assert not exists(before) or before == pid(good)


@pytest.mark.slow
def test_which_chat_of_the_data_passes_a_limit(tmp_path, limits):
    limits(silence=60.0, seconds=0.5, memory=1 << 28)
    words = ["a", "time", "b", "memory", "c", "length", "d", "e"]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"messages": chat(word)}) for word in words))
    tokenizer = chatml(chat_template=ASKED)
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer)
    reason = "model.gguf: chat template does not come to an end: it takes more than 0.5 s of processor time"
    assert str(caught.value).startswith(f"{path}:2: {reason}; mend the line, or skip")
    report = read_samples(path, tokenizer, skip_bad_lines=True).report
    assert (report.samples, report.bad_lines) == (5, 3)
    reasons = ["0.5 s of processor time", "256 MiB of memory", "its text passes 1000"]
    for line, reason, said in zip((2, 4, 6), reasons, report.bad, strict=False):
        assert said.startswith(f"line {line}: ") and reason in said


@pytest.mark.slow
def test_which_chat_of_a_batch_passes_a_limit(limits):
    limits(silence=60.0, seconds=0.5)
    made = ChatTemplate(ASKED, chatml())
    with pytest.raises(DataError, match="^chat 3 of 4: model.gguf: chat template does not come to an end: it takes"):
        made.encode_batch([chat("a"), chat("b"), chat("time"), chat("c")])
    found = list(made.split([(chat(word), None) for word in ("a", "time", "b", "memory", "c")]))
    assert [isinstance(one, DataError) for one in found] == [False, True, False, True, False]


@pytest.mark.slow
def test_a_template_that_passes_its_limits_again_and_again_is_given_up(tmp_path, limits):
    """Also where bad lines are skipped: each of them takes seconds."""
    limits(silence=60.0, seconds=0.2)
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"messages": chat(word)}) for word in ["a", *["time"] * 50]))
    with pytest.raises(DataError) as caught:
        read_samples(path, chatml(chat_template=ASKED), skip_bad_lines=True)
    shown = str(caught.value)
    assert shown.startswith(f"{path}:5: model.gguf: chat template does not come to an end: it takes more than 0.2 s")
    assert shown.endswith("for 4 of 5 chats; need another template (chat_template=, --chat-template)")


@pytest.mark.slow
def test_long_chats_have_more_time(limits):
    """As many renderings as there are turns of the assistant, of ever more messages."""
    made = ChatTemplate(QWEN3, chatml())
    limits(seconds=0.02, silence=1000.0, seconds_per_message=0.1)
    assert len(made.parts(CHAT * 60)) == 241
    limits(seconds=0.02, silence=1000.0, seconds_per_message=0.0)
    with pytest.raises(DataError, match="s of processor time"):
        made.parts(CHAT * 60)
    limits(seconds=0.02, silence=1000.0, seconds_per_message=0.1, most_seconds=0.03)
    with pytest.raises(DataError, match="s of processor time"):
        made.parts(CHAT * 60)


def test_a_limit_is_the_chat_s_own(limits):
    """What other chats have taken before it is not counted: neither their time nor what they have left in memory."""
    limits(silence=60.0, seconds=0.5, memory=1 << 28)
    made = ChatTemplate("{% for a in range(20000) %}{% endfor %}{{ messages | length }}", chatml())
    for _ in range(100):
        assert made.render(CHAT) == "4"
    leaves = "{{ ('x' * (2**26 + 2**20 * messages | length)) | length }}"  # in the same process, and freed
    made = ChatTemplate(leaves, chatml())
    assert {made.render([CHAT[0]] * n) for n in range(40)} == {str(2**26 + 2**20 * n) for n in range(40)}


def test_large_chats_in_both_directions():
    """More than a pipe holds, more than a request takes, more than a batch of answers."""
    made = ChatTemplate(CHATML, chatml())
    texts = ["\u00e9\U0001f600x\n" * 600_000, "y" * 5_000_000, "", "z" * 2_000_000] * 3
    chats = [([{"role": "user", "content": text}, CHAT[1]], None) for text in texts]
    for parts, text in zip(made.split(chats), texts, strict=True):
        assert text in parts[0][0] and parts[1] == ("Hello! <|im_end|>", True)


LONG = "{% set many = [0] * 9999 %}{{ ([many + [1]] * 10**6).count(many + [2]) }}"  # one instruction of Python


@pytest.mark.slow
@pytest.mark.parametrize("cost", [LOOPS, LONG])
def test_a_chat_that_ends_the_process_amid_others(limits, monkeypatch, cost):
    """It alone is at fault, and is not rendered again: every chat before it has been answered."""
    limits(seconds=0.4, silence=60.0)
    made = ChatTemplate("{% if messages[0].content == 'time' %}" + cost + "{% endif %}" + CHATML, chatml())
    words = [*"abcde", "time", *"fgh"]
    started = []
    start = template_process._Process.__init__
    monkeypatch.setattr(template_process._Process, "__init__", lambda self: (started.append(1), start(self))[1])
    for word, parts in zip(words, made.split([(chat(word), None) for word in words]), strict=True):
        if word == "time":
            assert "more than 0.4 s of processor time" in str(parts)
        else:
            assert f"{word}<|im_end|>" in parts[0][0], parts
    assert len(started) == 1


def test_many_answers_are_not_held_at_once():
    made = ChatTemplate("{{ 'x' * 9000000 }}{{ messages[0].content }}", chatml())
    chats = [made._asked([{"role": "user", "content": str(i)}], None, False) for i in range(8)]
    found = made._renderer.render(made._source, chats)
    assert 1 <= len(found) < 4
    assert [text[9_000_000:] for text, *_ in made._rendered(chats)] == [str(i) for i in range(8)]


@pytest.mark.parametrize(
    "text", ["\ud800", "\udfff\ud83d", "\ud83d\ude00", "\x00\x7f\x85\u2028\ufeff\uffff", "\U0001f600"]
)
def test_odd_characters_come_back_as_they_were(text):
    made = ChatTemplate("{{ messages[0].content }}{{ bos_token }} {{ tools[0] }}", chatml())
    shown = made.render([{"role": "user", "content": text}], tools=[text])
    assert shown == f"{text}<|endoftext|> {text}"
    assert len(ChatTemplate("{% set x = 1 %}" + text, chatml()).render(CHAT)) == len(text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "what JSON does not have .a set."),
        (b"x", "what JSON does not have .a bytes."),
        ({(1, 2): 3}, "a content that is an object"),
    ],
)
def test_values_that_json_has_not(value, message):
    made = ChatTemplate("{{ messages[0].content }}", chatml())
    with pytest.raises(DataError, match=message):
        made.render([{"role": "user", "content": value}])
    deep = {}
    deep["a"] = deep
    with pytest.raises(DataError, match="need texts, numbers, lists and dicts"):
        made.render([{"role": "user", "content": "x", "arguments": deep}])
    assert made.render([{"role": "user", "content": np.float32(0.5)}]) == "0.5"


def test_filters_need_no_file():
    """jinja2 imports some modules when a filter is first used; there no file can be opened."""
    uses = (
        "{{ 'a b c' | wordwrap(1) | length }}{{ lipsum(n=1) | length > 9 }}{{ {'a': [1]} | pprint }}"
        "{{ '<b>x</b>&amp;' | striptags }}{{ 'a&b' | escape | string }}{{ [2, 1] | sort | random > 0 }}"
        "{{ 'http://x.org' | urlize | length }}{{ 'a' | urlencode }}{{ 3.7 | round }}{{ 5000 | filesizeformat }}"
        "{{ ('a<b' | escape).unescape() }}{{ cycler(1, 2).next() }}{{ [{'a': 1}] | groupby('a') | length }}"
        "{{ strftime_now('%A %d %B %Y %H:%M %%') | length > 9 }}{{ 'x'.encode('latin-1') | length }}"
        "{{ 'Ä'.casefold() }}{{ {'a': 1} | xmlattr }}{{ 'x' | truncate(9) }}{{ '%s' | format(1.5) }}"
    )
    assert ChatTemplate(uses, chatml()).render(CHAT).startswith("5True{'a': [1]}")


# -- what it may do and what it sees -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_limits_of_the_process(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "do not tell")
    made = ChatTemplate(CHATML, chatml())
    number = pid(made)
    seen = Path(f"/proc/{number}/environ").read_bytes()
    assert b"SECRET" not in seen and b"PATH=" not in seen.replace(b"LD_LIBRARY_PATH=", b"")
    rows = Path(f"/proc/{number}/limits").read_text().splitlines()
    soft = {row[:26].strip(): row[26:].split()[:2] for row in rows}
    assert soft["Max open files"] == ["3", "3"] and soft["Max file size"] == ["0", "0"]
    assert soft["Max core file size"] == ["0", "0"] and soft["Max processes"] == ["0", "0"]
    assert all(2**30 < int(value) < 2**30 + 2**29 for value in soft["Max address space"])
    assert len(os.listdir(f"/proc/{number}/fd")) == 3
    assert os.readlink(f"/proc/{number}/cwd") == "/" and os.getsid(number) == number


def spoken(monkeypatch, limits, tmp_path, code):
    """What a process is answered with that greets as it should and then does this."""
    script = tmp_path / "spoken.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "def send(line):\n"
        "    os.write(1, line + b'\\n')\n"
        "def answer(line, *numbers):\n"
        "    send(b'[' + line + b',%s,%s]' % (numbers or (b'[]', b'[]')))\n"
        "receive = sys.stdin.buffer.readline\n"
        "send(b'[\"gradloom renders templates\"]')\n"
        f"receive(); answer(b'\"\"'); receive(); receive()\n{code}\n"
    )
    monkeypatch.setattr(template_process, "_SCRIPT", script)
    limits(seconds=0.1, length=1000)
    with pytest.raises(DataError) as caught:
        ChatTemplate(CHATML, chatml()).parts(CHAT)
    return str(caught.value).removeprefix("model.gguf: chat template ")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("while True: os.write(1, b'x' * 65536)", "fails: its process answers with more than 42"),
        ("os.write(1, b'[\"x\"')", "fails: its process ends with exit code 0"),
        ("send(b'')", "fails: its process answers with something other than a text"),
        ("send(b'x')", "fails: its process answers with something other than a text"),
        ("send(b'{\"x\": 1}')", "fails: its process answers with something other than a text"),
        ("send(b'[[\"x\",[],[]]]')", "fails: its process answers with something other than a text"),
        ("send(b'[' * 100_000)", "fails: its process answers with something other than a text"),
        ("send(b'[\"x\",[]]')", "fails: its process answers with something other than a text"),
        ("send(b'[\"x\",[],[]] ')", "fails: its process answers with something other than a text"),
        ("answer(b'\"x')", "fails: its process answers with something other than a text"),
        ("answer(b'\"x\"', b'[[]]', b'[]')", "fails: its process answers with something other than a text"),
        ("answer(b'\"x\"', b'[0.5,1]', b'[]')", "fails: its process answers with something other than a text"),
        ("answer(b'\"x\"', b'[-1,1]', b'[]')", "fails: its process answers with something other than a text"),
        (
            "answer(b'\"x\"', b'[0,' + b'9' * 5000 + b']', b'[]')",
            "fails: its process answers with something other than",
        ),
        ("answer(b'\"x\"', b'[0]', b'[]')", "fails: its process answers with cuts that are not in the text"),
        ("answer(b'\"x\"', b'[0,2]', b'[]')", "fails: its process answers with cuts that are not in the text"),
        ("answer(b'\"x\"', b'[1,0]', b'[]')", "fails: its process answers with cuts that are not in the text"),
        ("answer(b'\"x\"', b'[0,%d]' % 2**64, b'[]')", "fails: its process answers with cuts that are not in the text"),
        ("answer(b'\"x\"', b'[]', b'[1]')", "fails: its process answers with origins that are not in the text"),
        ("answer(b'\"xy\"', b'[]', b'[1,0]')", "fails: its process answers with origins that are not in the text"),
        ("answer(b'\"xy\"', b'[]', b'[1,1]')", "fails: its process answers with origins that are not in the text"),
        ("answer(b'\"\\xff\"')", "fails: its process answers with something other than a text"),
        ("send(b'null')", "fails: its process does not answer"),
        ("os.kill(os.getpid(), 9)", "fails: its process is ended by SIGKILL"),
        ("os._exit(7)", "fails: its process ends with exit code 7"),
        ("os.close(1); time.sleep(99)", "fails: its process closes the pipe"),
        ("time.sleep(99)", "does not come to an end: its process is silent for 1.2 s"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "does not come to an end: its process is silent for 1.2 s"),
        ("send(rb'[\"a\\nb\\u001b[0m\"]')", "a b"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_answers_that_cannot_be_trusted(monkeypatch, limits, tmp_path, code, message):
    shown = spoken(monkeypatch, limits, tmp_path, code)
    assert message in shown and "\n" not in shown
    gc.collect()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_where_no_process_can_be_started(monkeypatch, tmp_path):
    for executable in (None, ""):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(BackendError, match="sys.executable is empty; need the path of a Python interpreter"):
            ChatTemplate(CHATML, chatml())
    for executable, why in (
        (tmp_path / "none", "No such file"),
        ("/bin/false", "exit code 1"),
        ("/bin/echo", "it fails: its process answers"),
    ):
        monkeypatch.setattr(sys, "executable", str(executable))
        with pytest.raises(BackendError) as caught:
            ChatTemplate(CHATML, chatml())
        assert f"{executable} (sys.executable) does not start: " in str(caught.value) and why in str(caught.value)
        assert "\n" not in str(caught.value)


# -- its life ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_one_process_for_all_templates_until_the_last_is_gone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = ChatTemplate(CHATML, chatml()), ChatTemplate(MARKED, chatml())
        number = pid(one)
        for _ in range(3):
            assert one.parts(CHAT)[0] != two.parts(CHAT)[0] and pid(two) == number
        with pytest.raises(DataError, match="malformed: line 1"):
            ChatTemplate("{{", chatml())
        assert one.parts(CHAT) and pid(one) == number
        del one
        assert two.parts(CHAT) and alive(number)
        del two
        gc.collect()
    assert not exists(number)  # no zombie either


def test_copies_use_the_process_where_they_are():
    one = ChatTemplate(CHATML, chatml())
    moment = ChatTemplate("{{ strftime_now('%s%f') }}", chatml())
    for other in (copy.deepcopy(one), copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert other.parts(CHAT) == one.parts(CHAT) and pid(other) == pid(one)
    assert len({made.render(CHAT) for made in (moment, copy.deepcopy(moment), moment)}) == 1


def test_an_idle_process_that_somebody_kills():
    made = ChatTemplate(CHATML, chatml())
    os.kill(pid(made), signal.SIGKILL)
    assert ends(pid(made)) and made.parts(CHAT)


@pytest.mark.slow
def test_threads_take_turns():
    templates = [ChatTemplate(source, chatml()) for source in (CHATML, QWEN3, MARKED)]
    want = [[made.parts(CHAT[: 2 * n + 2]) for n in range(2)] for made in templates]
    wrong = []

    def work(seed):
        for k in range(40):
            i, n = (seed + k) % 3, k % 2
            if templates[i].parts(CHAT[: 2 * n + 2]) != want[i][n]:
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_signal_handler_in_the_midst_of_a_rendering():
    made = ChatTemplate(ASKED, chatml())
    seen = []

    def handler(*_):
        try:
            made.render(CHAT)
        except BackendError as error:
            seen.append(str(error))
            raise

    last = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(BackendError, match="signal handler that interrupts the rendering"):
            made.render(chat("time"))
    finally:
        signal.signal(signal.SIGUSR1, last)
    assert len(seen) == 1 and made.parts(CHAT)


@pytest.mark.slow
def test_forked_processes_have_their_own():
    made = ChatTemplate(CHATML, chatml())
    number, want = pid(made), made.parts(CHAT)
    into, out = os.pipe()
    child = os.fork()
    if not child:
        try:
            fine = made.parts(CHAT) == want and pid(made) != number
            os.write(out, b"%d" % pid(made) if fine else b"0")
            os.kill(pid(made), 0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    other = int(os.read(into, 100))
    os.close(into)
    os.close(out)
    assert other > 0 and made.parts(CHAT) == want and pid(made) == number
    assert ends(other)  # with the pipe of its parent, which has ended
    child = os.fork()  # one that lives on does not keep the process of its parent
    if not child:
        time.sleep(60)
        os._exit(0)
    del made
    gc.collect()
    assert not exists(number)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_fork_while_another_thread_renders():
    made = ChatTemplate(ASKED, chatml())
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(made.split([(chat("time"), None)])))
    thread.start()
    time.sleep(0.3)
    child = os.fork()
    if not child:
        os._exit(0 if made.parts(CHAT) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    assert "5 s of processor time" in str(seen[0])


PARENT = """
import os, sys, time, multiprocessing
from gradloom.llm.chat import ChatTemplate
from tests.llm.chats import CHAT, CHATML, chatml
from tests.llm.test_template_process import ASKED, chat

def work(made):
    return made.render(CHAT), made._renderer._process.popen.pid

if __name__ == "__main__":
    made = ChatTemplate(ASKED, chatml())
    print(made._renderer._process.popen.pid, flush=True)
    if sys.argv[1] == "busy":
        made.render(chat("time"))
    elif sys.argv[1] == "idle":
        time.sleep(60)
    elif sys.argv[1] in ("fork", "spawn"):
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            found = pool.map(work, [made] * 4)
        assert len({text for text, _ in found}) == 1
        assert made._renderer._process.popen.pid not in {number for _, number in found}
        assert made.render(CHAT) == found[0][0]
        print("fine", *{number for _, number in found})
"""


@pytest.fixture
def parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = processes.environment()
    return lambda how: processes.start([sys.executable, "-W", "error", script, how], env=environment)


@pytest.mark.parametrize("how", ["busy", "idle"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_it_ends_with_its_parent(parent, how, number):
    process = parent(how)
    worker = int(process.stdout.readline() or process.communicate()[1])
    time.sleep(0.3)
    began = time.monotonic()
    os.killpg(process.pid, number)  # as the terminal does it
    process.communicate(timeout=20)
    assert ends(worker, 4) and time.monotonic() - began < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_multiprocessing(parent, how):
    process = parent(how)
    out, err = process.communicate(timeout=120)
    worker, said = out.splitlines()
    assert said.startswith("fine") and process.returncode == 0 and "Warning" not in err, err
    assert ends(int(worker)) and all(ends(int(word)) for word in said.split()[1:])


def test_ctrl_c_in_a_program_that_goes_on(limits):
    limits(seconds=3.0)
    made = ChatTemplate(ASKED, chatml())
    number = pid(made)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        made.render(chat("time"))
    assert not exists(number) and made.parts(CHAT) and pid(made) != number


def test_memory_where_the_system_does_not_bound_it(tmp_path):
    """Then what is resident is looked at; here on a system that does not tell what a process holds."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import template_worker as w\n"
        "w._address_space = lambda: None\n"
        "w.main()\n"
    )
    folder = str(Path(template_process.__file__).parent)
    packages = [template_process._folder(name) for name in ("jinja2", "markupsafe")]
    source = (
        "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = ns.x + ['y' * 2**20 ~ a] %}{% endfor %}"
    )
    request = {"source": source, "now": "2026-01-01T00:00:00", "tokens": {}, "ends": [], "control": [], "seconds": 20}
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in (request, [(20, 100)], ([], None, False)))
    command = [sys.executable, "-I", "-S", "-c", code, folder, str(1 << 28), *packages]
    # By way of a shell: a child of this process would begin with this process' own peak of memory (Linux: exec).
    done = subprocess.run(["sh", "-c", '"$@"; exit $?', "sh", *command], input=lines, capture_output=True, timeout=60)
    assert done.returncode == template_process.NO_MEMORY, done.stderr
