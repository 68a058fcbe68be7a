"""Small tokenizers for the tests, as a GGUF file's metadata, and the real ones where they are."""

from functools import cache

from gradloom.files.gguf import open_gguf
from gradloom.files.gguf_fields import field
from gradloom.llm.tokenizer import Tokenizer
from tests.real_data import need


@cache
def metadata(name):
    return dict(open_gguf(need(name)).metadata)


@cache
def real(name):
    """llama-spm, llama-bpe, gpt-2 or qwen2."""
    return Tokenizer(metadata(f"gguf/vocab/ggml-vocab-{name}.gguf"), name)


def spm(words=(), control=("<unk>", "<s>", "</s>"), scores=None, **keys):
    """A SentencePiece vocabulary: control tokens, bytes, then `words`, their scores falling; keys without prefix."""
    pieces = [*control, *(f"<0x{b:02X}>" for b in range(256)), *words]
    types = [2, *[3] * (len(control) - 1), *[6] * 256, *[1] * len(words)]
    given = [0.0] * (len(control) + 256) + list(
        scores if scores is not None else [-float(i) for i in range(len(words))]
    )
    made = {"model": "llama", "tokens": pieces, "token_type": types, "scores": given}
    made |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | keys
    return {f"tokenizer.{'' if k == 'chat_template' else 'ggml.'}{k}": v for k, v in made.items()}


def byte_bpe(merges=(), control=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), **keys):
    """A byte-level BPE vocabulary: the 256 bytes, what the merges give, then control tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = sorted(ByteLevel.alphabet())
    pieces += [m.replace(" ", "") for m in merges if m.replace(" ", "") not in pieces]
    n = len(pieces)
    made = {"model": "gpt2", "pre": "gpt-2", "tokens": [*pieces, *control], "merges": list(merges)}
    made |= {"token_type": [1] * n + [3] * len(control), "bos_token_id": n, "eos_token_id": n + len(control) - 1}
    return {f"tokenizer.{'' if k == 'chat_template' else 'ggml.'}{k}": v for k, v in (made | keys).items()}


def byte_bpe_fields():
    """The keys of a small byte-level BPE tokenizer."""
    shown = [b for b in range(256) if chr(b).isprintable() and b not in (32, 0xA0, 0xAD)]
    hidden = [b for b in range(256) if b not in shown]
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]
    merges = ["t h", "th e", "i n", "Ġ a", "o n"]
    tokens = [*letters, *(m.replace(" ", "") for m in merges), "<|endoftext|>"]
    tokens += [f"<|{i}|>" for i in range(512 - len(tokens))]
    return {
        "tokenizer.ggml.model": field("string", "gpt2"),
        "tokenizer.ggml.pre": field("string", "gpt-2"),
        "tokenizer.ggml.tokens": field("array", tokens, "string"),
        "tokenizer.ggml.token_type": field("array", [1] * 262 + [3] * 250, "i32"),
        "tokenizer.ggml.merges": field("array", merges, "string"),
        "tokenizer.ggml.eos_token_id": field("u32", 261),
    }
