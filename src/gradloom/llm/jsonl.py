"""Rows of JSON as samples: texts, prompts with completions, or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import DataError
from ..base.terminal import plural
from .chat import ChatTemplate
from .chat_forms import SYSTEM, is_sharegpt, messages_of_sharegpt
from .data_options import OF_CHATS, OF_PAIRS, OF_PAIRS_AS_CHATS, OF_TEXTS, check_effective
from .forms import TEXTS, Form
from .json_rows import BadRow, RowReader
from .labelled import Labelled
from .labels import Classes, Labels
from .message_marks import WEIGHT, Marked, is_number, plain, weight_of, weights_of_turns, without_marks
from .pairs import Pairs
from .preferences import LABEL, MARGIN, Judged, Preferences
from .sample_lines import (
    ChatLine,
    Keys,
    Line,
    Parts,
    keys_of,
    keys_of_kinds,
    kind_of,
    pair_of,
    prompt_of,
    text_of,
    turns_of,
    whole_text,
)
from .samples import Report, Samples
from .special_tokens import RenderedText
from .table_rows import number_in

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


_LINES = 512  # samples of a tokenizer batch
_TEXT_HELD = 1 << 24  # maximum characters of a tokenizer batch
_NAMED = 3  # bad lines that a report names


_Encoded = tuple[np.ndarray, np.ndarray]  # tokens i32, weights f32, or bool where they are 0 and 1
_Taken = tuple[int, list[Parts], Line]  # a line with its number and texts


class JsonLines:
    """Reads the rows of JSON data."""

    def __init__(
        self,
        rows: RowReader,
        tokenizer: Tokenizer,
        separator: str,
        as_chat: bool,
        train_on_all: bool,
        special: bool,
        chat_template: str | None,
        adapter_template: str | None,
        skip_bad_lines: bool,
        asked: set[str],
        form: Form = TEXTS,
        classes: Classes | None = None,
    ) -> None:
        self.form, self.labels = form, Labels(form.labels, classes)
        self.rows, self.path, self.tokenizer = rows, rows.name, tokenizer
        self.separator, self.as_chat, self.special = separator, as_chat, special
        self.all = train_on_all or form.kind in ("labelled", "pairs")
        self.template = adapter_template if chat_template is None else chat_template
        self.through = ", through the adapter's chat template" * (self.template is not chat_template)
        self.skip_bad, self.asked = skip_bad_lines, asked
        self.report = Report(rows.name)
        self.chat: ChatTemplate | None = None
        self.tokens: list[np.ndarray] = []
        self.counted: list[np.ndarray] = []
        self.weights: list[np.ndarray | None] = []  # f32 of each token sequence, where they are not 0 and 1
        self.weighs = False  # whether lines may have a weight
        self.values: list[tuple[float, ...]] = []  # of each sample

    def read(self, keys: Keys) -> Samples:
        """Read all samples. Keys that are None are chosen by the first line."""
        take: Callable[[dict[str, Any]], Line | None] | None = None
        waiting: list[tuple[int, Line | BadRow]] = []
        numeric = self._numeric(keys)
        line = 0
        for line, row in self.rows:
            try:
                if isinstance(row, BadRow):
                    raise row
                row |= {key: number_in(row[key]) for key in numeric if key in row}
                row = {key: value for key, value in row.items() if value is not None}
                if take is None:
                    take = self._decide(row, line, keys)
                sample = take(row)
                if sample is None:
                    self.report.skip("identical sides")
                    continue
                if self.weighs and WEIGHT in row:
                    sample = sample._replace(weight=weight_of(row[WEIGHT], WEIGHT))
                waiting.append((line, sample))
            except BadRow as error:
                waiting.append((line, error))
            if len(waiting) == _LINES or (isinstance(waiting[-1][1], BadRow) and not self.skip_bad):
                self._keep_all(waiting)
                waiting = []
        self._keep_all(waiting)
        if not self.tokens:
            left_out = "; ".join(str(self.report).split("\n")[1:])
            raise DataError(
                f"{self.path}: {plural(line, self.rows.unit)}, no sample to train on"
                + (f"; {left_out}" if left_out else "")
            )
        starts = np.concatenate([[0], np.cumsum([len(t) for t in self.tokens])]).astype(np.int64)
        values = np.array(self.values, np.float32) if self.form.kind != "labelled" and self.values[0] else None
        classes = None
        if self.form.kind == "labelled":
            values, classes = self.labels.arrays(self.values, self.path)
        if self.form.kind == "judged" and values is not None and (values == values[0]).all():
            label = "true" if values[0, 0] else "false"
            raise DataError(
                f"{self.path}: the label of all {plural(len(values), 'sample')} is {label}; need completions with the"
                " label true and others with false"
            )
        judged = self.form.kind == "judged"
        read = Samples(
            np.concatenate(self.tokens), np.concatenate(self.counted), starts, self.report, False,
            1 if judged else self.form.parts, values, classes, self._weights(),
            self.form.kind in ("preferences", "pairs"),
        )  # fmt: skip
        return read.with_other_completions() if judged and self.form.parts == 2 else read

    def _numeric(self, keys: Keys) -> list[str]:
        """The keys that hold numbers or truth values, where all values are texts."""
        if not self.rows.has_cells:
            return []
        is_number = self.form.kind == "judged" or self.form.labels == "numbers"
        return [WEIGHT, MARGIN, *[keys.label or LABEL] * is_number]

    def _weights(self) -> np.ndarray | None:
        """The weights of all tokens; None where each that counts has the weight 1."""
        if all(weights is None for weights in self.weights):
            return None
        every = zip(self.weights, self.counted, strict=True)
        return np.concatenate([counted.astype(np.float32) if own is None else own for own, counted in every])

    def _bad(self, line: int, reason: str) -> None:
        if not self.skip_bad:
            unit = self.rows.unit
            skip = f", or skip such {unit}s (skip_bad_lines=True, --skip-bad-lines)" * self.rows.may_skip
            raise DataError(f"{self.rows.where(line)}: {reason}; mend the {unit}{skip}")
        report = self.report
        report.bad_lines += 1
        if report.bad_lines <= _NAMED:
            report.bad += (f"{self.rows.unit} {line}: {reason}",)
        elif report.bad_lines == _NAMED + 1:
            report.bad += ("...",)

    # -- kinds of lines ------------------------------------------------------------------------------------------

    def _decide(self, row: dict[str, Any], line: int, keys: Keys) -> Callable[[dict[str, Any]], Line | None]:
        """Choose the kind of the lines by the form, the keys of the first line and the options."""
        if self.form.kind == "texts":
            return self._decide_text(row, line, keys)
        report, where, first = self.report, self.rows.where(line), f"{self.rows.unit} {line}"
        given = row, where, first, keys, self.separator, self.as_chat, self.asked
        reader: Preferences | Judged | Labelled | Pairs
        if self.form.kind == "pairs":
            reader = Pairs(row, where, first, keys, self.asked, self.form.parts)
        elif self.form.kind == "labelled":
            reader = Labelled(*given, self.labels)
        else:
            reader = (Preferences if self.form.kind == "preferences" else Judged)(*given)
        report.kind, report.counts = reader.kind, reader.counts
        if self.form.last and self.form.kind != "pairs":
            report.counts = f"the last token of each {'text' if self.form.parts == 1 else 'side'}"
        if reader.chats:
            self._load_template()
        report.keys = tuple(k for k in reader.used if k in row)
        report.unused = tuple(k for k in row if k not in reader.used)
        return reader.take

    def _decide_text(self, row: dict[str, Any], line: int, keys: Keys) -> Callable[[dict[str, Any]], Line]:
        """Choose texts, pairs or chats."""
        messages_key, prompt_keys, completion_key, text_key = keys_of_kinds(row, keys)
        report, where, first = self.report, self.rows.where(line), f"{self.rows.unit} {line}"
        answers = "all tokens" if self.all else "completions"
        kind = kind_of(row, self.asked, messages_key, prompt_keys, completion_key, text_key)
        if kind == "chat":
            check_effective(where, "is a chat", self.asked, OF_CHATS)
            report.kind, used = (
                f"chats ({messages_key})",
                [messages_key, "tools", *[SYSTEM] * is_sharegpt(row, messages_key)],
            )
            answers = "all tokens" if self.all else "the assistant's turns"
            self._load_template()
            take = lambda row: self._take_chat(row, messages_key, first)  # noqa: E731
        elif kind == "pair":
            options = OF_PAIRS_AS_CHATS if self.as_chat else OF_PAIRS
            check_effective(where, "is a prompt and its completion", self.asked, options)
            used = [*prompt_keys, completion_key]
            report.kind = f"prompts and completions ({', '.join(k for k in used if k in row)})"
            if self.as_chat:
                report.kind += ", as chats"
                self._load_template()
            take = lambda row: self._take_pair(row, prompt_keys, completion_key, first)  # noqa: E731
        elif kind == "text":
            check_effective(where, "is a text", self.asked, OF_TEXTS)
            report.kind, answers, used = f"texts ({text_key})", "all tokens", [text_key]
            take = lambda row: self._take_text(row, text_key, first)  # noqa: E731
        else:
            raise DataError(
                f"{where}: the keys are {keys_of(row)}; need {messages_key}, or"
                f" {' or '.join(prompt_keys)} with {completion_key}, or {text_key};"
                " name others by messages_key=, prompt_key=, completion_key=, text_key= (--messages-key, ...)"
            )
        report.counts = answers
        if WEIGHT not in used and is_number(row.get(WEIGHT, 1)):
            self.weighs, used = True, [*used, WEIGHT]
        report.keys = tuple(k for k in used if k in row)
        report.unused = tuple(k for k in row if k not in used)
        return take

    def _load_template(self) -> None:
        tokenizer = self.tokenizer
        self.chat = ChatTemplate.of(tokenizer, self.template, special=self.special)
        self.report.kind += self.through

    def _take_text(self, row: dict[str, Any], key: str, first: str) -> Line:
        return Line([([text_of(row, key, first)], [True])])

    def _take_pair(self, row: dict[str, Any], keys: list[str], completion_key: str, first: str) -> Line:
        if not any(key in row for key in keys):
            text_of(row, completion_key, first)  # its absence is reported first
        prompt, completion = prompt_of(row, keys, first), text_of(row, completion_key, first)
        return Line([turns_of(prompt, completion) if self.as_chat else pair_of(prompt, completion, self.separator)])

    def _take_chat(self, row: dict[str, Any], key: str, first: str) -> Line:
        if key not in row:
            raise BadRow(f"the keys are {keys_of(row)}; need {key}, as in {first}")
        try:
            messages = messages_of_sharegpt(row, key) if is_sharegpt(row, key) else row[key]
        except DataError as error:
            raise BadRow(str(error)) from None
        if isinstance(messages, (list, tuple)):
            messages = without_marks(messages, key)
        return Line([ChatLine(messages, row.get("tools"))])

    def _keep_all(self, waiting: list[tuple[int, Line | BadRow]]) -> None:
        """Tokenise the samples of these lines, and report the bad lines, in the order of the file."""
        taken: list[_Taken] = []
        size = 0
        for line, parts, sample in self._split(waiting):
            if isinstance(parts, BadRow):
                self._encode(taken)
                taken, size = [], 0
                self._bad(line, str(parts))
                continue
            taken.append((line, parts, sample))
            size += sum(len(text) for texts, _ in parts for text in texts)
            if size > _TEXT_HELD:
                self._encode(taken)
                taken, size = [], 0
        self._encode(taken)

    def _split(self, waiting: list[tuple[int, Line | BadRow]]) -> Iterator[tuple[int, list[Parts] | BadRow, Line]]:
        """The same lines with each chat rendered to parts: many chats per request to the template process."""
        lines = [sample for _, sample in waiting if not isinstance(sample, BadRow)]
        chats = [
            (plain(one.messages), one.tools) for line in lines for one in line.sequences if isinstance(one, ChatLine)
        ]
        split = iter(()) if self.chat is None else self.chat.split(chats, need_assistant=not self.all)
        for line, sample in waiting:
            if isinstance(sample, BadRow):
                yield line, sample, Line([])
                continue
            parts: list[Parts | BadRow] = []
            for one in sample.sequences:
                if not isinstance(one, ChatLine):
                    parts.append(one)
                    continue
                try:
                    rendered = next(split)
                except DataError as error:  # of the template: all other lines fail, too
                    raise DataError(f"{self.rows.where(line)}: {error}") from None
                parts.append(self._chat_parts(rendered, one))
            bad = next((one for one in parts if isinstance(one, BadRow)), None)
            yield line, bad or [one for one in parts if not isinstance(one, BadRow)], sample

    def _chat_parts(self, parts: list[tuple[str, bool]] | DataError, chat: ChatLine) -> Parts | BadRow:
        """The texts of a rendered chat, with the weights of the assistant's turns. Those in its prompt do not count."""
        if isinstance(parts, DataError):
            return BadRow(str(parts))
        try:
            for text, _ in parts:
                whole_text(text, "the chat")
            turns = self._turns(chat)
        except BadRow as error:
            return error
        flags: list[float | None] = [1.0 if written else None for _, written in parts]
        if any(weight != 1 for weight in turns):
            written = [i for i, flag in enumerate(flags) if flag is not None]
            if len(written) != len(turns):
                return BadRow(
                    f"the chat template marks {len(written)} texts for {len(turns)} turns of the assistant, which hides"
                    " the end of the prompt, and the turns with weights; need a template with one {% generation %}"
                    " block for each turn"
                )
            for i, weight in zip(written, turns, strict=True):
                flags[i] = weight
        return [text for text, _ in parts], flags

    def _turns(self, chat: ChatLine) -> list[float]:
        """The weight of each turn of the assistant. Raises BadRow for marks that the objective does not read."""
        marked = [message for message in chat.messages[chat.prompt :] if isinstance(message, Marked)]
        if self.form.last:
            if marked and self.labels.kind != "none":
                why = "the last token of the text is read, whatever counts; leave it out"
                raise BadRow(f"{marked[0].seen}; {why}")
            return weights_of_turns([*map(dict, chat.messages)], chat.prompt, self.all)
        turns = weights_of_turns(chat.messages, chat.prompt, self.all)
        odd = next((message for message in marked if message.weight not in (0, 1)), None)
        if odd is not None and self.form.kind != "texts":
            raise BadRow(f"{odd.seen}; need 0 or 1: weights between require the objective sft")
        own = [message.weight for message in marked if message["role"] == "assistant"]
        self.report.messages_excluded += own.count(0)
        self.report.messages_weighted += sum(weight not in (0, 1) for weight in own)
        return turns

    # -- tokens --------------------------------------------------------------------------------------------------

    def _encode(self, waiting: list[_Taken]) -> None:
        """Tokenise samples and keep those that have something to learn."""
        special = self.special or self.chat is not None
        try:
            encoded = iter(
                self.tokenizer.encode_parts([texts for _, sample, _ in waiting for texts, _ in sample], special)
            )
        except DataError as error:
            if len(waiting) == 1:
                self._bad(waiting[0][0], str(error))
                return
            for one in waiting:
                self._encode([one])
            return
        for _, parts, sample in waiting:
            if not self.special:
                self.report.as_text += any(self._has_plain_control(text) for texts, _ in parts for text in texts)
            self._keep([self._around(texts, flags, next(encoded)) for texts, flags in parts], sample)

    def _has_plain_control(self, text: str) -> bool:
        return isinstance(text, RenderedText) if self.chat is not None else self.tokenizer.control_in(text) is not None

    def _around(self, texts: list[str], flags: Sequence[float | None], ids: list[np.ndarray]) -> _Encoded:
        """(tokens, weights) of a sample with bos and eos."""
        tokenizer = self.tokenizer
        if self.chat is not None:
            numbers = [0 if flag is None else i + 1 for i, flag in enumerate(flags)]
            tokens, part = self.chat.joined(ids, numbers, texts[0])
            weights = [float(self.all), *(float(self.all) if flag is None else flag for flag in flags)]
            return tokens, np.array(weights, np.float32)[part]
        pair = len(texts) == 2
        first = tokenizer.first_ids
        last = [tokenizer.eos] if (pair or self.form.end) and tokenizer.eos is not None else tokenizer.last_ids
        if not pair and not ids[0].size:
            first, last = [], []
        tokens = np.concatenate([np.array(first, np.int32), *ids, np.array(last, np.int32)])
        counted = np.repeat([False, *map(bool, flags), True], [len(first), *map(len, ids), len(last)])
        return tokens, counted | self.all

    def _keep(self, parts: list[_Encoded], sample: Line) -> None:
        if not sample.weight:
            self.report.skip("weight 0")
            return
        parts = [(tokens, weights * np.float32(sample.weight)) for tokens, weights in parts]
        if not self.form.last:
            for _, weights in parts:
                weights[:1] = 0  # nothing comes before it
        if any(tokens.size < 2 - self.form.last for tokens, _ in parts):
            self.report.skip("empty" if self.form.last else "too short: nothing to predict")
            return
        if not all(weights.any() for _, weights in parts):
            self.report.skip("no token that counts")
            return
        self.report.samples_weighted += sample.weight != 1
        for tokens, weights in parts:  # tokens after the last one that counts are not predicted
            end = len(weights) if self.form.last else int(np.flatnonzero(weights)[-1]) + 1
            self.tokens.append(tokens[:end])
            self.counted.append(weights[:end] != 0)
            self.weights.append(None if np.isin(weights[:end], (0, 1)).all() else weights[:end])
        self.values.append(sample.values)
