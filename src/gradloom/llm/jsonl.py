"""Rows of JSON as samples: texts, prompts with completions, or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.errors import DataError
from .chat import ChatTemplate
from .chat_forms import ALPACA, MESSAGES, PAIR, SYSTEM, is_sharegpt, messages_of_sharegpt
from .data_options import OF_CHATS, OF_PAIRS, OF_PAIRS_AS_CHATS, OF_TEXTS, PAIR_OPTIONS, check_effective
from .json_rows import JSON_NAMES, BadRow, JsonRows
from .samples import Report, Samples, count_of
from .special_tokens import RenderedText

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


_LINES = 512  # samples of a tokenizer batch
_TEXT_HELD = 1 << 24  # maximum characters of a tokenizer batch
_NAMED = 3  # bad lines that a report names


# Parts of a line's text, and whether each counts. bos and eos are added according to the kind of sample.
_Parts = tuple[list[str], list[bool]]


class _ChatLine(NamedTuple):
    """A chat before it is rendered."""

    messages: Any
    tools: Any


_Line = _Parts | _ChatLine | BadRow


class JsonLines:
    """Reads the rows of JSON data."""

    def __init__(
        self,
        rows: JsonRows,
        tokenizer: Tokenizer,
        separator: str,
        as_chat: bool,
        train_on_all: bool,
        special: bool,
        chat_template: str | None,
        adapter_template: str | None,
        skip_bad_lines: bool,
        asked: set[str],
    ) -> None:
        self.rows, self.path, self.tokenizer = rows, rows.name, tokenizer
        self.separator, self.as_chat, self.all, self.special = separator, as_chat, train_on_all, special
        self.template = adapter_template if chat_template is None else chat_template
        self.through = ", through the adapter's chat template" * (self.template is not chat_template)
        self.skip_bad, self.asked = skip_bad_lines, asked
        self.report = Report(rows.name)
        self.chat: ChatTemplate | None = None
        self.tokens: list[np.ndarray] = []
        self.counted: list[np.ndarray] = []

    def read(
        self, text_key: str, prompt_keys: list[str] | None, completion_key: str | None, messages_key: str | None
    ) -> Samples:
        """Read all samples. None: the key is chosen by the first line."""
        take: Callable[[dict[str, Any]], Any] | None = None
        waiting: list[tuple[int, _Line]] = []
        line = 0
        for line, row in self.rows:
            try:
                if isinstance(row, BadRow):
                    raise row
                if take is None:
                    take = self._decide(row, line, text_key, prompt_keys, completion_key, messages_key)
                waiting.append((line, take(row)))
            except BadRow as error:
                waiting.append((line, error))
            if len(waiting) == _LINES or (isinstance(waiting[-1][1], BadRow) and not self.skip_bad):
                self._keep_all(waiting)
                waiting = []
        self._keep_all(waiting)
        if not self.tokens:
            left_out = "; ".join(str(self.report).split("\n")[1:])
            raise DataError(
                f"{self.path}: {count_of(line, self.rows.unit)}, no sample to train on"
                + (f"; {left_out}" if left_out else "")
            )
        starts = np.concatenate([[0], np.cumsum([len(t) for t in self.tokens])]).astype(np.int64)
        return Samples(np.concatenate(self.tokens), np.concatenate(self.counted), starts, self.report)

    def _bad(self, line: int, reason: str) -> None:
        if not self.skip_bad:
            raise DataError(
                f"{self.rows.where(line)}: {reason}; mend the {self.rows.unit}, or skip such {self.rows.unit}s"
                " (skip_bad_lines=True, --skip-bad-lines)"
            )
        report = self.report
        report.bad_lines += 1
        if report.bad_lines <= _NAMED:
            report.bad += (f"{self.rows.unit} {line}: {reason}",)
        elif report.bad_lines == _NAMED + 1:
            report.bad += ("...",)

    # -- kinds of lines ------------------------------------------------------------------------------------------

    def _decide(
        self,
        row: dict[str, Any],
        line: int,
        text_key: str,
        given_prompts: list[str] | None,
        given_completion: str | None,
        given_messages: str | None,
    ) -> Callable[[dict[str, Any]], Any]:
        """Choose the kind of the lines (texts, pairs or chats) by the keys of the first line and the options."""
        messages_key = given_messages or next((key for key in MESSAGES if key in row), MESSAGES[0])
        prompt_keys, completion_key = given_prompts or [PAIR[0]], given_completion or PAIR[1]
        if given_prompts is None and given_completion is None and {ALPACA[0], ALPACA[2]} <= set(row) - set(PAIR):
            *prompt_keys, completion_key = ALPACA
        report, where, first = self.report, self.rows.where(line), f"{self.rows.unit} {line}"
        answers = "all tokens" if self.all else "completions"
        possible = {
            "chats": (messages_key in row, {"messages_key"}),
            "pairs": (completion_key in row and any(k in row for k in prompt_keys), PAIR_OPTIONS),
            "texts": (text_key in row, {"text_key"}),
        }
        kinds = [kind for kind, (there, _) in possible.items() if there]
        kind = next((kind for kind in kinds if possible[kind][1] & self.asked), kinds[0] if kinds else "")
        if kind == "chats":
            check_effective(where, "is a chat", self.asked, OF_CHATS)
            report.kind, used = (
                f"chats ({messages_key})",
                [messages_key, "tools", *[SYSTEM] * is_sharegpt(row, messages_key)],
            )
            answers = "all tokens" if self.all else "the assistant's turns"
            self._load_template()
            take = lambda row: self._take_chat(row, messages_key, first)  # noqa: E731
        elif kind == "pairs":
            options = OF_PAIRS_AS_CHATS if self.as_chat else OF_PAIRS
            check_effective(where, "is a prompt and its completion", self.asked, options)
            used = [*prompt_keys, completion_key]
            report.kind = f"prompts and completions ({', '.join(k for k in used if k in row)})"
            if self.as_chat:
                report.kind += ", as chats"
                self._load_template()
            take = lambda row: self._take_pair(row, prompt_keys, completion_key, first)  # noqa: E731
        elif kind == "texts":
            check_effective(where, "is a text", self.asked, OF_TEXTS)
            report.kind, answers, used = f"texts ({text_key})", "all tokens", [text_key]
            take = lambda row: self._take_text(row, text_key, first)  # noqa: E731
        else:
            raise DataError(
                f"{where}: the keys are {_keys(row)}; need {messages_key}, or"
                f" {' or '.join(prompt_keys)} with {completion_key}, or {text_key};"
                " name others by messages_key=, prompt_key=, completion_key=, text_key= (--messages-key, ...)"
            )
        report.counts = answers
        report.keys = tuple(k for k in used if k in row)
        report.unused = tuple(k for k in row if k not in used)
        return take

    def _load_template(self) -> None:
        tokenizer = self.tokenizer
        self.chat = ChatTemplate.of(tokenizer, self.template, special=self.special)
        self.report.kind += self.through

    def _take_text(self, row: dict[str, Any], key: str, first: str) -> _Parts:
        return [_text(row, key, first)], [True]

    def _take_pair(self, row: dict[str, Any], keys: list[str], completion_key: str, first: str) -> Any:
        given = [_text(row, key, first) for key in keys if row.get(key) not in (None, "")]
        completion = _text(row, completion_key, first)
        if not given and not any(key in row for key in keys):
            _text(row, keys[0], first)
        prompt = "\n".join(given)
        if self.as_chat:
            return _ChatLine([{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}], None)
        if prompt and completion and not prompt[-1].isspace() and not completion[0].isspace():
            completion = self.separator + completion
        return [prompt, completion], [False, True]

    def _take_chat(self, row: dict[str, Any], key: str, first: str) -> Any:
        if key not in row:
            raise BadRow(f"the keys are {_keys(row)}; need {key}, as in {first}")
        if not is_sharegpt(row, key):
            return _ChatLine(row[key], row.get("tools"))
        try:
            return _ChatLine(messages_of_sharegpt(row, key), row.get("tools"))
        except DataError as error:
            raise BadRow(str(error)) from None

    def _keep_all(self, waiting: list[tuple[int, _Line]]) -> None:
        """Tokenise the samples of these lines, and report the bad lines, in the order of the file."""
        taken: list[tuple[int, _Parts]] = []
        size = 0
        for line, sample in self._split(waiting):
            if isinstance(sample, BadRow):
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

    def _split(self, waiting: list[tuple[int, _Line]]) -> Iterator[tuple[int, _Parts | BadRow]]:
        """The same lines with each chat rendered to parts: many chats per request to the template process."""
        chats = [(sample.messages, sample.tools) for _, sample in waiting if isinstance(sample, _ChatLine)]
        split = iter(()) if self.chat is None else self.chat.split(chats, need_assistant=not self.all)
        for line, sample in waiting:
            if not isinstance(sample, _ChatLine):
                yield line, sample
                continue
            try:
                parts = next(split)
            except DataError as error:  # of the template: all other lines fail, too
                raise DataError(f"{self.rows.where(line)}: {error}") from None
            yield line, _chat_parts(parts)

    # -- tokens --------------------------------------------------------------------------------------------------

    def _encode(self, waiting: list[tuple[int, _Parts]]) -> None:
        """Tokenise samples and keep those that have something to learn."""
        special = self.special or self.chat is not None
        try:
            encoded = self.tokenizer.encode_parts([texts for _, (texts, _) in waiting], special)
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
        for (_, (texts, flags)), ids in zip(waiting, encoded, strict=True):
            if not self.special:
                self.report.as_text += any(self._has_plain_control(text) for text in texts)
            self._keep(*self._around(texts, flags, ids))

    def _has_plain_control(self, text: str) -> bool:
        return isinstance(text, RenderedText) if self.chat is not None else self.tokenizer.control_in(text) is not None

    def _around(self, texts: list[str], flags: list[bool], ids: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, counted) of a sample with bos and eos."""
        tokenizer = self.tokenizer
        if self.chat is not None:
            tokens, written = self.chat.joined(ids, flags, texts[0])
            return tokens, np.ones(tokens.size, bool) if self.all else written
        pair = len(texts) == 2
        first = tokenizer.first_ids
        last = [tokenizer.eos] if pair and tokenizer.eos is not None else tokenizer.last_ids
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
        else:  # tokens after the last one that counts are not needed
            self.tokens.append(tokens[: which[-1] + 1])
            self.counted.append(counted[: which[-1] + 1])


def _chat_parts(parts: list[tuple[str, bool]] | DataError) -> _Parts | BadRow:
    if isinstance(parts, DataError):
        return BadRow(str(parts))
    try:
        for text, _ in parts:
            _whole(text, "the chat")
    except BadRow as error:
        return error
    return [text for text, _ in parts], [written for _, written in parts]


def _text(row: dict[str, Any], key: str, first: str) -> str:
    if key not in row:
        raise BadRow(f"the keys are {_keys(row)}; need {key}, as in {first}")
    if not isinstance(row[key], str):
        raise BadRow(f"{key} is a {JSON_NAMES.get(type(row[key]), 'JSON object')}; need a text")
    return _whole(row[key], key)


def _whole(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"{what} holds U+{ord(text[error.start]):04X}, half of a pair; need whole characters") from None
    return text


def _keys(row: dict[str, Any]) -> str:
    return ascii(", ".join(row))[1:-1][:100] or "none"
