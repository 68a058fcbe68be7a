"""Text files as rows of tokens that a model trains on.

    .txt    one long text, cut into windows of `context` tokens that follow one another
    .jsonl  a sample per line: {"text"}, or {"prompt", "completion"}, or {"messages"}; the first line says which

A sample is a list of tokens of which some count: those whose prediction is learned. Samples are packed into rows of
`context` tokens; positions begin at 0 with each sample, and a token sees nothing before its own sample. Whatever is cut
or left out is counted and reported.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.arguments import as_bool, need_path
from ..base.errors import DataError, FileError, SettingError
from ..data.dataset import IGNORED, split_rows
from .chat import ChatTemplate

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_LINES = 512  # samples that are tokenised at once
_TEXT_HELD = 1 << 24  # characters that are held before they are tokenised
_READ = 1 << 20  # bytes of a text that are read at once
_NAMED = 3  # bad lines that a report names
_TEXT = (".txt", ".text", ".md")
_JSONL = (".jsonl", ".ndjson")


@dataclass
class Report:
    """What was read from a file, what became of it, and what was left out."""

    path: str = ""
    kind: str = ""  # what a sample is, and from which keys
    counts: str = ""  # which tokens count
    unused: tuple[str, ...] = ()  # keys of the first line that are not read
    samples: int = 0
    tokens: int = 0
    counted: int = 0  # tokens whose prediction is learned
    bad_lines: int = 0
    bad: tuple[str, ...] = ()  # the first of them: line and reason
    skipped: dict[str, int] = field(default_factory=dict)  # reason -> samples
    context: int = 0
    rows: int = 0
    padding: float = 0.0  # share of the rows' places that hold no token
    cut: int = 0  # samples longer than the context
    cut_tokens: int = 0  # what was left out of them

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, as JSON has them."""
        return {**vars(self), "unused": list(self.unused), "bad": list(self.bad), "skipped": dict(self.skipped)}

    def __str__(self) -> str:
        lines = [
            f"{self.path}: {self.kind}; {_many(self.samples, 'sample')}, {_many(self.tokens, 'token')},"
            f" {self.counted:,} to learn ({self.counts})"
        ]
        if self.rows:
            lines.append(f"{_many(self.rows, 'row')} of {self.context} tokens, {self.padding:.1%} padding")
        if self.unused:
            lines.append(f"keys not read: {', '.join(self.unused)}")
        if self.cut:
            lines.append(
                f"cut to the context: {_many(self.cut, 'sample')}; {_many(self.cut_tokens, 'token')} left out of them"
            )
        if self.bad_lines:
            lines.append(f"skipped: {_many(self.bad_lines, 'bad line')} ({'; '.join(self.bad)})")
        lines += [f"skipped: {_many(count, 'sample')}, {reason}" for reason, count in self.skipped.items()]
        return "\n".join(lines)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class Samples:
    """Tokens of samples, one after the other.

    tokens   i32 [n], of all samples
    counted  bool [n]: whether the prediction of this token is learned; never of a sample's first
    starts   i64 [samples + 1]: where each sample begins, and the end
    stream   True for one long text, which pack cuts into windows
    report   what was read
    """

    def __init__(
        self, tokens: np.ndarray, counted: np.ndarray, starts: np.ndarray, report: Report, stream: bool = False
    ) -> None:
        self.tokens, self.counted, self.starts = tokens, counted, starts
        self.stream = stream
        self.report = replace(report, samples=len(self), tokens=tokens.size, counted=int(counted.sum()))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens i32, counted bool) of a sample."""
        i = range(len(self))[i]
        part = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.tokens[part], self.counted[part]

    def __repr__(self) -> str:
        return f"Samples({len(self)} of {self.report.path}: {self.report.kind}, {self.tokens.size} tokens)"

    def split(self, val_split: float, seed: int = 0) -> tuple[Samples, Samples]:
        """(training, validation): one permutation of the samples by the seed, its last share for validation.

        What was skipped while reading is in the report of the first. Raises DataError for one long text.
        """
        if self.stream:
            raise DataError(f"{self.report.path}: one long text is no set of samples; need its windows split, packed")
        first, last = split_rows(len(self), val_split, seed)
        told = replace(self.report, bad_lines=0, bad=(), skipped={}, unused=())
        return self._take(np.sort(first), self.report), self._take(np.sort(last), told)

    def _take(self, which: np.ndarray, report: Report) -> Samples:
        sizes = np.diff(self.starts)[which]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        picked = np.zeros(len(self), bool)
        picked[which] = True  # in the order of the file
        of_token = np.repeat(picked, np.diff(self.starts))
        return Samples(self.tokens[of_token], self.counted[of_token], starts, report)


@dataclass
class TokenData:
    """Rows that a model trains on, all i32 [rows, context].

    tokens     ids; 0 in padding
    positions  0, 1, 2, ... from the start of each sample; 0 in padding
    labels     the id that follows, or -100 where its prediction is not learned
    """

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    report: Report

    def __len__(self) -> int:
        return len(self.tokens)


def token_data(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    context: int,
    val_split: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> tuple[TokenData, TokenData | None]:
    """(training, validation or None) rows of a file: read_samples with its options, split by the seed, packed.

    Samples are split before they are packed, so that no row holds samples of both sides; a long text by its windows.
    """
    samples = read_samples(path, tokenizer, **options)
    if not val_split:
        return pack(samples, context), None
    if not samples.stream:
        train, val = samples.split(val_split, seed)
        return pack(train, context), pack(val, context)
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


# -- reading -----------------------------------------------------------------------------------------------------------


def read_samples(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    *,
    text_key: str | None = None,
    prompt_key: str | Sequence[str] | None = None,
    completion_key: str | None = None,
    messages_key: str | None = None,
    separator: str | None = None,
    as_chat: bool = False,
    train_on_all: bool | None = None,
    special: bool = True,
    chat_template: str | None = None,
    skip_bad_lines: bool = False,
) -> Samples:
    """The samples of a .txt or .jsonl file.

    *_key           names of the keys in a .jsonl file, by default text, prompt, completion, messages; prompt_key may be
                    several, "instruction,input" or a list: what is there of them and not empty is joined by line ends.
                    Where lines could be samples of several kinds, a name that is given decides
    separator       stands between prompt and completion where neither has a blank there, by default a line end; it
                    belongs to the completion, so that a model that was given the prompt alone goes on with it
    as_chat         prompt and completion as a chat of two turns, through the chat template
    train_on_all    True: every token counts; False (the default where there are some): those of completions, or of the
                    assistant's turns. Of a text all tokens always count
    special         whether the names of control tokens in the file become these tokens; in chats they always do
    chat_template   in place of the model's own, where there are chats
    skip_bad_lines  True: lines that are no sample are skipped and counted; False: the first of them is an error

    A text begins with the tokenizer's bos and ends with its eos where its file says so; a completion always ends with
    eos. A chat is what the template makes of it; see ChatTemplate.encode. Raises FileError for a file that cannot be
    read, DataError for what is in it, with the line, and for an option that such a file would not heed; SettingError
    for a path that is none.
    """
    need_path(path, "read_samples", "path", "a path: that of a .txt or .jsonl file")
    as_chat, special = as_bool("as_chat", as_chat), as_bool("special", special)
    skip_bad_lines = as_bool("skip_bad_lines", skip_bad_lines)
    train_on_all = None if train_on_all is None else as_bool("train_on_all", train_on_all)
    if not hasattr(tokenizer, "encode_parts"):
        raise SettingError(
            f"read_samples: tokenizer is a {type(tokenizer).__name__}; need that of the model (Model.tokenizer)"
        )
    given: dict[str, Any] = {
        "text_key": text_key, "prompt_key": prompt_key, "completion_key": completion_key, "messages_key": messages_key,
        "separator": separator, "as_chat": as_chat or None, "chat_template": chat_template,
        "train_on_all": None if train_on_all else train_on_all, "special": None if special else special,
        "skip_bad_lines": skip_bad_lines or None,
    }  # fmt: skip
    asked = {name for name, value in given.items() if value is not None}
    shown = os.fspath(path)
    kind = Path(shown).suffix.lower()
    if kind not in _TEXT + _JSONL:
        raise DataError(f"{shown}: the name ends in {kind or 'nothing'}; need one of {' '.join(_TEXT + _JSONL)}")
    try:
        size = os.stat(shown).st_size
        if Path(shown).is_dir():
            raise IsADirectoryError(21, "is a directory")
        if size == 0:
            raise DataError(f"{shown}: the file is empty; need a text, or a sample per line")
        if kind in _TEXT:
            _check_heeded(shown, "is one text", asked, _OF_ONE_TEXT)
            return _read_text(shown, tokenizer, special)
        prompts = "prompt" if prompt_key is None else prompt_key
        keys = [k.strip() for k in prompts.split(",")] if isinstance(prompts, str) else list(prompts)
        reader = _Lines(
            shown, tokenizer, "\n" if separator is None else separator, as_chat, bool(train_on_all), special,
            chat_template, skip_bad_lines, asked,
        )  # fmt: skip
        return reader.read(text_key or "text", keys, completion_key or "completion", messages_key or "messages")
    except OSError as error:
        raise FileError(f"{shown}: cannot be read: {error.strerror or error}") from None


# What each kind of data heeds of the options that were given
_OF_LINES = {"skip_bad_lines"}
_OF_ONE_TEXT = {"special"}
_PAIRS = {"prompt_key", "completion_key", "separator", "as_chat"}  # what says that lines are prompts and completions
_OF_TEXTS = _OF_LINES | {"text_key", "special"}
_OF_PAIRS = _OF_LINES | {"prompt_key", "completion_key", "separator", "train_on_all", "special"}
_OF_CHATS = _OF_LINES | {"messages_key", "chat_template", "train_on_all"}
_OF_PAIRS_AS_CHATS = _OF_LINES | {"prompt_key", "completion_key", "as_chat", "chat_template", "train_on_all"}
# option -> (how it is written in Python and as an option of a command, what it needs)
_NEEDS = {
    "as_chat": ("as_chat (--as-chat)", "prompts and completions"),
    "chat_template": (
        "chat_template (--chat-template)",
        "messages, or prompts and completions with as_chat (--as-chat)",
    ),
    "text_key": ("text_key (--text-key)", "a .jsonl of texts"),
    "prompt_key": ("prompt_key (--prompt-key)", "prompts and completions"),
    "completion_key": ("completion_key (--completion-key)", "prompts and completions"),
    "messages_key": ("messages_key (--messages-key)", "a .jsonl of messages"),
    "separator": ("separator", "prompts and completions that are no chats"),
    "train_on_all": ("train_on_all=False (--loss-on assistant)", "completions or chats: of a text all tokens count"),
    "special": ("special=False", "texts, or prompts and completions: chats are made of special tokens"),
    "skip_bad_lines": ("skip_bad_lines (--skip-bad-lines)", "a .jsonl"),
}


def _check_heeded(where: str, what: str, asked: set[str], heeded: set[str]) -> None:
    """DataError for the first option that was given and that such data do not heed."""
    for name, (shown, need) in _NEEDS.items():
        if name in asked - heeded:
            raise DataError(f"{where}: {what}, {shown} needs {need}")


def _read_text(path: str, tokenizer: Tokenizer, special: bool) -> Samples:
    """One long text; tokens of the whole, as if it were tokenised at once."""
    parts = list(tokenizer.encode_stream(_text_blocks(path), special))
    tokens = np.concatenate([np.empty(0, np.int32), *parts])
    counted = np.ones(tokens.size, bool)
    counted[:1] = False
    report = Report(path, "one text, in windows that follow one another", "all tokens")
    return Samples(tokens, counted, np.array([0, tokens.size], np.int64), report, stream=True)


def _text_blocks(path: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    at = 0
    with open(path, "rb") as file:
        while True:
            data = file.read(_READ)
            held = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}: byte {at - held + error.start} is not UTF-8 ({error.reason}); need a text in UTF-8"
                ) from None
            yield text.removeprefix("\ufeff") if at == 0 else text
            at += len(data)
            if not data:
                return


class _Bad(Exception):
    """A line that is no sample, and why."""


# What is tokenised of a line: parts of text, and whether each counts. bos and eos are put around them by the kind.
_Parts = tuple[list[str], list[bool]]


class _Chat(NamedTuple):
    """A line that the chat template makes parts of."""

    messages: Any
    tools: Any


class _Lines:
    """Reads a .jsonl file."""

    def __init__(
        self,
        path: str,
        tokenizer: Tokenizer,
        separator: str,
        as_chat: bool,
        train_on_all: bool,
        special: bool,
        chat_template: str | None,
        skip_bad_lines: bool,
        asked: set[str],
    ) -> None:
        self.path, self.tokenizer = path, tokenizer
        self.separator, self.as_chat, self.all, self.special = separator, as_chat, train_on_all, special
        self.template = chat_template
        self.skip_bad, self.asked = skip_bad_lines, asked
        self.report = Report(path)
        self.chat: ChatTemplate | None = None
        self.tokens: list[np.ndarray] = []
        self.counted: list[np.ndarray] = []

    def read(self, text_key: str, prompt_keys: list[str], completion_key: str, messages_key: str) -> Samples:
        take: Callable[[dict[str, Any]], Any] | None = None
        waiting: list[tuple[int, _Parts | _Chat | _Bad]] = []
        line = 0
        for line, data in self._lines():
            try:
                row = _object(data)
                if take is None:
                    take = self._decide(row, line, text_key, prompt_keys, completion_key, messages_key)
                waiting.append((line, take(row)))
            except _Bad as error:
                waiting.append((line, error))
            if len(waiting) == _LINES or (isinstance(waiting[-1][1], _Bad) and not self.skip_bad):
                self._keep_all(waiting)
                waiting = []
        self._keep_all(waiting)
        if not self.tokens:
            left_out = "; ".join(str(self.report).split("\n")[1:])
            raise DataError(
                f"{self.path}: {_many(line, 'line')}, no sample to train on" + (f"; {left_out}" if left_out else "")
            )
        starts = np.concatenate([[0], np.cumsum([len(t) for t in self.tokens])]).astype(np.int64)
        return Samples(np.concatenate(self.tokens), np.concatenate(self.counted), starts, self.report)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open(self.path, "rb") as file:
            for number, data in enumerate(file, 1):
                bare = (data.removeprefix(codecs.BOM_UTF8) if number == 1 else data).strip()
                if bare:
                    yield number, bare

    def _bad(self, line: int, reason: str) -> None:
        if not self.skip_bad:
            raise DataError(
                f"{self.path}:{line}: {reason}; mend the line, or skip such lines (skip_bad_lines=True,"
                " --skip-bad-lines)"
            )
        report = self.report
        report.bad_lines += 1
        if report.bad_lines <= _NAMED:
            report.bad += (f"line {line}: {reason}",)
        elif report.bad_lines == _NAMED + 1:
            report.bad += ("...",)

    # -- what a line is ------------------------------------------------------------------------------------------

    def _decide(
        self,
        row: dict[str, Any],
        line: int,
        text_key: str,
        prompt_keys: list[str],
        completion_key: str,
        messages_key: str,
    ) -> Callable[[dict[str, Any]], Any]:
        """What the lines are, by the keys of the first one that can be read, and by those that were given."""
        report, where = self.report, f"{self.path}:{line}"
        answers = "all tokens" if self.all else "completions"
        possible = {
            "chats": (messages_key in row, {"messages_key"}),
            "pairs": (completion_key in row and any(k in row for k in prompt_keys), _PAIRS),
            "texts": (text_key in row, {"text_key"}),
        }
        kinds = [kind for kind, (there, _) in possible.items() if there]
        kind = next((kind for kind in kinds if possible[kind][1] & self.asked), kinds[0] if kinds else "")
        if kind == "chats":
            _check_heeded(where, "is a chat", self.asked, _OF_CHATS)
            report.kind, used = f"chats ({messages_key})", [messages_key, "tools"]
            answers = "all tokens" if self.all else "the assistant's turns"
            self._load_template()
            take = lambda row: self._take_chat(row, messages_key, line)  # noqa: E731
        elif kind == "pairs":
            heeded = _OF_PAIRS_AS_CHATS if self.as_chat else _OF_PAIRS
            _check_heeded(where, "is a prompt and its completion", self.asked, heeded)
            used = [*prompt_keys, completion_key]
            report.kind = f"prompts and completions ({', '.join(k for k in used if k in row)})"
            if self.as_chat:
                report.kind += ", as chats"
                self._load_template()
            take = lambda row: self._take_pair(row, prompt_keys, completion_key, line)  # noqa: E731
        elif kind == "texts":
            _check_heeded(where, "is a text", self.asked, _OF_TEXTS)
            report.kind, answers, used = f"texts ({text_key})", "all tokens", [text_key]
            take = lambda row: self._take_text(row, text_key, line)  # noqa: E731
        else:
            raise DataError(
                f"{where}: the keys are {_keys(row)}; need {messages_key}, or"
                f" {' or '.join(prompt_keys)} with {completion_key}, or {text_key};"
                " name others by messages_key=, prompt_key=, completion_key=, text_key= (--messages-key, ...)"
            )
        report.counts = answers
        report.unused = tuple(k for k in row if k not in used)
        return take

    def _load_template(self) -> None:
        tokenizer = self.tokenizer
        self.chat = ChatTemplate.of(tokenizer) if self.template is None else ChatTemplate(self.template, tokenizer)

    def _take_text(self, row: dict[str, Any], key: str, line: int) -> _Parts:
        return [_text(row, key, line)], [True]

    def _take_pair(self, row: dict[str, Any], keys: list[str], completion_key: str, line: int) -> Any:
        given = [_text(row, key, line) for key in keys if row.get(key) not in (None, "")]
        completion = _text(row, completion_key, line)
        if not given and not any(key in row for key in keys):
            _text(row, keys[0], line)
        prompt = "\n".join(given)
        if self.as_chat:
            return _Chat([{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}], None)
        if prompt and completion and not prompt[-1].isspace() and not completion[0].isspace():
            completion = self.separator + completion
        return [prompt, completion], [False, True]

    def _take_chat(self, row: dict[str, Any], key: str, line: int) -> Any:
        if key not in row:
            raise _Bad(f"the keys are {_keys(row)}; need {key}, as in line {line}")
        return _Chat(row[key], row.get("tools"))

    def _keep_all(self, waiting: list[tuple[int, _Parts | _Chat | _Bad]]) -> None:
        """Take the samples of these lines, and say which are none, in their order."""
        taken: list[tuple[int, _Parts]] = []
        size = 0
        for line, sample in self._split(waiting):
            if isinstance(sample, _Bad):
                self._encode(taken)
                taken, size = [], 0
                self._bad(line, str(sample))
                continue
            taken.append((line, sample))
            size += sum(map(len, sample[0]))
            if size > _TEXT_HELD:
                self._encode(taken)
                taken, size = [], 0
        self._encode(taken)

    def _split(self, waiting: list[tuple[int, _Parts | _Chat | _Bad]]) -> Iterator[tuple[int, _Parts | _Bad]]:
        """Chats among these as parts; all are rendered in few requests."""
        chats = [(sample.messages, sample.tools) for _, sample in waiting if isinstance(sample, _Chat)]
        found = iter(()) if self.chat is None else self.chat.split(chats, need_assistant=not self.all)
        for line, sample in waiting:
            if not isinstance(sample, _Chat):
                yield line, sample
                continue
            try:
                parts = next(found)
            except DataError as error:  # of the template, which no further line could mend
                raise DataError(f"{self.path}:{line}: {error}") from None
            yield line, _chat_parts(parts)

    # -- tokens --------------------------------------------------------------------------------------------------

    def _encode(self, waiting: list[tuple[int, _Parts]]) -> None:
        """Tokenise samples and keep those that have something to learn."""
        special = self.special or self.chat is not None
        try:
            found = self.tokenizer.encode_parts([texts for _, (texts, _) in waiting], special)
        except DataError:
            if len(waiting) > 1:
                for one in waiting:
                    self._encode([one])
                return
            try:
                self.tokenizer.encode_parts([waiting[0][1][0]], special)
            except DataError as error:
                self._bad(waiting[0][0], str(error))
            return
        for (_, (texts, flags)), ids in zip(waiting, found, strict=True):
            self._keep(*self._around(texts, flags, ids))

    def _around(self, texts: list[str], flags: list[bool], ids: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, counted) with what the tokenizer's file wants around a text."""
        tokenizer = self.tokenizer
        if self.chat is not None:
            tokens, written = self.chat.joined(ids, flags, texts[0])
            return tokens, np.ones(tokens.size, bool) if self.all else written
        pair = len(texts) == 2
        first = [tokenizer.bos] if tokenizer.add_bos else []
        last = [tokenizer.eos] if tokenizer.eos is not None and (pair or tokenizer.add_eos) else []
        if not pair and not ids[0].size:
            first, last = [], []
        tokens = np.concatenate([np.array(first, np.int32), *ids, np.array(last, np.int32)])
        counted = np.repeat([False, *flags, True], [len(first), *map(len, ids), len(last)])
        return tokens, counted | self.all

    def _keep(self, tokens: np.ndarray, counted: np.ndarray) -> None:
        counted[:1] = False  # nothing comes before it
        which = np.flatnonzero(counted)
        if tokens.size < 2:
            self.report.skip("too short: nothing to predict")
        elif not which.size:
            self.report.skip("no token that counts")
        else:  # what follows the last token that counts teaches nothing
            self.tokens.append(tokens[: which[-1] + 1])
            self.counted.append(counted[: which[-1] + 1])


def _chat_parts(found: list[tuple[str, bool]] | DataError) -> _Parts | _Bad:
    if isinstance(found, DataError):
        return _Bad(str(found))
    try:
        for text, _ in found:
            _whole(text, "the chat")
    except _Bad as error:
        return error
    return [text for text, _ in found], [written for _, written in found]


def _object(data: bytes) -> dict[str, Any]:
    try:
        row = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise _Bad(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _Bad(f"not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError) as error:
        raise _Bad(f"not JSON that can be read: {' '.join(str(error).split())[:100]}") from None
    if not isinstance(row, dict):
        raise _Bad(f"a JSON {_JSON_NAMES[type(row)]}; need an object with keys")
    return row


_JSON_NAMES = {list: "list", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}


def _text(row: dict[str, Any], key: str, line: int) -> str:
    if key not in row:
        raise _Bad(f"the keys are {_keys(row)}; need {key}, as in line {line}")
    if not isinstance(row[key], str):
        raise _Bad(f"{key} is a {_JSON_NAMES.get(type(row[key]), 'JSON object')}; need a text")
    return _whole(row[key], key)


def _whole(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Bad(f"{what} holds U+{ord(text[error.start]):04X}, half of a pair; need whole characters") from None
    return text


def _keys(row: dict[str, Any]) -> str:
    return ascii(", ".join(row))[1:-1][:100] or "none"


# -- packing -----------------------------------------------------------------------------------------------------------


def pack(samples: Samples, context: int, packing: bool = True) -> TokenData:
    """Rows of `context` tokens.

    A sample of n tokens takes n - 1 places: its last token is predicted, and predicts nothing. Samples go into rows
    from the longest to the shortest, each where the least room is left behind it; with packing=False each has a row
    of its own. A longer one than fits is cut at its end; one without a token that counts in what is left is skipped.
    One long text is cut into windows that follow one another, and its last row is padded.

    Raises DataError when nothing to train on is left, or a text is shorter than the context; SettingError for what are
    no samples, and for packing=False with one long text.
    """
    if not isinstance(samples, Samples):
        raise SettingError(f"pack: samples is a {type(samples).__name__}; need Samples (gl.llm.read_samples)")
    packing = as_bool("pack: packing", packing)
    if samples.stream and not packing:
        raise SettingError("pack: packing=False with one long text, whose windows hold nothing else; leave it out")
    if isinstance(context, bool) or not isinstance(context, (int, np.integer)) or context < 1:
        raise SettingError(f"context={context!r} is not usable; need a whole number of at least 1")
    return _windows(samples, int(context)) if samples.stream else _packed(samples, int(context), packing)


def _windows(samples: Samples, context: int) -> TokenData:
    n = samples.tokens.size
    path = samples.report.path
    if n < 2:
        raise DataError(f"{path}: {_many(n, 'token')}, nothing to predict; need a longer text")
    if n <= context:
        raise DataError(
            f"{path}: {n} tokens, shorter than the context of {context} and one to predict; need a longer text,"
            f" or a context of at most {n - 1}"
        )
    rows = -(-(n - 1) // context)
    tokens = np.zeros(rows * context, np.int32)
    labels = np.full(rows * context, IGNORED, np.int32)
    tokens[: n - 1] = samples.tokens[:-1]
    labels[: n - 1] = np.where(samples.counted[1:], samples.tokens[1:], IGNORED)
    positions = np.tile(np.arange(context, dtype=np.int32), rows)
    positions[n - 1 :] = 0
    report = replace(samples.report, context=context, rows=rows, padding=1 - (n - 1) / (rows * context))
    shape = (rows, context)
    return TokenData(tokens.reshape(shape), positions.reshape(shape), labels.reshape(shape), report)


def _packed(samples: Samples, context: int, packing: bool) -> TokenData:
    report = replace(samples.report, context=context, skipped=dict(samples.report.skipped))
    sizes = np.diff(samples.starts) - 1  # places
    fits = np.minimum(sizes, context)
    keep = np.ones(len(samples), bool)
    for i in np.flatnonzero(sizes > context):
        begin = int(samples.starts[i])
        counts = np.flatnonzero(samples.counted[begin : begin + context + 1])
        report.cut += 1
        if not counts.size:
            keep[i] = False
            report.cut -= 1
            report.skip("no token that counts within the context")
        else:
            report.cut_tokens += int(sizes[i]) - context
    which = np.flatnonzero(keep & (sizes > 0))
    if not which.size:
        raise DataError(
            f"{report.path}: no sample has a token to learn within {context} tokens; need a longer context, or shorter"
            " samples"
        )
    row, offset = _places(fits[which], context) if packing else (np.arange(which.size), np.zeros(which.size, np.int64))
    rows = int(row.max()) + 1
    tokens = np.zeros((rows, context), np.int32)
    positions = np.zeros((rows, context), np.int32)
    labels = np.full((rows, context), IGNORED, np.int32)
    ramp = np.arange(context, dtype=np.int32)
    for i, r, at in zip(which.tolist(), row.tolist(), offset.tolist(), strict=True):
        size, begin = int(fits[i]), int(samples.starts[i])
        place = slice(at, at + size)
        tokens[r, place] = samples.tokens[begin : begin + size]
        positions[r, place] = ramp[:size]
        after = slice(begin + 1, begin + size + 1)
        labels[r, place] = np.where(samples.counted[after], samples.tokens[after], IGNORED)
    report.rows, report.samples = rows, which.size
    report.tokens = int(fits[which].sum()) + which.size
    report.counted = int((labels != IGNORED).sum())
    report.padding = 1 - int(fits[which].sum()) / (rows * context)
    return TokenData(tokens, positions, labels, report)


def _places(sizes: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, offset) of each size: from the largest to the smallest, into the row where the least room is left.

    Bit c of `open_rows` says that some row has room for exactly c more; so the best row is found without a search.
    """
    row, offset = np.empty(sizes.size, np.int64), np.empty(sizes.size, np.int64)
    rooms: list[list[int]] = [[] for _ in range(context + 1)]
    open_rows, rows = 0, 0
    for i in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[i])
        fitting = open_rows >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            r = rooms[room].pop()
            if not rooms[room]:
                open_rows ^= 1 << room
        else:
            room, r = context, rows
            rows += 1
        row[i], offset[i] = r, context - room
        if room > size:
            rooms[room - size].append(r)
            open_rows |= 1 << (room - size)
    return row, offset


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
