"""Regular expressions, named by `tokenizer.ggml.pre`, with which byte-level tokenizers split text into words."""

from __future__ import annotations

from typing import NamedTuple

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Words in which capitals come first, as llama.cpp has them: any letter but a-z, any letter but A-Z
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
THREES = r"\p{N}{1,3}", r"[0-9][0-9][0-9]"  # patterns that match a limited number of digits
ASCII_WORD = "][A-Za-z]+"  # after a punctuation mark, only ASCII letters continue a word
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pre(NamedTuple):
    """Splitting of text into words by a byte-level tokenizer."""

    patterns: tuple[str, ...]  # each is applied to the words of the previous one
    whole_words: bool = False  # a word that is a token is not merged
    add_bos: bool = False  # default, if the file has none
    has_bos: bool = True  # token 11 is bos, if the file has none


def _pre_tokenizers() -> dict[str, Pre]:
    families = {
        "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "gpt-2 phi-2 mpt olmo exaone4 mellum gigachat a.x-4.0 trillion granite-docling": Pre((_GPT2,)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Pre((r"\p{N}", _GPT2)),
        "falcon": Pre((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 pixtral midm-2.0": Pre(
            (_LLAMA3,), whole_words=True, add_bos=True
        ),
        "dbrx smaug-bpe": Pre((_LLAMA3,)),
        "chatglm-bpe": Pre((_LLAMA3,), has_bos=False),
        "glm4 glm5": Pre((_LLAMA3,), whole_words=True, has_bos=False),
        "minicpm5": Pre((r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), whole_words=True),
        "qwen2 stablelm2 deepseek-r1-qwen megrez kormo hunyuan f2llmv2 grok-2 solar-open": Pre((_QWEN2,)),
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": Pre(
            (
                r"\p{N}{1,3}",
                r"[一-龥぀-ゟ゠-ヿ]+",
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
        "seed-coder": Pre(
            (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
        ),
        "tekken": Pre((CASED.replace("END", "").replace("DIGITS", r"\p{N}"),), whole_words=True, add_bos=True),
        "gpt-4o llama4 kanana2 talkie minimax-m2": Pre(
            (CASED.replace("END", _CONTRACTIONS + "?").replace("DIGITS", r"\p{N}{1,3}"),)
        ),
    }
    return {name: pre for names, pre in families.items() for name in names.split()}


PRE_TOKENIZERS = _pre_tokenizers()


def gpt2_pattern() -> str:
    """The pattern of GPT-2, which the tokenizers package's ByteLevel contains."""
    return _GPT2


def kind_of_character(character: str) -> str:
    """The class of a character in the patterns above."""
    if "a" <= character <= "z" or "A" <= character <= "Z":
        return "small" if character >= "a" else "letter"
    if character.isalpha():
        return "letter"
    if character.isnumeric():
        return "digit"
    return "space" if character in " \t" else "line" if character.isspace() else "other"
