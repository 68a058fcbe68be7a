"""Mutated lines of JSON: a sample, or a DataError that names the line; never another exception."""

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradloom.base.errors import DataError
from gradloom.llm.chat import ChatTemplate
from gradloom.llm.data import read_samples
from gradloom.llm.packing import pack
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.chats import CHAT, CHATML, LLAMA3, MISTRAL, QWEN3
from tests.llm.small_tokenizers import byte_bpe, spm

TOKENIZERS = [
    Tokenizer(byte_bpe(["t h"], chat_template=CHATML)),
    Tokenizer(byte_bpe(["t h"], pre="qwen2", add_bos_token=True, chat_template=QWEN3)),
    Tokenizer(spm(["\u2581", "a", "\u2581a"], chat_template=MISTRAL)),
    Tokenizer(spm(["\u2581", "a"], add_bos_token=False, add_eos_token=True, chat_template=LLAMA3)),
]
SETTINGS = {
    "max_examples": 150,
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    "derandomize": True,
}
GOOD = [
    {"text": "the end"},
    {"prompt": "the", "completion": " an\u00e9"},
    {"messages": CHAT},
    {"messages": [{"role": "user", "content": "<|im_end|>[/INST]</s>"}, CHAT[1]]},
]
SPOTS = b'\x00\xff{}[]",:\\u\xed\xa0\x80 0-1eEnt\n\r'
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["text", "prompt", "completion", "messages", "role", "content", "tools", "tool_calls", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
texts = st.text(max_size=30) | st.text("<|im_end>startasuser\n /sINST[]", max_size=60)
roles = st.sampled_from(["user", "assistant", "system", "tool", "", "Assistant"])
messages = st.fixed_dictionaries({"role": roles, "content": texts | scalars})
rows = (
    st.fixed_dictionaries({"text": texts | values})
    | st.fixed_dictionaries({"prompt": texts | values, "completion": texts | values})
    | st.fixed_dictionaries({"messages": st.lists(messages | values, max_size=5) | values})
    | values
)


@st.composite
def lines(draw):
    """A line: a good one with some bytes changed, or one of the right shape with anything in it."""
    if draw(st.booleans()):
        return json.dumps(draw(rows)).encode()
    data = bytearray(json.dumps(draw(st.sampled_from(GOOD))).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            data[at] = draw(st.sampled_from(SPOTS))
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 20))]
        elif kind == 2:
            data[at:at] = draw(st.binary(max_size=6))
        else:
            data[at:at] = data[: draw(st.integers(0, 30))]
        data = data or bytearray(b"{")
    return bytes(data)


@given(st.lists(lines(), min_size=1, max_size=6), st.integers(0, 3), st.booleans(), st.integers(1, 12))
@settings(**SETTINGS)
@pytest.mark.slow
def test_lines(tmp_path, kept, given_lines, which, skip, context):
    path = tmp_path / "fuzz.jsonl"
    path.write_bytes(b"\n".join(given_lines))
    tokenizer = TOKENIZERS[which]
    try:
        samples = read_samples(path, tokenizer, skip_bad_lines=skip, as_chat=context % 2 == 0)
        data = pack(samples, context)
    except DataError as error:
        assert "\n" not in str(error) and str(error).startswith(str(path)) and len(str(error)) < 1500
        return
    for i in range(len(samples)):
        tokens, counted = samples[i]
        assert len(tokens) >= 2 and counted[-1] and not counted[0]
        assert tokens.min() >= 0 and tokens.max() < tokenizer.vocab_size
    assert ((data.labels == -100) | ((data.labels >= 0) & (data.labels < tokenizer.vocab_size))).all()
    assert (data.labels != -100).any(1).all() and data.report.counted == (data.labels != -100).sum()
    assert skip or not samples.report.bad_lines


@pytest.fixture(scope="module")
def kept():
    """A template that keeps the process which renders, from one example to the next."""
    return ChatTemplate("{{ bos_token }}", TOKENIZERS[0])


@given(
    st.text(st.sampled_from("{}%-|#'\"()[]=+*." + string.ascii_lowercase + " \n"), max_size=40)
    | st.lists(
        st.sampled_from(
            [
                "{% for m in messages %}",
                "{% endfor %}",
                "{{ m.content }}",
                "{{ m['role'] }}",
                "{% if loop.last %}",
                "{%",
            ]
            + [
                "{% endif %}",
                "{{ eos_token }}",
                "{{ bos_token }}",
                "{% set x = 3 %}",
                "{{ x * 9 }}",
                "text",
                "}}",
                "{#",
            ]
            + ["{% generation %}", "{% endgeneration %}", "{% if add_generation_prompt %}", "{{ messages | tojson }}"]
        ),
        max_size=12,
    ).map("".join)
)
@settings(**SETTINGS)
def test_templates(kept, source):
    tokenizer = TOKENIZERS[0]
    try:
        made = ChatTemplate(source, tokenizer, "model.gguf")
        parts = made.parts(CHAT)
    except DataError as error:
        assert "\n" not in str(error) and str(error).startswith("model.gguf: ")
        return
    assert "".join(text for text, _ in parts) == made.render(CHAT)


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("ab \u2581<s>/\n", max_size=60), st.integers(0, 3), st.booleans())
@settings(**SETTINGS)
def test_texts_come_back(content, which, special):
    tokenizer = TOKENIZERS[which]
    try:
        ids = tokenizer.encode(content, special=special, bos=False, eos=False)
    except DataError as error:
        assert "half of a pair" in str(error)
        return
    shown = content.replace("\u2581", " ") if tokenizer.kind == "spm" else content
    if not special:
        assert tokenizer.decode(ids) == shown
    stream = tokenizer.stream(skip_special=False)
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)
