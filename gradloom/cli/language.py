"""What the commands for language models share: options of the data, adapters, the prompt of a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..llm.lora import LoRA, TrainedTensors
    from ..llm.model import Model

DATA_HELP = "A .txt, or a .jsonl of text, prompt and completion, or messages."
# Options of the data, as parameters of a command
TextKey = Annotated[str, typer.Option("--text-key", help="Key of a text in .jsonl.")]
PromptKey = Annotated[
    str, typer.Option("--prompt-key", help="Key of the prompt in .jsonl; several, as instruction,input, are joined.")
]
CompletionKey = Annotated[str, typer.Option("--completion-key", help="Key of the completion in .jsonl.")]
MessagesKey = Annotated[str, typer.Option("--messages-key", help="Key of the messages in .jsonl.")]
LossOn = Annotated[
    str, typer.Option("--loss-on", help="assistant: completions and the assistant's turns count; all: every token.")
]
SkipBadLines = Annotated[bool, typer.Option("--skip-bad-lines", help="Skip and count lines that are no sample.")]
Lora = Annotated[str | None, typer.Option("--lora", help="An adapter to put on the model: .gguf, or a PEFT folder.")]
Threads = Annotated[int | None, typer.Option("--threads", help="[default: the machine's cores]")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def data_options(
    text_key: str, prompt_key: str, completion_key: str, messages_key: str, loss_on: str, skip_bad_lines: bool
) -> dict[str, Any]:
    """The options as llm.data.read_samples takes them; SettingError for a --loss-on that is not known."""
    from .common import need_one_of

    need_one_of("loss-on", loss_on, ("assistant", "all"))
    return {
        "text_key": text_key, "prompt_key": prompt_key, "completion_key": completion_key, "messages_key": messages_key,
        "train_on_all": loss_on == "all", "skip_bad_lines": skip_bad_lines,
    }  # fmt: skip


def adapter_for(method: str, targets: str | None, train_dtype: str | None, **lora: Any) -> LoRA | TrainedTensors:
    """What the options --method, --targets and --train-dtype ask to train; lora: settings of LoRA."""
    from ..llm.lora import ATTENTION, LoRA, TrainedTensors

    if method == "full":
        return TrainedTensors("all" if targets is None else targets, train_dtype)
    return LoRA(targets=ATTENTION if targets is None else targets, **lora)


def load_adapter(model: Model, path: str | None) -> LoRA | None:
    """The adapter of a file, bound to the model; FileError when it is for another base."""
    from ..llm.lora import LoRA

    return None if path is None else LoRA.load(path, model)


def chat_prompt(model: Model, question: str) -> list[int]:
    """A question as the model's chat template puts it, up to where the assistant begins to write."""
    from ..llm.chat import ChatTemplate

    template = ChatTemplate.of(model.tokenizer)
    text = template.render([{"role": "user", "content": question}], generation_prompt=True)
    tokenizer = model.tokenizer
    begins = tokenizer.bos is not None and text.startswith(tokenizer.pieces[tokenizer.bos])
    return tokenizer.encode(text, special=True, bos=False if begins else None)
