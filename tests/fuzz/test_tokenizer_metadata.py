"""Mutated tokenizer metadata: a tokenizer that gives ids of its vocabulary, or a FileError; never another exception."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradloom.base.errors import DataError, FileError
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.small_tokenizers import byte_bpe, spm

KEYS = sorted(byte_bpe() | spm()) + [f"tokenizer.ggml.add_{k}" for k in ("bos_token", "eos_token", "space_prefix")]
short = st.text("ab \u2581<>0x/s\u0120", max_size=4)
values = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats()
    | short
    | st.lists(short | st.binary(max_size=3), max_size=6)
    | st.lists(st.integers(-3, 8) | st.floats(), max_size=6)
    | st.just([1.0] * 400)
    | st.just([float("inf")] * 400)
    | st.lists(st.lists(st.integers(), max_size=2), max_size=2)
)
words = st.lists(st.text("ab\u2581", min_size=1, max_size=3), max_size=12, unique=True)


@given(
    st.booleans(), words, st.dictionaries(st.sampled_from(KEYS), values, max_size=3), st.text("ab <>/s", max_size=20)
)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_metadata(sentencepiece, pieces, changes, text):
    made = spm(pieces) if sentencepiece else byte_bpe([" ".join(p) for p in pieces if len(p) == 2])
    try:
        tokenizer = Tokenizer(made | changes, "model.gguf")
        ids = tokenizer.encode(text)
    except FileError as error:
        assert str(error).startswith("model.gguf: ") and "\n" not in str(error)
        return
    except DataError as error:
        assert "neither the byte" in str(error)
        return
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert isinstance(tokenizer.decode(ids), str) and all(0 <= i < tokenizer.vocab_size for i in tokenizer.end_ids)
