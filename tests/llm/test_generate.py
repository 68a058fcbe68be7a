"""Generation: what the cache gives is what the whole forward pass gives, and text comes out whole."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError, NonFiniteError, SettingError
from gradloom.llm import LoRA, TrainedTensors, load
from gradloom.llm.generate import CHUNK, Generator, _Text, complete, generate, generator_for
from gradloom.llm.sampling import Sampling
from tests.llm.random_models import write
from tests.real_data import need

ARCHS = [
    ("llama", {}), ("llama", {"tied": False, "rope_base": 1e5}), ("qwen2", {}), ("qwen3", {"head_dim": 12}),
    ("llama", {"kind": "q8_0", "width": 64, "heads": 4, "ffn": 96}), ("qwen2", {"kind": "f16"}),
]  # fmt: skip


def forward(model, ids, adapter=None):
    """Logits [T, V] of the whole text at once, without a cache."""
    tokens, positions = gl.input("t", (1, len(ids)), "i32"), gl.input("p", (1, len(ids)), "i32")
    run = gl.compile(model.logits(tokens, positions, adapter))
    return run(t=np.array([ids], np.int32), p=np.arange(len(ids), dtype=np.int32)[None])[0]


def filled(model, **settings):
    """A LoRA whose second matrices are not 0."""
    adapter = LoRA(rank=3, targets="all", **settings)
    adapter.bind(model)
    rng = np.random.default_rng(1)
    for b in adapter.b.values():
        b.assign(rng.standard_normal(b.shape) * 0.1)
    return adapter


def random_ids(model, n, seed=0):
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, n)


@pytest.mark.parametrize(("arch", "changes"), ARCHS)
@pytest.mark.parametrize("with_adapter", [False, True])
def test_the_cache_gives_what_the_whole_text_gives(tmp_path, arch, changes, with_adapter):
    model = load(write(tmp_path, arch, **changes))
    adapter = filled(model) if with_adapter else None
    ids = random_ids(model, 2 * CHUNK + 9)
    want = forward(model, ids, adapter)
    for sizes in ([len(ids)], [CHUNK], [5, 1, 1, CHUNK + 3, 1, 40], [1] * 12):
        generator = Generator(model, adapter, rows=200)
        at = 0
        for n in sizes:
            got = generator.feed(ids[at : at + n])
            at += n
            np.testing.assert_allclose(got, want[at - 1], atol=3e-6 * np.abs(want).max() + 2e-5)
        assert generator.length == at and np.argmax(got) == np.argmax(want[at - 1])


def test_several_prompts(tmp_path):
    path = write(tmp_path, "llama")
    model = load(path)
    prompts = ["once", "upon a time", "there"]
    want = [generate(model, prompt, max_tokens=7, seed=3) for prompt in prompts]
    assert generate(path, prompts, max_tokens=7, seed=3) == want and len(set(want)) == 3
    assert generate(model, tuple(prompts[:1]), max_tokens=7, seed=3) == want[:1]
    heard = []
    with pytest.raises(SettingError, match="among several prompts is an int; need texts"):
        generate(model, ["once", 3], stream=heard.append)
    with pytest.raises(DataError, match="tokens of prompt and max_tokens=60"):
        generate(model, ["once", "word " * 4000], max_tokens=60, stream=heard.append)
    assert heard == []  # nothing runs before all are known to fit


def test_rows_behind_the_last_token_are_never_read(tmp_path):
    model = load(write(tmp_path, "llama"))
    ids = random_ids(model, CHUNK + 5)
    fresh = [Generator(model, rows=100, check=0).feed(ids[:n]).tobytes() for n in (3, len(ids))]
    for n, want in zip((3, len(ids)), fresh, strict=True):
        generator = Generator(model, rows=100, check=0)  # check 2 would find the NaN that is put there
        for pair in generator.cache.stored:
            for stored in pair:
                stored.write(np.nan)
        assert generator.feed(ids[:n]).tobytes() == want
        generator.reset()  # what an earlier text left behind is not read either
        assert generator.feed(ids[:n]).tobytes() == want


def test_the_same_bits_for_any_number_of_threads(tmp_path):
    model = load(write(tmp_path, "qwen2"))
    ids = random_ids(model, CHUNK + 1)
    runs = [Generator(model, rows=100, threads=n) for n in (1, 2)]
    for part in (ids[:-1], ids[-1:]):
        first, second = (g.feed(part) for g in runs)
        assert first.tobytes() == second.tobytes()


def test_an_adapter_is_used_as_it_is_while_it_is_trained(tmp_path):
    """One generator, compiled once; the adapter's numbers change under it."""
    model = load(write(tmp_path, "llama"))
    adapter = filled(model)
    ids = random_ids(model, 10)
    with generator_for(model, adapter, 50) as first:
        before = first.feed(ids)
    for b in adapter.b.values():
        b.assign(-2 * b.numpy())
    with generator_for(model, adapter, 40) as again:
        assert again is first
        after = again.feed(ids)
    want = forward(model, ids, adapter)[-1]
    np.testing.assert_allclose(after, want, atol=1e-5 * np.abs(want).max())
    assert np.abs(after - before).max() > 0.01
    with generator_for(model, adapter, 40) as first, generator_for(model, adapter, 40) as second:
        assert first is again and second is not first  # nobody else gets one that is in use
    with generator_for(model, None, 40) as bare, generator_for(model, None, 400) as larger:
        assert bare is not first and larger is not bare  # no room in the first
    for _ in range(3):  # only the last few are kept
        with generator_for(model, filled(model), 40):
            pass
    with generator_for(model, adapter, 40) as last:
        assert last is not first and last is not second


def test_tensors_that_train_are_used_as_they_are(tmp_path):
    model = load(write(tmp_path, "llama"))
    own = TrainedTensors("attn_q, output_norm")
    own.bind(model)
    for p in own.arrays.values():
        p.assign(p.numpy() * 1.5)
    ids = random_ids(model, 8)
    got, want = Generator(model, own, rows=20).feed(ids), forward(model, ids, own)[-1]
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories():
    return load(need("gguf/stories260K.gguf"))


def test_stories_are_fluent(stories):
    pieces = []
    text = generate(stories, "Once upon a time", max_tokens=40, temperature=0, stream=pieces.append)
    start = ", there was a little girl named Lily. She loved to play outside in the park."
    assert text.startswith(start) and "".join(pieces) == text and len(pieces) > 20


def test_a_seed_is_a_text(stories):
    texts = {(s, k): generate(stories, "Once", max_tokens=30, seed=s, threads=1 + k) for s in (1, 2) for k in (0, 1)}
    assert texts[1, 0] == texts[1, 1] and texts[2, 0] == texts[2, 1] and texts[1, 0] != texts[2, 0]
    hot = generate(stories, "Once", max_tokens=30, temperature=3.0, top_k=0, top_p=1.0)
    assert hot != generate(stories, "Once", max_tokens=30, temperature=3.0, top_k=1)
    assert generate(stories, "Once", max_tokens=30, top_k=1, seed=9) == generate(
        stories, "Once", max_tokens=30, temperature=0
    )


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (" girl", ", there was a little"),
        (["Lily", "girl"], ", there was a little "),
        ("there was a little girl named Lily. She never", None),
    ],
)
def test_stop_texts(stories, stop, text):
    pieces = []
    done = complete(stories, "Once upon a time", None, 30, Sampling(0), stop, pieces.append)
    whole = generate(stories, "Once upon a time", max_tokens=30, temperature=0)
    assert done.text == (whole if text is None else text) == "".join(pieces)
    assert done.ended == ("length" if text is None else "stop") and done.prompt_tokens == 5
    assert (len(done.tokens) == 30) == (text is None)


def test_a_text_ends_where_the_model_ends_it(stories, monkeypatch):
    period = stories.tokenizer.encode("Lily.", special=True)[-1]
    monkeypatch.setattr(stories.tokenizer, "end_ids", frozenset([period]))
    done = complete(stories, "Once upon a time", None, 60, Sampling(0))
    assert done.text == ", there was a little girl named Lily" and done.ended == "end"
    assert done.tokens[-1] == period and len(done.tokens) < 60


def test_whole_characters_only(stories):
    """A character of four bytes, byte by byte: it comes when it is whole; half of one is said to be none."""
    tokenizer = stories.tokenizer
    ids = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in "é🙂".encode()]
    pieces = []
    text = _Text(tokenizer.stream(continued=True), (), pieces.append)
    assert [bool(text.push(i)) for i in ids[:-1]] == [False] * 5 and pieces == ["é"]
    text.push(ids[-1])
    text.push(ids[0])
    text.finish()
    assert pieces == ["é", "🙂", "\ufffd"] and text.text == "é🙂\ufffd"


def test_prompts_of_ids_and_what_they_count(stories):
    ids = stories.tokenizer.encode("Once upon a time", special=True)
    assert generate(stories, ids, max_tokens=5, temperature=0) == generate(
        stories, "Once upon a time", max_tokens=5, temperature=0
    )
    assert generate(stories, "", max_tokens=5, temperature=0).strip()  # from the token that begins a text


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"max_tokens": 0}, SettingError, "max_tokens=0: must be"),
        (
            {"max_tokens": 2044},
            DataError,
            "5 tokens of prompt and max_tokens=2044; the context is 2048: need at most 2043, or",
        ),
        ({"max_tokens": 9000}, DataError, "the context is 2048: need at most 2043, or less of both"),
        ({"prompt": [1] * 2048, "max_tokens": 1}, DataError, "need a prompt of at most 2047"),
        ({"prompt": []}, DataError, "the prompt is []; need a text, several texts, or at least one token id"),
        (
            {"prompt": [[1, 2], [3]]},
            DataError,
            "the prompt is [[1, 2], [3]]; need a text, several texts, or at least one token id",
        ),
        ({"prompt": None}, DataError, "the prompt is None; need a text"),
        ({"prompt": ["a", 5]}, SettingError, "among several prompts is an int; need texts"),
        ({"prompt": [1, 512]}, DataError, "token id 512 at place 1; need 0..511, the vocabulary"),
        ({"prompt": [1, -1]}, DataError, "token id -1 at place 1"),
        ({"temperature": -1}, SettingError, "temperature=-1: must be"),
        ({"stop": ""}, SettingError, "stop='': must be texts that are not empty"),
    ],
)
def test_what_cannot_be_generated(stories, arguments, kind, message):
    with pytest.raises(kind) as caught:
        generate(stories, **({"prompt": "Once upon a time"} | arguments))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_adapter_that_is_not_finite_is_said(tmp_path):
    model = load(write(tmp_path, "llama"))
    adapter = filled(model)
    next(iter(adapter.a.values())).stored.write(np.nan)
    with pytest.raises(NonFiniteError, match=r"position 3 is not finite: .*blk\.0\.attn_q\.weight\.lora_a .* nan"):
        complete(model, [1, 2, 3], adapter, 4, check=0)
