"""Tokenizers from metadata: llama.cpp's own vectors, what its algorithms say in corners, the way back to text."""

import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from gradloom.base.errors import DataError, FileError, SettingError
from gradloom.llm.bpe import SPACE
from gradloom.llm.pretokenizers import PRE_TOKENIZERS
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.small_tokenizers import byte_bpe, metadata, real, spm
from tests.real_data import need

VOCABULARIES = ("llama-spm", "llama-bpe", "gpt-2", "qwen2")


def vectors(name):
    path = need(f"gguf/vocab/ggml-vocab-{name}.gguf.inp")
    texts = path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = path.with_suffix(".out").read_text().split("\n")
    return [(t, [int(i) for i in line.split()]) for t, line in zip(texts, lines, strict=False)]


@pytest.mark.parametrize("make", [lambda: byte_bpe(["H i", "i t"]), lambda: spm(["it"])], ids=["bpe", "spm"])
def test_a_batch_keeps_the_order_of_short_and_long_texts(monkeypatch, make):
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 16)
    tokenizer = Tokenizer(make(), "m.gguf")
    texts = ["Hi", "Hit it " * 20, "it", "", "Hit" * 30, "tit"]  # one that cannot be cut
    batch = tokenizer.encode_batch(texts, special=False, bos=False)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text, special=False, bos=False) for text in texts]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_vectors(name):
    tokenizer, cases = real(name), vectors(name)
    assert len(cases) >= 46 and sum(len(ids) for _, ids in cases) > 300
    for text, ids in cases:
        assert tokenizer.encode(text, special=False, bos=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text
    batch = tokenizer.encode_batch([t for t, _ in cases], special=False, bos=False)
    assert [b.tolist() for b in batch] == [ids for _, ids in cases] and all(b.dtype == np.int32 for b in batch)


def test_a_vocabulary_of_costly_merges(monkeypatch):
    whole = real("llama-spm")
    monkeypatch.setattr("gradloom.llm.bpe._MOST_MERGES", 1 << 10)
    by_score = real.__wrapped__("llama-spm")
    for text, _ in vectors("llama-spm"):
        assert by_score.encode(text) == whole.encode(text), repr(text)
    monkeypatch.undo()
    tokenizer = Tokenizer(spm(["a" * n for n in range(1, 4001)]))  # 21 GB of merges
    assert tokenizer.decode(tokenizer.encode("a" * 9000, bos=False)).endswith("a" * 9000)


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_book_comes_back_and_streams_the_same(name):
    tokenizer = real(name)
    text = need("text/tinyshakespeare.txt").read_text()[:200_000] + "\n\n  \t end  "
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=True) == text
    rng = random.Random(0)
    blocks, at = [], 0
    while at < len(text):
        size = rng.choice((1, 7, 100, 30_000))
        blocks.append(text[at : at + size])
        at += size
    assert np.concatenate(list(tokenizer.encode_stream(blocks))).tolist() == ids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_a_stream_is_cut_where_no_token_changes(kind, monkeypatch):
    """With blocks of 64 characters every kind of place is a candidate for a cut."""
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 64)
    rng = random.Random(1)
    names = ["llama-spm"] if kind == "spm" else ["llama-bpe", "gpt-2", "qwen2"]
    text = need("text/tinyshakespeare.txt").read_text()
    bits = ["\n", "\n\n", " ", "  ", ".", "a b", "x1 22", "it's", "\t", "=", "é", "漢字 ", " 漢", "/", "_"]
    for name in names:
        tokenizer = real(name)
        monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 1 << 16)
        samples = [text[k : k + 500] for k in range(0, 20_000, 997)]
        samples += ["".join(rng.choice([*bits, "word", " word"]) for _ in range(200)) for _ in range(40)]
        whole = [tokenizer.encode(s, special=False, bos=False) for s in samples]
        monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 64)
        monkeypatch.setattr("gradloom.llm.bpe.GROUP", 64)
        for sample, ids in zip(samples, whole, strict=True):
            parts = list(tokenizer.encode_stream([sample[:9], sample[9:]], bos=False))
            assert np.concatenate(parts).tolist() == ids, (name, sample)
            assert tokenizer.encode(sample, special=False, bos=False) == ids


def merge_by_score(text, pieces, scores):
    """llama.cpp's SentencePiece at its plainest: join the best pair, of equals the leftmost, until none is left."""
    parts = list(text)
    while True:
        found = [(-scores[pieces.index(a + b)], k) for k, (a, b) in enumerate(pairwise(parts)) if a + b in pieces]
        if not found:
            return parts
        k = min(found)[1]
        parts[k : k + 2] = [parts[k] + parts[k + 1]]


@pytest.mark.parametrize("tied", [False, True], ids=["distinct scores", "tied scores"])
@pytest.mark.parametrize("seed", range(4))
def test_spm_merges_by_score(seed, tied):
    """Small random vocabularies against the plainest algorithm; with tied scores the leftmost pair comes first."""
    rng = random.Random(seed)
    letters = "abc" + SPACE
    words = list(dict.fromkeys(list(letters) + ["".join(rng.choices(letters, k=rng.randint(2, 4))) for _ in range(40)]))
    scores = [float(-rng.randrange(3)) if tied else -float(i) for i in range(len(words))]
    rng.shuffle(scores)
    tokenizer = Tokenizer(spm(words, scores=scores, add_space_prefix=False))
    for _ in range(300):
        text = "".join(rng.choices("abc ", k=rng.randint(1, 12)))
        got = [tokenizer.pieces[i] for i in tokenizer.encode(text, bos=False)]
        assert got == merge_by_score(text.replace(" ", SPACE), words, scores), text


def test_runs_of_spaces_are_tied_in_llama():
    """All runs of spaces score -1e9 there: they grow from the left."""
    tokenizer = real("llama-spm")
    runs = {len(p): i for i, p in enumerate(tokenizer.pieces) if p and not p.strip(SPACE)}
    for n in range(1, 60):
        ids = tokenizer.encode(" " * n, bos=False)
        want = [runs[16]] * ((n + 1) // 16) + ([runs[(n + 1) % 16]] if (n + 1) % 16 else [])
        assert ids == want


def test_spm_bytes_unknowns_and_parts_that_are_no_tokens():
    words = [SPACE, "a", "b", "ab", "xy"]  # "xy" is a piece, "x" and "y" are not
    tokenizer = Tokenizer(spm(words))
    one = tokenizer.token_id
    assert tokenizer.encode("ab", bos=False) == [one(SPACE), one("ab")]
    assert tokenizer.encode("xyx", bos=False) == [one(SPACE), one("xy"), one("<0x78>")]
    assert tokenizer.encode("é", bos=False) == [one(SPACE), one("<0xC3>"), one("<0xA9>")]
    assert tokenizer.decode(tokenizer.encode("xyxé ab", bos=False)) == "xyxé ab"
    no_bytes = Tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", SPACE, "a"],
            "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
        }
    )
    assert no_bytes.encode("aza", bos=False) == [3, 4, 0, 4]
    nothing = Tokenizer(
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [SPACE, "a"], "tokenizer.ggml.unknown_token_id": 9}
    )
    assert nothing.unk == 0  # llama.cpp's default


def test_special_tokens():
    tokenizer = real("llama-spm")
    assert tokenizer.encode("<s>Hello</s> you") == [
        1,
        1,
        15043,
        2,
        29871,
        366,
    ]  # a space is put behind each special one
    assert 2 not in tokenizer.encode("<s>Hello</s>", special=False)
    assert tokenizer.decode([1, 15043, 2, 366]) == "<s>Hello</s>you"
    assert tokenizer.decode([1, 15043, 2], skip_special=True) == "Hello"
    assert tokenizer.decode([15043], continued=True) == " Hello"
    assert tokenizer.encode("") == [1] and tokenizer.encode("", bos=False) == []

    qwen = real("qwen2")
    start, end = qwen.token_id("<|im_start|>"), qwen.token_id("<|im_end|>")
    ids = qwen.encode("<|im_start|>user\nHi<|im_end|>")
    assert (ids[0], ids[-1]) == (start, end) and len(ids) == 5
    assert qwen.decode(ids) == "<|im_start|>user\nHi<|im_end|>" and qwen.decode(ids, skip_special=True) == "user\nHi"
    assert start not in qwen.encode("<|im_start|>user", special=False)
    assert qwen.eot == end and end in qwen.end_ids and qwen.eos in qwen.end_ids and not qwen.add_bos
    llama = real("llama-bpe")
    assert llama.add_bos and llama.encode("Hi")[0] == llama.bos == 128000 and llama.eot == 128009


def test_the_longest_special_token_wins_everywhere():
    """As in llama.cpp: the longer name is taken first, also where a shorter one begins further left."""
    tokenizer = Tokenizer(byte_bpe(control=("<a>", "<a><b", "<b>", "yx<a")))
    name = tokenizer.pieces.__getitem__
    assert [name(i) for i in tokenizer.encode("<a><b>")] == ["<a><b", ">"]
    assert [name(i) for i in tokenizer.encode("yx<a>yx<a><b")] == ["yx<a", ">", "y", "x", "<a><b"]
    with_defined = byte_bpe(control=("<d>", "<c>"), token_type=[1] * 256 + [4, 3])
    tokenizer = Tokenizer(with_defined)
    assert tokenizer.encode("<d><c>", special=False)[0] == 256 and tokenizer.encode("<c>", special=False) != [257]
    assert tokenizer.encode("<d><c>", special=True) == [256, 257]


def test_around_a_text():
    tokenizer = Tokenizer(spm([SPACE, "a"], add_eos_token=True, add_bos_token=False))
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, True)
    assert tokenizer.encode("a")[-1] == 2 and tokenizer.encode("a", bos=True, eos=False)[0] == 1
    none = Tokenizer(byte_bpe(bos_token_id=2**32 - 1, padding_token_id=2**32 - 1))
    assert none.pad is None and none.bos == 11  # llama.cpp's default
    tiny = Tokenizer(
        {**spm(), "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1]} | {"tokenizer.ggml.scores": [0]}
    )
    assert tiny.bos is None and tiny.encode("a") != []
    with pytest.raises(SettingError, match="bos=True: this tokenizer has no bos token"):
        tiny.encode("a", bos=True)


def test_streaming_never_shows_half_a_character():
    for tokenizer in (real("gpt-2"), real("llama-spm")):
        text = "Ünïcödé 🦙🦙 漢字 — ok"
        stream = tokenizer.stream()
        shown = [stream.push(i) for i in tokenizer.encode(text, bos=False)]
        assert "".join(shown) == text and stream.finish() == "" and "" in shown
        assert not any("\ufffd" in s for s in shown)
    tokenizer = Tokenizer(spm([SPACE]))
    stream = tokenizer.stream()
    first, second = (tokenizer.token_id(f"<0x{b:02X}>") for b in "é".encode())
    assert (stream.push(first), stream.push(second), stream.push(first), stream.finish()) == ("", "é", "", "\ufffd")
    assert stream.push(first) + stream.push(1) == "\ufffd"  # a special token ends what was begun


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "m.gguf: tokenizer.ggml.model is 'bert'; need 'llama'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.pre": "kimi-k2"}, "tokenizer.ggml.pre is 'kimi-k2', which is not supported"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens is missing or empty"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries; need 259"),
        ({"tokenizer.ggml.token_type": "x" * 300}, "tokenizer.ggml.token_type is not a list of numbers"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [float("nan")] * 259}, "entry 0 is not a number"),
    ],
)
def test_metadata_that_describes_no_tokenizer(change, message):
    with pytest.raises(FileError) as caught:
        Tokenizer(byte_bpe() | change, "m.gguf")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_texts_and_ids_that_cannot_be():
    tokenizer = Tokenizer(byte_bpe())
    with pytest.raises(DataError, match=r"character 1 of the text is U\+D800, half of a pair"):
        tokenizer.encode("a\ud800")
    with pytest.raises(DataError, match="bytes is not a text"):
        tokenizer.encode(b"a")
    for bad in (259, -1):
        with pytest.raises(DataError, match=rf"token id {bad} is not in the vocabulary; need 0\.\.258"):
            tokenizer.decode([bad])


def test_broken_vocabularies_still_work():
    """Merges that are no pairs, merges of what is no token, pieces that are no UTF-8, doubled merges."""
    made = byte_bpe(["a b", "ab c"])
    made["tokenizer.ggml.merges"] = [b"a b", "ab c", "junk", "", "x y", "xy z", "a b"]
    made["tokenizer.ggml.tokens"] = [*made["tokenizer.ggml.tokens"], b"\xff\xfe", ""]
    made["tokenizer.ggml.token_type"] = [*made["tokenizer.ggml.token_type"], 1, 1]
    tokenizer = Tokenizer(made)
    text = "abc xyz xy"
    assert tokenizer.decode(tokenizer.encode(text)) == text and "abc" in map(
        tokenizer.pieces.__getitem__, tokenizer.encode(text)
    )
    assert max(tokenizer.encode(text)) < tokenizer.vocab_size
    assert tokenizer.piece_bytes(tokenizer.vocab_size - 2) == b"\xff\xfe"


def test_each_pre_tokenizer_compiles_and_returns_the_text():
    text = "Hello, it's 12345 x² ÄÖ_a\n\n  漢字!?  ok\t\r\n'LL foo.Bar"
    for pre in PRE_TOKENIZERS:
        tokenizer = Tokenizer(byte_bpe(["e l", "l l", "1 2", "12 3"], pre=pre))
        assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text, pre


def test_all_keys_may_be_arrays():
    made = metadata("gguf/stories260K.gguf")
    as_arrays = {k: np.array(v) if isinstance(v, list) and not isinstance(v[0], str) else v for k, v in made.items()}
    tokenizer = Tokenizer(as_arrays)
    assert tokenizer.pad is None and tokenizer.sep is None and tokenizer.add_bos
    assert tokenizer.encode("Once upon a time") == Tokenizer(made).encode("Once upon a time")


def test_texts_in_parts():
    for name in ("llama-spm", "gpt-2"):
        tokenizer = real(name)
        (prompt, answer), (whole,) = tokenizer.encode_parts([("2 + 2 =", " 4"), ("2 + 2 = 4",)])
        assert np.concatenate([prompt, answer]).tolist() == whole.tolist() == tokenizer.encode("2 + 2 = 4", bos=False)
        apart = tokenizer.encode_parts([("un", "believ", "", "able")])[0]
        assert tokenizer.decode(np.concatenate(apart)) == "unbelievable" and len(apart) == 4 and apart[2].size == 0
    spm_parts = real("llama-spm").encode_parts([("Hi</s>", "you")])[0]
    assert np.concatenate(spm_parts).tolist() == real("llama-spm").encode("Hi</s>you", bos=False)


# What the pre-tokenizers differ in: contractions, digits, capitals, blanks, line ends, marks, scripts.
WORDS = "a B foo Bar XML iOS . ... !? 1 12 1234567 ½ ² 's 'LL 're n't é ü 漢字 日本語 한국어 русский עברית ไทย"
WORDS += ' 🦙 👍🏽 $ € + = < > _ - / // \\ " | ( ) { } ` ~ ^ İ ñ e\u0301 \u0300'
BITS = [*WORDS.split(), " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000"]


def awkward_texts():
    state, texts = 1, []
    for _ in range(600):
        text = ""
        for _ in range(1 + len(texts) % 13):
            state = (state * 1103515245 + 12345) % 2**31
            text += BITS[(state >> 8) % len(BITS)]
        texts.append(text)
    return texts


def ids_hash(ids):
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


GOLDEN = Path(__file__).parents[1] / "golden" / "pre_tokenizers.json"


@pytest.mark.parametrize("pre", sorted(json.loads(GOLDEN.read_text())))
def test_pre_tokenizers_equal_llama_cpp(pre):
    """GPT-2's vocabulary under each pre-tokenizer's name; the golden numbers are llama.cpp's own (0.3.36 of its
    Python package) for the same file with that name in it."""
    made = metadata("gguf/vocab/ggml-vocab-gpt-2.gguf") | {"tokenizer.ggml.pre": pre}
    tokenizer, want = Tokenizer(made), json.loads(GOLDEN.read_text())[pre]
    ids = [part.tolist() for part in tokenizer.encode_batch(awkward_texts(), special=False, bos=False)]
    assert (sum(map(len, ids)), ids_hash(ids)) == (want["tokens"], want["sha256"])


def test_every_family_of_pre_tokenizers_is_compared():
    known = json.loads(GOLDEN.read_text())
    assert {PRE_TOKENIZERS[pre] for pre in known} == set(PRE_TOKENIZERS.values())


def test_words_that_are_tokens_but_no_merges():
    """Llama-3's kind takes them whole, others do not."""
    for pre, whole in (("llama-bpe", True), ("tekken", True), ("dbrx", False), ("gpt-2", False)):
        made = byte_bpe(["a b"], pre=pre)
        made["tokenizer.ggml.tokens"] = [*made["tokenizer.ggml.tokens"], "abc"]
        made["tokenizer.ggml.token_type"] = [*made["tokenizer.ggml.token_type"], 1]
        tokenizer = Tokenizer(made)
        pieces = [tokenizer.pieces[i] for i in tokenizer.encode("abc", bos=False)]
        assert pieces == (["abc"] if whole else ["ab", "c"]), pre


def test_a_stream_is_not_cut_inside_a_special_token(monkeypatch):
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 8)
    monkeypatch.setattr("gradloom.llm.bpe.GROUP", 8)
    tokenizer = Tokenizer(byte_bpe(control=("<new turn>", "<s\nt>")))
    text = "".join("x" * (k % 9) + "<new turn>" + "ab cd" * (k % 3) + "<s\nt>" for k in range(40))
    ids = np.concatenate(list(tokenizer.encode_stream([text], special=True))).tolist()
    assert ids.count(256) == ids.count(257) == 40 and tokenizer.decode(ids) == text


UNITS = (
    "a",
    "ab",
    "A",
    "aA",
    "\u00e9",
    "\u6f22",
    "1",
    "12 ",
    " ",
    "\t",
    "\n",
    " \n",
    "!",
    "!\n",
    "/\n!",
    "'s",
    "\U0001f600",
    "e\u0301",
    "\u3000",
)
UNIT_MERGES = [
    "a b",
    "a a",
    "aa aa",
    "ab ab",
    "1 2",
    "\u0120 \u0120",
    "\u010a \u010a",
    "! !",
    "b a",
    "\u0120 a",
    "aa b",
]


def stretches():
    """Texts that mostly have no place where they may be cut."""
    rng = random.Random(3)
    for _ in range(60):
        parts = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            unit, count = rng.choices(UNITS, k=rng.choice((1, 1, 2, 3))), rng.choice((5, 40, 300))
            parts += unit * count if rng.random() < 0.6 else rng.choices(unit, k=count)
        yield "".join(parts)


@pytest.mark.parametrize("pre", [None, *sorted({pre.patterns: name for name, pre in PRE_TOKENIZERS.items()}.values())])
def test_windows_of_a_text_without_cuts_give_the_ids_of_the_whole(pre, monkeypatch):
    """Every pre-tokeniser, and (None) SentencePiece with words, without words, and merged by hand."""
    if pre is not None:
        made = [Tokenizer(byte_bpe(UNIT_MERGES, pre=pre))]
    else:
        spaces = ["\u2581", "a", "b", "ab", "\u2581a", "aa", "aaaa", "ba", "\u2581\u2581", "!!"]
        made = [Tokenizer(spm(spaces)), Tokenizer(spm([*spaces, "a\u2581b"])), Tokenizer(spm(spaces, scores=[-1] * 10))]
    for tokenizer in made:
        for text in stretches():
            text = text.replace(" ", "\u2581") if pre is None else text
            whole = tokenizer.bpe.encode_whole([text])[0].tolist()
            with monkeypatch.context() as patch:
                patch.setattr("gradloom.llm.bpe.BLOCK", 32)
                assert tokenizer.bpe.encode_in_windows(text).tolist() == whole, (pre, text)


EDGES = "23\u06f4\u0967\uff15\u00bdaBe\u00e9\u00c9\u6f22!'/\u00a1\u200d \t\n"


def edges(rng):
    """Long runs of one character, and short ones between them, in which a window may end."""
    for _ in range(120):
        parts = []
        for _ in range(rng.choice((1, 2, 3))):
            some = rng.choice((EDGES[:6], EDGES[:6], EDGES))
            parts += [rng.choice(EDGES) * rng.randrange(25, 70)]
            parts += rng.choices(rng.choices(some, k=rng.choice((1, 3, 9))), k=rng.randrange(1, 12))
        yield "".join([*parts, rng.choice(EDGES) * rng.choice((60, 200))])


@pytest.mark.parametrize("pre", sorted({pre.patterns: name for name, pre in PRE_TOKENIZERS.items()}.values()))
@pytest.mark.slow
def test_windows_that_end_at_the_edge_of_a_stretch(pre, monkeypatch):
    """The merges reach over the ends of words, so that a word which ends elsewhere shows in the ids."""
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 32)
    bytewise = ByteLevel(add_prefix_space=False, use_regex=False)
    written = [bytewise.pre_tokenize_str(c)[0][0] for c in EDGES]
    letters = [f"{w[:k]} {w[k]}" for w in written for k in range(1, len(w))]
    for seed in range(6):
        rng = random.Random(seed)
        pairs = [f"{a} {b}" for a in written for b in written if rng.random() < (0.05, 0.3)[seed % 2]]
        rng.shuffle(pairs)
        merges = [*(letters if seed % 3 else []), *pairs]
        tokenizer = Tokenizer(byte_bpe(dict.fromkeys(merges), pre=pre, control=("<a>", "<b>")))
        for text in edges(rng):
            assert tokenizer.bpe.encode_in_windows(text).tolist() == tokenizer.bpe.encode_whole([text])[0].tolist(), (
                pre,
                text,
            )


@pytest.mark.parametrize(
    ("pre", "text", "merge"),
    [
        ("tekken", "!" + "\n" * 60 + "//" + "A" * 60, "\u010a /"),  # a slash belongs to the word of the lines before it
        ("deepseek-v3", "!" + "a" * 60 + "\u00e9" + "A" * 60, "a \u00c3"),  # behind a mark only a-z make a word
        ("llama-bpe", "A" * 30 + "\u00a1\u00a1" + "A" * 60, "\u00a1 A"),  # one mark before a letter belongs to it
        ("default", "A" * 30 + "4584223" + "A" * 60, "2 3"),
    ],
)
def test_words_that_go_on_behind_a_window(pre, text, merge, monkeypatch):
    tokenizer = Tokenizer(byte_bpe([merge], pre=pre, control=("<a>", "<b>")))
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 32)
    for begin in range(30):
        part = text[begin:]
        assert tokenizer.bpe.encode_in_windows(part).tolist() == tokenizer.bpe.encode_whole([part])[0].tolist()


def test_a_window_that_ends_inside_of_a_number():
    tokenizer = Tokenizer(byte_bpe(["2 3"], pre="llama-bpe"))
    text = "A" * 65530 + "4584223" + "A" * 70000
    assert tokenizer.encode(text, bos=False) == tokenizer.bpe.encode_whole([text])[0].tolist()


@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "!", "\u6f22"])
@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_windows_are_small_on_a_long_stretch(kind, unit, monkeypatch):
    tokenizer = Tokenizer(byte_bpe(UNIT_MERGES) if kind == "bpe" else spm(["\u2581", "a", "aa", "aaaa"]))
    sizes, tokens = [], tokenizer.bpe._tokens
    monkeypatch.setattr("gradloom.llm.bpe.BLOCK", 1 << 10)
    monkeypatch.setattr(tokenizer.bpe, "_tokens", lambda text: sizes.append(len(text)) or tokens(text))
    ids = tokenizer.encode(unit * 20_000, bos=False)
    assert tokenizer.decode(ids) == unit * 20_000 and len(sizes) > 10 and max(sizes) <= 1 << 12
    assert np.concatenate(list(tokenizer.encode_stream([unit] * 20_000, bos=False))).tolist() == ids
