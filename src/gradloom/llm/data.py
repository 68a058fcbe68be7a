"""Read text files as samples of tokens for training.

    .txt    one long text, cut into consecutive windows of `context` tokens
    .jsonl  a sample per line: {"text"}, {"prompt", "completion"}, {"messages"}, or Alpaca's or ShareGPT's format, as
            the first line
    .json   the same objects as one array
    .csv, .tsv, .parquet, .arrow, .feather  the same keys as columns

For a training on preferences a line is {"prompt", "chosen", "rejected"}, on judged completions {"prompt", "completion",
"label"}, on labelled texts {"text", "label"}; see llm.preferences and llm.labelled.

A sample is a list of tokens. The prediction of those that count is learned. Samples are packed into rows of `context`
tokens; positions begin at 0 with each sample, and a token attends to its own sample only. Cut and skipped text is
reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, need_path
from ..base.errors import DataError, FileError, SettingError
from ..base.habits import hinted
from ..base.reasons import unreadable
from ..data.dataset import IGNORED, split_rows
from ..data.reading.text_bytes import encoding_of
from .data_files import TEXT
from .data_options import OF_ONE_TEXT, check_effective, prompt_keys
from .forms import TEXTS, Form
from .json_rows import Source, is_samples, text_blocks
from .jsonl import JsonLines
from .labels import Classes
from .packing import TokenData, pack
from .row_readers import need_file, reader_of
from .sample_lines import Keys
from .samples import Report, Samples

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_LINE_OF = {
    "preferences": "prompt, chosen and rejected", "judged": "prompt, completion and label",
    "labelled": "text and label", "pairs": "anchor and positive",
}  # fmt: skip
_NAMES = {
    "preferences": "preferences", "judged": "judged completions", "labelled": "labelled texts",
    "pairs": "anchors with a positive text",
}  # fmt: skip


def token_data(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    context: int,
    val_split: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> tuple[TokenData, TokenData | None]:
    """(training, validation or None) rows of a file: read_samples with its options, split by the seed, and packed.

    Samples are split before they are packed, so no row contains samples of both; a long text is split by windows.
    """
    samples = read_samples(path, tokenizer, **options)
    form = options.get("form", TEXTS)
    if not val_split:
        return pack(samples, context, prompts=form.prompts, last=form.last), None
    if not samples.stream:
        train, val = samples.split(val_split, seed)
        first, last = (pack(part, context, prompts=form.prompts, last=form.last) for part in (train, val))
        return first, last
    whole = pack(samples, context)
    first, last = (
        TokenData(
            whole.tokens[rows],
            whole.positions[rows],
            whole.labels[rows],
            replace(whole.report, rows=len(rows), counted=int((whole.labels[rows] != IGNORED).sum())),
        )
        for rows in (np.sort(part) for part in split_rows(len(whole), val_split, seed))
    )
    for part in (first, last):
        part.report.tokens, part.report.padding = part.report.counted, 1 - part.report.counted / part.tokens.size
    return first, last


@hinted
def read_samples(
    path: Source,
    tokenizer: Tokenizer,
    *,
    form: Form = TEXTS,
    text_key: str | None = None,
    prompt_key: str | Sequence[str] | None = None,
    completion_key: str | None = None,
    messages_key: str | None = None,
    chosen_key: str | None = None,
    rejected_key: str | None = None,
    label_key: str | None = None,
    anchor_key: str | None = None,
    positive_key: str | None = None,
    negative_key: str | None = None,
    separator: str | None = None,
    as_chat: bool = False,
    train_on_all: bool | None = None,
    special: bool = False,
    chat_template: str | None = None,
    adapter_template: str | None = None,
    classes: Classes | None = None,
    skip_bad_lines: bool = False,
    encoding: str | None = None,
) -> Samples:
    """Read the samples of a .txt, .jsonl, .json, .csv, .tsv, .parquet or .arrow file, of a folder that datasets wrote,
    of a list of dicts with the keys of .jsonl lines, or of a table in memory with such columns.

    form            Form of the samples: texts, prompts with completions and chats by default, or that of an objective
                    that learns from preferences or judged completions
    *_key           names of the keys in a .jsonl file. By default text; prompt and completion, or instruction, input
                    and output (Alpaca's); messages, or conversations, whose messages may be {"from", "value"}
                    (ShareGPT's) instead of {"role", "content"}, with an optional "system" text. prompt_key may be
                    several, "instruction,input" or a list: those that are not empty are joined by line ends. If lines
                    match several kinds of samples, a given name decides. Of preferences chosen, rejected and prompt (or
                    none: the common start is the prompt), each a text or a list of messages; "margin" in the first line
                    is read as their number. Of judged completions label (true or false), with prompt and completion or
                    with messages. Of pairs anchor, positive, and of 3 parts negative
    separator       inserted between prompt and completion if neither has a blank there, by default a line end; it
                    belongs to the completion, so a model continues a prompt with it
    as_chat         prompt and completion as a chat of two turns, through the chat template
    train_on_all    True: every token counts; False (the default for pairs and chats): those of completions, or of the
                    assistant's turns. All tokens of a text always count
    special         whether the names of control tokens in the file (<|im_end|>, </s>) become these tokens; by default
                    they are text. Those of a chat template are always tokens
    chat_template   for chats, instead of the adapter's and the model's own
    adapter_template  LoRA.chat_template of the adapter, instead of the model's own
    classes         of labelled texts: the possible classes, by default all in the file
    skip_bad_lines  True: malformed lines (elements of an array) are skipped and counted; False: the first is an error
    encoding        of a .csv, .tsv or .txt, such as "cp1252", by default UTF-8

    A text begins with the tokenizer's bos and ends with its eos according to the tokenizer; a completion always ends
    with eos. Chats are rendered by the template; see ChatTemplate.encode. A preference has two parts, chosen and
    rejected, that begin with the same prompt; those with identical sides are skipped.

    Raises FileError for a file that cannot be read; DataError, naming the line, for malformed contents, for judged
    completions of one label only, and for an option that has no effect on such a file; SettingError for a value that is
    not a path.
    """
    rows = None if isinstance(path, (str, os.PathLike)) or not is_samples(path) else path
    if rows is None:
        need_path(
            path,
            "read_samples",
            "path",
            "a path (.txt, .jsonl, .csv, ...), a list of dicts, or a table",
        )
    as_chat, special = as_bool("as_chat", as_chat), as_bool("special", special)
    skip_bad_lines = as_bool("skip_bad_lines", skip_bad_lines)
    encoding = None if encoding is None else encoding_of(encoding)
    train_on_all = None if train_on_all is None else as_bool("train_on_all", train_on_all)
    if not hasattr(tokenizer, "encode_parts"):
        raise SettingError(
            f"read_samples: tokenizer is a {type(tokenizer).__name__}; need that of the model (Model.tokenizer)"
        )
    if not isinstance(form, Form):
        raise SettingError(f"read_samples: form is a {type(form).__name__}; need a gl.llm.Form")
    given: dict[str, Any] = {
        "text_key": text_key, "prompt_key": prompt_key, "completion_key": completion_key, "messages_key": messages_key,
        "chosen_key": chosen_key, "rejected_key": rejected_key, "label_key": label_key,
        "anchor_key": anchor_key, "positive_key": positive_key, "negative_key": negative_key,
        "separator": separator, "as_chat": as_chat or None, "chat_template": chat_template,
        "train_on_all": None if train_on_all else train_on_all, "special": special or None,
        "skip_bad_lines": skip_bad_lines or None, "encoding": encoding,
    }  # fmt: skip
    asked = {name for name, value in given.items() if value is not None}
    shown = os.fspath(path) if rows is None else "data"  # type: ignore[arg-type]
    if form.kind != "texts" and train_on_all:
        text = f"{shown}: {{train_on_all}} requires texts, pairs or chats to continue, not {_NAMES[form.kind]}"
        raise DataError(text, train_on_all=True)
    kind = Path(shown).suffix.lower()
    try:
        if kind in TEXT:
            need_file(shown)
        if kind in TEXT and form.kind != "texts":
            raise DataError(f"{shown}: is one text; need {_LINE_OF[form.kind]} in each line of a .jsonl")
        if kind in TEXT:
            check_effective(shown, "is one text", asked, OF_ONE_TEXT)
            return _read_text(shown, tokenizer, special, encoding)
        keys = prompt_keys(prompt_key)
        _check_texts(given)
        reader = JsonLines(
            reader_of(shown if rows is None else rows, encoding), tokenizer,
            "\n" if separator is None else separator, as_chat, bool(train_on_all), special, chat_template,
            adapter_template, skip_bad_lines, asked, form, classes,
        )  # fmt: skip
        return reader.read(
            Keys(
                text_key, keys, completion_key, messages_key, chosen_key, rejected_key, label_key, anchor_key,
                positive_key, negative_key,
            )
        )  # fmt: skip
    except OSError as error:
        raise FileError(f"{shown}: {unreadable(error)}") from None


def _check_texts(given: dict[str, Any]) -> None:
    """SettingError for a key or a separator that is no text; prompt_key may be a list."""
    for name in (*(name for name in given if name.endswith("_key") and name != "prompt_key"), "separator"):
        if not isinstance(given[name], str | None):
            raise SettingError(setting=name, seen=given[name], need="a text")


def _read_text(path: str, tokenizer: Tokenizer, special: bool, encoding: str | None) -> Samples:
    """One long text; the tokens are those of the whole text."""
    report = Report(path, "one text, in windows that follow one another", "all tokens")

    def blocks() -> Iterator[str]:
        before = ""
        for block in text_blocks(path, encoding):
            if not special and not report.as_text:
                report.as_text = int(tokenizer.control_in(before + block) is not None)
                before = block[-tokenizer.longest_control :]
            yield block

    parts = list(tokenizer.encode_stream(blocks(), special))
    tokens = np.concatenate([np.empty(0, np.int32), *parts])
    counted = np.ones(tokens.size, bool)
    counted[:1] = False
    return Samples(tokens, counted, np.array([0, tokens.size], np.int64), report, stream=True)
