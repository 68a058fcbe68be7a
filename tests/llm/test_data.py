"""Files as rows of tokens: what is read, what counts, what is cut and skipped, and that nothing is lost silently."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest

from gradloom.base.errors import DataError, FileError, SettingError
from gradloom.llm.data import read_samples, token_data
from gradloom.llm.packing import TokenData, pack
from gradloom.llm.samples import Samples
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.chats import CHAT, CHATML, SYSTEM
from tests.llm.small_tokenizers import byte_bpe, real, spm
from tests.real_data import need
from tests.refused import refused


def tokenizer(**keys):
    return Tokenizer(byte_bpe(["t h", "th e", "a n"], **keys), "model.gguf")


def jsonl(tmp_path, rows, name="d.jsonl"):
    path = tmp_path / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in rows))
    return path


def text(tmp_path, content, name="t.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def unpacked(data):
    """The samples that rows hold, as (tokens with the last label, counted), in a canonical order; checks the form."""
    assert isinstance(data, TokenData) and all(a.dtype == np.int32 for a in (data.tokens, data.positions, data.labels))
    assert data.tokens.shape == data.positions.shape == data.labels.shape == (data.report.rows, data.report.context)
    found = []
    for tokens, positions, labels in zip(data.tokens, data.positions, data.labels, strict=True):
        starts = [*np.flatnonzero(positions == 0), len(tokens)]
        for a, b in pairwise(starts):
            part, label = tokens[a:b], labels[a:b]
            assert positions[a:b].tolist() == list(range(b - a))
            if b - a == 1 and label[0] == -100:
                assert part[0] == 0  # padding
                continue
            known = label != -100
            assert (part[1:][known[:-1]] == label[:-1][known[:-1]]).all()
            last = label[-1] if known[-1] else None
            found.append((part.tolist(), known.tolist(), last))
    return sorted(found, key=str)


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 4, 7, 59])
def test_windows_of_a_text(tmp_path, context):
    tok = tokenizer(add_bos_token=True, add_eos_token=True)
    content = "the quick brown fox and the lazy dog\nand the end of the tale, anyhow."
    samples = read_samples(text(tmp_path, content), tok)
    ids = tok.encode(content)
    assert samples.stream and len(samples) == 1 and samples[0][0].tolist() == ids and ids[0] == tok.bos
    data = pack(samples, context)
    n = len(ids) - 1
    assert len(data) == -(-n // context) == data.report.rows
    assert data.tokens.ravel()[:n].tolist() == ids[:-1] and data.labels.ravel()[:n].tolist() == ids[1:]
    assert not data.tokens.ravel()[n:].any() and (data.labels.ravel()[n:] == -100).all()
    assert (data.positions.ravel()[:n] == np.arange(n) % context).all() and not data.positions.ravel()[n:].any()
    assert data.report.counted == n and data.report.padding == pytest.approx(1 - n / data.tokens.size)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_names_the_encoding(tmp_path, encoding):
    """As of tables; it takes precedence over encoding."""
    tok, story = tokenizer(), "hällo wörld " * 40
    plain, marked = read_samples(text(tmp_path, story), tok), text(tmp_path, story.encode(encoding))
    for given in (None, "cp1252"):
        assert (read_samples(marked, tok, encoding=given).tokens == plain.tokens).all()
    table = tmp_path / "t.csv"
    table.write_bytes(f"text,n\n{story},1\n".encode(encoding))
    assert (read_samples(table, tok).tokens == plain.tokens).all()
    cut = text(tmp_path, story.encode(encoding)[:-1])
    if encoding != "utf-8-sig":
        with pytest.raises(DataError, match=rf"t.txt: byte \d+ is not {encoding}-le \("):
            read_samples(cut, tok)


def test_texts_that_are_too_short_or_no_texts(tmp_path):
    tok = tokenizer()
    assert len(pack(read_samples(text(tmp_path, "12345"), tok), 4)) == 1
    with pytest.raises(DataError, match=r"t.txt: 5 tokens, shorter than the context of 5 .*a context of at most 4"):
        pack(read_samples(text(tmp_path, "12345"), tok), 5)
    with pytest.raises(DataError, match=r"t.txt: 1 token, nothing to predict"):
        pack(read_samples(text(tmp_path, "1"), tok), 5)
    with pytest.raises(DataError, match="t.txt: the file is empty"):
        read_samples(text(tmp_path, ""), tok)
    with pytest.raises(DataError, match=r"t.txt: byte 1048578 is not UTF-8 \(invalid start byte\)"):
        read_samples(text(tmp_path, b"a" * (2**20 + 2) + b"\xff"), tok)
    with pytest.raises(DataError, match=r"t.txt: byte 3 is not UTF-8 \(unexpected end of data\)"):
        read_samples(text(tmp_path, "abcé".encode()[:-1]), tok)
    with pytest.raises(FileError, match="none.txt: cannot be read: no such file"):
        read_samples(tmp_path / "none.txt", tok)
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(FileError, match="folder.txt: cannot be read: is a directory"):
        read_samples(tmp_path / "folder.txt", tok)
    with pytest.raises(DataError, match=r"the name ends in .xlsx; possible are .txt"):
        read_samples(text(tmp_path, "a", "t.xlsx"), tok)
    with refused("context", 0):
        pack(read_samples(text(tmp_path, "12345"), tok), 0)


def test_a_text_is_read_in_blocks(tmp_path, monkeypatch):
    """Characters on the border of blocks, the mark at the start of a file, control tokens by name."""
    monkeypatch.setattr("gradloom.llm.json_rows._READ", 5)
    tok = tokenizer()
    content = "aé漢🦙" * 20 + "<|endoftext|>the\r\n"
    ids = read_samples(text(tmp_path, b"\xef\xbb\xbf" + content.encode()), tok, special=True).tokens.tolist()
    assert ids == tok.encode(content) and tok.bos in ids
    ids = read_samples(text(tmp_path, content), tok).tokens.tolist()
    assert ids == tok.encode(content, special=False) and tok.bos not in ids


# -- lines -------------------------------------------------------------------------------------------------------------


def test_texts_by_line(tmp_path):
    tok = tokenizer(add_bos_token=True, add_eos_token=True)
    samples = read_samples(jsonl(tmp_path, [{"text": "the", "id": 3}, "", {"text": "and then", "x": {}}]), tok)
    assert [samples[i][0].tolist() for i in range(2)] == [tok.encode("the"), tok.encode("and then")]
    assert samples[-1][1].tolist() == [False] + [True] * (len(samples[1][0]) - 1)
    report = samples.report
    assert (report.kind, report.counts, report.unused) == ("texts (text)", "all tokens", ("id",))
    assert (report.samples, report.tokens, report.counted) == (2, samples.tokens.size, samples.tokens.size - 2)
    with pytest.raises(IndexError):
        samples[2]


def test_prompts_and_completions(tmp_path):
    tok = tokenizer(add_bos_token=True)
    rows = [
        {"prompt": "the", "completion": "an"},
        {"prompt": "the ", "completion": "x"},
        {"prompt": "", "completion": "y"},
    ]
    samples = read_samples(jsonl(tmp_path, rows), tok)
    one = [tok.bos, *tok.encode("the", bos=False), *tok.encode("\nan", bos=False), tok.eos]
    assert samples[0][0].tolist() == one and samples[0][1].tolist() == [False, False, True, True, True]
    assert tok.decode(samples[1][0], skip_special=True) == "the x" and samples[1][1].sum() == 2
    assert tok.decode(samples[2][0], skip_special=True) == "y"
    assert samples.report.kind == "prompts and completions (prompt, completion)"
    everything = read_samples(jsonl(tmp_path, rows), tok, train_on_all=True, separator=" = ")
    assert everything[0][1].tolist()[1:] == [True] * (len(everything[0][0]) - 1) and not everything[0][1][0]
    assert tok.decode(everything[0][0], skip_special=True) == "the = an"


def test_other_keys(tmp_path):
    tok = tokenizer()
    rows = [
        {"instruction": "Do it", "input": "", "output": "ok", "n": 1},
        {"instruction": "Add", "input": "1 2", "output": "3"},
        {"instruction": "None", "output": "4"},
    ]
    given = {"prompt_key": "instruction, input", "completion_key": "output"}
    samples = read_samples(jsonl(tmp_path, rows), tok, **given)
    texts = [tok.decode(samples[i][0], skip_special=True) for i in range(3)]
    assert texts == ["Do it\nok", "Add\n1 2\n3", "None\n4"] and samples.report.unused == ("n",)
    path = jsonl(tmp_path, [{"question": "a", "answer": "b"}])
    with pytest.raises(
        DataError, match=r"d.jsonl:1: the keys are question, answer; need messages, or prompt with comp"
    ):
        read_samples(path, tok)
    assert len(read_samples(path, tok, prompt_key=["question"], completion_key="answer")) == 1


def test_chats(tmp_path):
    tok = tokenizer(chat_template=CHATML)
    path = jsonl(tmp_path, [{"messages": CHAT}, {"messages": [SYSTEM, *CHAT[:2]], "tools": None}])
    samples = read_samples(path, tok)
    assert samples.report.kind == "chats (messages)" and samples.report.counts == "the assistant's turns"
    learned = [tok.decode(samples[i][0][samples[i][1]]) for i in range(2)]
    assert learned == ["Hello! <|im_end|>It is 4.<|im_end|>", "Hello! <|im_end|>"]
    assert tok.decode(samples[1][0]).endswith("Hello! <|im_end|>")  # what follows teaches nothing
    whole = read_samples(path, tok, train_on_all=True)
    assert whole[0][1].sum() == len(whole[0][0]) - 1 and len(whole[0][0]) == len(samples[0][0]) + 1
    pair = jsonl(tmp_path, [{"prompt": "Hi", "completion": "Hello! "}])
    assert read_samples(pair, tok, as_chat=True).report.kind.endswith("(prompt, completion), as chats")
    as_chat = read_samples(pair, tok, as_chat=True)
    same = read_samples(jsonl(tmp_path, [{"messages": CHAT[:2]}]), tok)
    assert (as_chat.tokens == same.tokens).all() and (as_chat.counted == same.counted).all()
    with pytest.raises(DataError, match="has no chat template"):
        read_samples(path, tokenizer())
    other = read_samples(jsonl(tmp_path, [{"messages": CHAT}]), tokenizer(), chat_template="{{ messages[1].content }}")
    assert tok.decode(other.tokens).startswith("Hello! ")


BAD = [
    ('{"text": "a"', "not JSON: Expecting ',' delimiter at character 12"),
    ("[1]", "a JSON list; need a line for each sample, an object with keys"),
    ("null", "a JSON null"),
    ('{"txt": "a"}', "the keys are txt; need text, as in line 1"),
    ('{"text": 3}', "text is a number; need a text"),
    ('{"text": {"a": 1}}', "text is a JSON object"),
    ('{"text": "\\ud800"}', "text holds U+D800, half of a pair"),
    ("[" * 100_000, "holds lists or objects in more layers"),
    ('{"text": "a", "n": ' + "1" * 5000 + "}", "holds a whole number of thousands of digits"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=range(len(BAD)))
def test_bad_lines(tmp_path, line, message):
    path = jsonl(tmp_path, [{"text": "good"}, line, {"text": "too"}])
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer())
    assert f"d.jsonl:2: {message}" in str(caught.value) and "\n" not in str(caught.value)
    assert "skip_bad_lines" in str(caught.value) and len(str(caught.value)) < 400
    samples = read_samples(path, tokenizer(), skip_bad_lines=True)
    assert (len(samples), samples.report.bad_lines) == (2, 1)
    assert f"skipped: 1 bad line (line 2: {message}" in str(samples.report)


def test_bad_bytes_and_a_bad_first_line(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xff\n\n{"text": "a\xff"}\n\xef\xbb\xbf{"text": "x"}\r\n{"text": "good"}\r\n\n')
    with pytest.raises(DataError, match=r"d.jsonl:1: byte 0 of the line is not UTF-8"):
        read_samples(path, tokenizer())
    samples = read_samples(path, tokenizer(), skip_bad_lines=True)
    assert len(samples) == 1 and samples.report.bad_lines == 3
    path.write_bytes(b'\xef\xbb\xbf{"text": "marked"}')
    assert len(read_samples(path, tokenizer())) == 1


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (CHAT[:1], "the chat of 1 messages has no assistant turn"),
        ("x", "messages is str; need a list"),
        ([{"role": 3}], "message 1 of 1 has no role"),
        ([CHAT[0], {"role": "assistant", "content": "\ud800"}], "half of a pair"),
        ([{"role": "user", "content": None}, CHAT[1]], "message 1 of 2 has no content; need a text"),
        ([{"role": "user", "content": {}}, CHAT[1]], "message 1 of 2 has a content that is an object"),
    ],
)
def test_bad_chats(tmp_path, messages, message):
    tok = tokenizer(chat_template=CHATML)
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"messages": m}) for m in (CHAT, messages)))
    with pytest.raises(DataError) as caught:
        read_samples(path, tok)
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value)
    assert len(read_samples(path, tok, skip_bad_lines=True)) == 1


def test_bad_lines_and_bad_chats_in_their_order(tmp_path):
    """Chats are rendered many at a time; what is reported is the first line that is wrong, whatever it is."""
    tok = tokenizer(chat_template="{{ raise_exception('no') if messages[0].content == 'bad' }}" + CHATML)
    bad = {"messages": [{"role": "user", "content": "bad"}, CHAT[1]]}
    half = json.dumps({"messages": [{"role": "user", "content": "\ud800"}, CHAT[1]]})
    good = {"messages": CHAT}
    reasons = ["template refuses the chat: no", "not JSON", "half of a pair", "no assistant turn", "template refuses"]
    rows = [bad, "{", half, {"messages": CHAT[:1]}, bad]
    for first in range(len(rows)):
        path = jsonl(tmp_path, [good, *rows[first:], good])
        with pytest.raises(DataError, match=f"d.jsonl:2: .*{reasons[first]}"):
            read_samples(path, tok)
    report = read_samples(jsonl(tmp_path, [good, *rows, good] * 200), tok, skip_bad_lines=True).report
    assert report.bad_lines == 1000
    for line, reason, said in zip((2, 3, 4), reasons, report.bad, strict=False):
        assert said.startswith(f"line {line}: ") and reason in said


def test_samples_of_large_texts_are_tokenised_in_parts(tmp_path, monkeypatch):
    """The same samples however much text is held at once."""
    path = jsonl(tmp_path, [{"messages": chat} for chat in (CHAT, CHAT[:2], CHAT[2:]) * 5])
    tok = tokenizer(chat_template=CHATML)
    whole = read_samples(path, tok)
    monkeypatch.setattr("gradloom.llm.jsonl._TEXT_HELD", 100)
    parts = read_samples(path, tok)
    assert (whole.tokens == parts.tokens).all() and (whole.counted == parts.counted).all() and len(parts) == 15


def test_files_without_a_sample(tmp_path):
    with pytest.raises(
        DataError, match=r"d.jsonl: 2 lines, no sample to train on; skipped: 1 bad line \(line 2: a JSON list"
    ):
        read_samples(jsonl(tmp_path, ["", "[]"]), tokenizer(), skip_bad_lines=True)
    with pytest.raises(DataError, match="skipped: 2 samples, too short: nothing to predict"):
        read_samples(jsonl(tmp_path, [{"text": ""}, {"text": "1"}]), tokenizer())
    with pytest.raises(DataError, match="d.jsonl: the file is empty"):
        read_samples(text(tmp_path, "", "d.jsonl"), tokenizer())
    with pytest.raises(DataError, match="0 lines, no sample"):
        read_samples(text(tmp_path, "\n \n", "d.jsonl"), tokenizer())


def test_a_text_that_the_vocabulary_cannot_write(tmp_path):
    tok = Tokenizer(
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["\u2581", "a", "b"]}
        | {"tokenizer.ggml.add_bos_token": False}
    )
    tok.bpe.unk = None
    path = jsonl(tmp_path, [{"text": "ab"}, {"text": "ac"}, {"text": "ba"}])
    with pytest.raises(DataError, match=r"d.jsonl:2: 'c' is not in the vocabulary, which has neither the byte <0x63>"):
        read_samples(path, tok)
    assert len(read_samples(path, tok, skip_bad_lines=True)) == 2


# -- packing -----------------------------------------------------------------------------------------------------------


def made(sizes, counted=None, seed=0):
    """Samples of these lengths; by default each token but the first counts."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = rng.integers(1, 1000, starts[-1]).astype(np.int32)
    flags = np.ones(starts[-1], bool) if counted is None else np.concatenate(counted).astype(bool)
    flags[starts[:-1]] = False
    from gradloom.llm.samples import Report

    return Samples(tokens, flags, starts, Report("made", "made"))


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_packing_loses_nothing(seed, packing):
    rng = np.random.default_rng(seed)
    context = int(rng.integers(3, 40))
    sizes = rng.integers(2, context + 2, 60)
    samples = made(sizes, [rng.random(n) < 0.5 for n in sizes], seed)
    for i in range(len(samples)):
        samples.counted[samples.starts[i + 1] - 1] = True  # as read: it ends with a token that counts
    data = pack(samples, context, packing)
    want = sorted(
        ((t[:-1].tolist(), c[1:].tolist(), int(t[-1])) for t, c in (samples[i] for i in range(len(samples)))),
        key=str,
    )
    assert unpacked(data) == want
    places = int((sizes - 1).sum())
    assert data.report.padding == pytest.approx(1 - places / data.tokens.size) and not data.report.cut
    assert data.report.counted == int(samples.counted.sum()) == int((data.labels != -100).sum())
    if packing:
        again = pack(samples, context)
        assert (again.tokens == data.tokens).all() and len(data) <= 1.35 * -(-places // context) + 1
    else:
        assert len(data) == 60


def test_packing_is_tight():
    rng = np.random.default_rng(0)
    samples = made(rng.integers(2, 300, 5000))
    assert pack(samples, 512).report.padding < 0.005
    assert len(pack(made([5, 3, 3, 2, 2]), 4)) == 3  # 4; 2 + 2; 1 + 1


def test_long_samples_are_cut_and_those_without_a_label_skipped():
    samples = made([10, 10, 4], [[0] * 5 + [1] * 5, [0] * 9 + [1], [1] * 4])
    data = pack(samples, 6)
    report = data.report
    assert (report.cut, report.cut_tokens, report.samples) == (1, 3, 2)
    assert report.skipped == {"no token that counts within the context": 1} and report.rows == 2
    assert "cut to the context: 1 sample; 3 tokens left out of them" in str(report)
    assert "skipped: 1 sample, no token that counts within the context" in str(report)
    assert unpacked(data) == sorted(
        [
            (samples[0][0][:6].tolist(), [False] * 4 + [True] * 2, int(samples[0][0][6])),
            (samples[2][0][:3].tolist(), [True] * 3, int(samples[2][0][3])),
        ],
        key=str,
    )
    assert samples.report.skipped == {}  # another context, another report
    with pytest.raises(DataError, match="no sample has a token to learn within 2 tokens"):
        pack(made([9, 9], [[0] * 8 + [1]] * 2), 2)


def test_validation_samples_are_never_trained_on(tmp_path):
    tok = tokenizer()
    path = jsonl(tmp_path, [{"text": f"sample {i} " + "x" * (i % 7)} for i in range(100)] + ["[]"])
    train, val = token_data(path, tok, 32, val_split=0.2, seed=3, skip_bad_lines=True)
    texts = [{tok.decode(t) for t, _, _ in unpacked(d)} for d in (train, val)]
    assert (train.report.samples, val.report.samples) == (80, 20) and not texts[0] & texts[1]
    assert (train.report.bad_lines, val.report.bad_lines) == (1, 0)
    parts = read_samples(path, tok, skip_bad_lines=True).split(0.2, 3)
    whole = [tok.decode(part[i][0]) for part in parts for i in range(len(part))]
    assert len(parts[0]) == 80 and sorted(whole) == sorted(f"sample {i} " + "x" * (i % 7) for i in range(100))
    again = token_data(path, tok, 32, val_split=0.2, seed=3, skip_bad_lines=True)[1]
    other = token_data(path, tok, 32, val_split=0.2, seed=4, skip_bad_lines=True)[1]
    assert (again.tokens == val.tokens).all() and not np.array_equal(other.tokens, val.tokens)
    assert token_data(path, tok, 32, skip_bad_lines=True)[1] is None
    book = text(tmp_path, "the quick brown fox " * 20)
    train, val = token_data(book, tok, 16, val_split=0.25, seed=1)
    whole = pack(read_samples(book, tok), 16)
    assert len(train) + len(val) == len(whole) and train.report.counted + val.report.counted == whole.report.counted
    assert sorted(np.concatenate([train.labels, val.labels]).tolist()) == sorted(whole.labels.tolist())
    with pytest.raises(DataError, match="one long text is not a set of samples"):
        read_samples(book, tok).split(0.5)
    with pytest.raises(SettingError, match="val_split=1.5"):
        token_data(path, tok, 32, val_split=1.5, skip_bad_lines=True)


def test_the_report_is_told_in_a_few_lines_and_as_json(tmp_path):
    tok = tokenizer()
    rows = [{"text": "the end", "n": 1}, "x", {"text": "a"}, {"text": "y" * 99}]
    report = pack(read_samples(jsonl(tmp_path, rows), tok, skip_bad_lines=True), 8).report
    path = tmp_path / "d.jsonl"
    assert str(report).split("\n") == [
        f"{path}: texts (text); 2 samples, 14 tokens, 12 to learn (all tokens)",
        "2 rows of 8 tokens, 25.0% padding",
        "keys not read: n",
        "cut to the context: 1 sample; 90 tokens left out of them",
        "skipped: 1 bad line (line 2: not JSON: Expecting value at character 0)",
        "skipped: 1 sample, too short: nothing to predict",
    ]
    assert json.loads(json.dumps(report.as_dict()))["cut_tokens"] == 90


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gsm8k(tmp_path):
    tok, path = real("qwen2"), need("instruct/gsm8k-train.jsonl")
    samples = read_samples(path, tok, prompt_key="question", completion_key="answer")
    assert len(samples) == 7473 and samples.report.unused == ()
    row = json.loads(path.open().readline())
    assert tok.decode(samples[0][0], skip_special=True) == row["question"] + "\n" + row["answer"]
    assert tok.decode(samples[0][0][samples[0][1]]) == "\n" + row["answer"] + "<|endoftext|>"
    data = pack(samples, 512)
    assert data.report.padding < 0.03 and data.report.cut == 2 and not data.report.skipped
    assert data.report.counted == int((data.labels != -100).sum())
    places = int(np.minimum(np.diff(samples.starts) - 1, 512).sum())
    assert int((data.positions == 0).sum()) == 7473 + data.tokens.size - places
    some = text(tmp_path, "".join(path.read_text().splitlines(True)[:200]), "some.jsonl")
    chats = read_samples(some, tok, prompt_key="question", completion_key="answer", as_chat=True)
    assert tok.decode(chats[0][0][chats[0][1]]) == row["answer"] + "<|im_end|>"


@pytest.mark.slow
def test_alpaca_libre_has_14_bad_lines():
    tok, path = real("llama-spm"), need("instruct/alpaca_libre_tasks_v2.jsonl")
    given = {"prompt_key": "instruction,input", "completion_key": "output"}
    with pytest.raises(DataError, match=r"alpaca_libre_tasks_v2.jsonl:\d+: not JSON: "):
        read_samples(path, tok, **given)
    samples = read_samples(path, tok, skip_bad_lines=True, **given)
    lines = sum(1 for line in path.open() if line.strip())
    assert samples.report.bad_lines == 14 and len(samples) + sum(samples.report.skipped.values()) == lines - 14
    assert samples[0][0][0] == tok.bos and samples[0][0][-1] == tok.eos


@pytest.mark.slow
def test_tinyshakespeare():
    tok, path = real("llama-spm"), need("text/tinyshakespeare.txt")
    data = pack(read_samples(path, tok), 256)
    ids = tok.encode(path.read_text())
    assert data.labels.ravel()[: len(ids) - 1].tolist() == ids[1:] and data.report.counted == len(ids) - 1


@pytest.mark.slow
def test_a_hundred_megabytes_would_do(tmp_path):
    """Memory while a text is tokenised: a few blocks beside its tokens."""
    import tracemalloc

    tok = Tokenizer(spm(["\u2581", "a", "\u2581a"]))
    path = text(tmp_path, "a " * 1_000_000)
    tracemalloc.start()
    samples = read_samples(path, tok)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert samples.tokens.size > 1_000_000
    assert peak < 3 * samples.tokens.nbytes + 50 * 2**20, peak / samples.tokens.nbytes


REPORT = """\
alpaca_libre_tasks_v2.jsonl: prompts and completions (instruction, input, output); 2,206 samples, 97,029 tokens, 56,130 to learn (completions)
1,519 rows of 64 tokens, 2.5% padding
keys not read: status, other
cut to the context: 622 samples; 22,525 tokens left out of them
skipped: 14 bad lines (line 2279: not JSON: Expecting ',' delimiter at character 96; line 2281: not JSON: Expecting ',' delimiter at character 100; line 2282: not JSON: Expecting ',' delimiter at character 82; ...)
skipped: 74 samples, no token that counts within the context"""  # noqa: E501


@pytest.mark.slow
def test_a_report_of_real_data(monkeypatch):
    path = need("instruct/alpaca_libre_tasks_v2.jsonl")
    monkeypatch.chdir(path.parent)
    given = {"prompt_key": "instruction,input", "completion_key": "output"}
    assert str(pack(read_samples(path.name, real("qwen2"), skip_bad_lines=True, **given), 64).report) == REPORT
    with pytest.raises(DataError, match=rf"^{path.name}:2279: not JSON: .* skip such lines \(skip_bad_lines=True"):
        read_samples(path.name, real("qwen2"), **given)


# -- options that were given are heeded, or refused -------------------------------------------------------------------

CHATS = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c"}]}
PAIRS, TEXTS = {"prompt": "a b", "completion": "c d"}, {"text": "once upon a time"}


def _kind_of(tmp_path, row, **options):
    path = jsonl(tmp_path, [row])
    return read_samples(path, tokenizer(chat_template=CHATML), **options).report.kind.split(" ")[0]


def test_a_key_that_is_given_decides_what_lines_are(tmp_path):
    row = CHATS | PAIRS | TEXTS
    assert _kind_of(tmp_path, row) == "chats"
    for options, kind in (
        ({"text_key": "text"}, "texts"), ({"prompt_key": "prompt"}, "prompts"), ({"messages_key": "messages"}, "chats"),
        ({"completion_key": "completion"}, "prompts"), ({"as_chat": True}, "prompts"), ({"separator": " "}, "prompts"),
    ):  # fmt: skip
        assert _kind_of(tmp_path, row, **options) == kind, options


@pytest.mark.parametrize("option", ["text_key", "prompt_key", "completion_key", "messages_key", "separator", "as_chat"])
@pytest.mark.parametrize("row", [CHATS, PAIRS, TEXTS, None], ids=["chats", "pairs", "texts", "text"])
def test_options_of_other_data_are_refused(tmp_path, row, option):
    values = {"separator": " ", "as_chat": True}
    value = values.get(option, option.removesuffix("_key"))
    mine = {"messages_key": [CHATS], "text_key": [TEXTS]}.get(option, [PAIRS])
    if row in mine:
        _kind_of(tmp_path, row, **{option: value})
        return
    with pytest.raises(DataError, match=rf"^.*d\.\w+(:1)?: is .*; {option} requires "):
        if row is None:
            (tmp_path / "d.txt").write_text("once upon a time")
            read_samples(tmp_path / "d.txt", tokenizer(), **{option: value})
        else:
            _kind_of(tmp_path, row, **{option: value})


def test_more_options_of_other_data(tmp_path):
    (tmp_path / "d.txt").write_text("once upon a time")
    for options, message in (
        ({"skip_bad_lines": True}, "is one text; skip_bad_lines requires a .jsonl"),
        ({"train_on_all": False}, "is one text; train_on_all=False requires completions or chats"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            read_samples(tmp_path / "d.txt", tokenizer(), **options)
    assert read_samples(tmp_path / "d.txt", tokenizer(), train_on_all=True, special=False).report.kind
    for row, options, message in (
        (TEXTS, {"train_on_all": False}, "is a text; train_on_all=False requires"),
        (PAIRS, {"as_chat": True, "separator": " "}, "is a prompt and its completion; separator requires prompts and"),
        (PAIRS, {"text_key": "text", "prompt_key": "prompt"}, "text_key requires a .jsonl of texts"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            _kind_of(tmp_path, row, **options)
    stream = read_samples(tmp_path / "d.txt", tokenizer())
    with pytest.raises(SettingError, match="^pack: packing=False with one long text"):
        pack(stream, 2, packing=False)
