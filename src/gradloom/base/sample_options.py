"""Options of the samples that language models learn and are measured on, and the commands that have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .options import Flag, Place, command_option, option

DATA_HELP = (
    "A .txt; a .jsonl, .json, .csv, .parquet or .arrow of text, prompt and completion, or messages; or a folder with"
    " train, valid and test."
)
PLANNED = "finetune plan"
TRAINED = "finetune verify"
CHECKED = f"{PLANNED} verify"
MEASURED = f"{CHECKED} evaluate compare"
READ = f"{MEASURED} predict"


@dataclass(frozen=True)
class DataOptions:
    """How samples are read (arguments of gl.llm.read_samples)."""

    text_key: str | None = command_option(f"{READ} embed", "Key of a text in .jsonl. [default: text]")
    prompt_key: str | None = command_option(
        READ, "Key of the prompt in .jsonl; several, as a,b, are joined. [default: prompt; or instruction,input]"
    )
    completion_key: str | None = command_option(
        READ, "Key of the completion in .jsonl. [default: completion; or output]"
    )
    messages_key: str | None = command_option(
        READ, "Key of the messages in .jsonl. [default: messages or conversations]"
    )
    chosen_key: str | None = command_option(
        CHECKED, "Key of the chosen completion in .jsonl of preferences. [default: chosen]"
    )
    rejected_key: str | None = command_option(
        CHECKED, "Key of the rejected completion in .jsonl of preferences. [default: rejected]"
    )
    label_key: str | None = command_option(
        f"{CHECKED} predict",
        "Key of the label in .jsonl of judged completions (true, false) or labelled texts. [default: label]",
    )
    anchor_key: str | None = command_option(CHECKED, "Key of the anchor in .jsonl of pairs. [default: anchor]")
    positive_key: str | None = command_option(
        CHECKED, "Key of the text that belongs to the anchor. [default: positive]"
    )
    negative_key: str | None = command_option(
        CHECKED, "Key of a text that does not belong to the anchor. [default: negative]"
    )
    as_chat: bool = command_option(
        READ, "Format prompt and completion as question and answer by the chat template.", False
    )
    chat_template: Place | None = command_option(READ, "A jinja2 file, in place of the model's own chat template.")
    loss_on: Literal["assistant", "all"] | None = command_option(
        f"{TRAINED} evaluate compare",
        "assistant: completions and the assistant's turns count; all: every token. [default: assistant; of texts all]",
    )
    encoding: str | None = option(
        None,
        "",
        Flag(f"{MEASURED} embed", "Encoding of a .csv or .txt file, such as cp1252. [default: UTF-8]"),
        Flag("predict", "Encoding of a text file, such as cp1252. [default: UTF-8; of a table as in training]"),
    )
    skip_bad_lines: bool = command_option(MEASURED, "Skip and count invalid lines.", False)
    special: bool = command_option(
        READ, "Read names of control tokens in the data, such as </s>, as these tokens. [default: as text]", False
    )
