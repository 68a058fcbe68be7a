"""Shared by the commands for language models: options of the data, adapters, the prompt of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from ..base.sample_options import DataOptions
from .parser import Option
from .setting import flag_of

if TYPE_CHECKING:
    from ..llm.lora import LoRA
    from ..llm.model import Model
    from ..llm.trained_tensors import TrainedTensors

Template = Annotated[str | None, flag_of(DataOptions, "chat_template")]
# Of drawing tokens (see llm.sampling.Sampling)
Temperature = Annotated[float, Option(help="Sampling temperature; 0 always takes the likeliest token.")]
TopK = Annotated[int | None, Option(help="Number of likeliest tokens to draw from; 0: all. [default: 40]")]
TopP = Annotated[float | None, Option(help="Probability of the likeliest tokens to draw from; 1: all. [default: 0.95]")]
Lora = Annotated[str | None, Option("--lora", help="An adapter to put on the model: .gguf, or a PEFT folder.")]

_TEMPLATE_BYTES = 1 << 20


def data_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """DataOptions as llm.data.read_samples takes them; FileError for a template that cannot be read."""
    loss_on, template = given.get("loss_on"), given["chat_template"]
    of_all = ("text_key", "prompt_key", "completion_key", "messages_key", "as_chat", "skip_bad_lines", "special")
    more = {name: value for name, value in given.items() if name not in (*of_all, "loss_on", "chat_template")}
    return {
        **{name: given[name] for name in of_all},
        "chat_template": read_template(template),
        "train_on_all": None if loss_on is None else loss_on == "all",
        **{name: value for name, value in more.items() if value is not None},  # a resume compares those given
    }


def read_template(path: str | None) -> str | None:
    """The text of --chat-template; FileError when it is no text of at most a megabyte."""
    from ..base.errors import FileError

    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            text = file.read(_TEMPLATE_BYTES + 1).decode()
    except OSError as error:
        raise FileError(f"{{chat_template}}: cannot be read: {error.strerror or error}", chat_template=path) from None
    except UnicodeDecodeError as error:
        text = f"{{chat_template}}: byte {error.start} is not UTF-8; must be a jinja2 template"
        raise FileError(text, chat_template=path) from None
    if len(text) > _TEMPLATE_BYTES or not text.strip():
        what = "is longer than a megabyte" if text.strip() else "is empty"
        raise FileError(f"{{chat_template}}: {what}; must be a jinja2 template", chat_template=path)
    return text


def adapter_for(
    model: Model,
    method: str,
    targets: str | None,
    train_dtype: str | None,
    lora: str | None = None,
    seed: int = 0,
    **made: Any,
) -> LoRA | TrainedTensors:
    """The adapter or tensors to train by these options; made: settings of a new LoRA, None or False if not given.

    Raises SettingError for an option that would have no effect, FileError for an adapter file that does not fit.
    """
    from ..base.errors import SettingError
    from ..llm.lora import LoRA
    from ..llm.trained_tensors import TrainedTensors

    given = {name: value for name, value in made.items() if value is not None and value is not False}
    if method == "full":
        for name, value in (given | ({} if lora is None else {"lora": lora})).items():
            raise SettingError(f"{{{name}}} requires {{method}} lora", {name: value, "method": ...})
        return TrainedTensors("all" if targets is None else targets, train_dtype)
    if train_dtype is not None:
        raise SettingError("{train_dtype} requires {method} full", train_dtype=train_dtype, method=...)
    if lora is None:
        settings = {name: value for name, value in made.items() if value is not None}
        return LoRA(**settings, seed=seed) if targets is None else LoRA(**settings, targets=targets, seed=seed)
    dropout = given.pop("dropout", 0.0)
    for name, value in (given | ({} if targets is None else {"targets": targets})).items():
        text = f"{{{name}}} cannot be combined with {{lora}}: the adapter of that file has its own"
        raise SettingError(text, {name: value, "lora": ...})
    adapter = LoRA.load(lora, model)
    adapter.dropout = dropout
    return adapter


def load_adapter(model: Model, path: str | None) -> LoRA | None:
    """The adapter of a file, bound to the model; FileError when it is for another base."""
    from ..llm.lora import LoRA

    return None if path is None else LoRA.load(path, model)


def chat_prompt(model: Model, question: str, source: str | None, adapter: LoRA | None) -> list[int]:
    """A question as the chat template (source, the adapter's or the model's own) puts it, until the reply begins."""
    from ..llm.chat import ChatTemplate
    from ..llm.conversation import chat_ids

    template = ChatTemplate.of(model.tokenizer, source, adapter)
    return chat_ids(template, [{"role": "user", "content": question}]).tolist()
