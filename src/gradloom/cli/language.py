"""Shared by the commands for language models: options of the data, adapters, the prompt of a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ..base.finetune_options import DataOptions, ObjectiveOptions
from .parser import Option
from .setting import flag_of

if TYPE_CHECKING:
    from ..llm.lora import LoRA, TrainedTensors
    from ..llm.model import Model

# Options of the data, as parameters of a command
TextKey = Annotated[str | None, flag_of(DataOptions, "text_key")]
PromptKey = Annotated[str | None, flag_of(DataOptions, "prompt_key")]
CompletionKey = Annotated[str | None, flag_of(DataOptions, "completion_key")]
MessagesKey = Annotated[str | None, flag_of(DataOptions, "messages_key")]
AsChat = Annotated[bool, flag_of(DataOptions, "as_chat")]
Template = Annotated[str | None, flag_of(DataOptions, "chat_template")]
LossOn = Annotated[str | None, flag_of(DataOptions, "loss_on")]
SkipBadLines = Annotated[bool, flag_of(DataOptions, "skip_bad_lines")]
Special = Annotated[bool, flag_of(DataOptions, "special")]
ChosenKey = Annotated[str | None, flag_of(DataOptions, "chosen_key")]
RejectedKey = Annotated[str | None, flag_of(DataOptions, "rejected_key")]
LabelKey = Annotated[str | None, flag_of(DataOptions, "label_key")]
AnchorKey = Annotated[str | None, flag_of(DataOptions, "anchor_key")]
PositiveKey = Annotated[str | None, flag_of(DataOptions, "positive_key")]
NegativeKey = Annotated[str | None, flag_of(DataOptions, "negative_key")]
# Options of objectives
ObjectiveName = Annotated[str, flag_of(ObjectiveOptions, "objective")]
Beta = Annotated[float | None, flag_of(ObjectiveOptions, "beta")]
LossType = Annotated[str | None, flag_of(ObjectiveOptions, "loss_type")]
LabelSmoothing = Annotated[float | None, flag_of(ObjectiveOptions, "label_smoothing")]
Gamma = Annotated[float | None, flag_of(ObjectiveOptions, "gamma")]
NllWeight = Annotated[float | None, flag_of(ObjectiveOptions, "nll_weight")]
DesirableWeight = Annotated[float | None, flag_of(ObjectiveOptions, "desirable_weight")]
UndesirableWeight = Annotated[float | None, flag_of(ObjectiveOptions, "undesirable_weight")]
CenterRewards = Annotated[float | None, flag_of(ObjectiveOptions, "center_rewards_coefficient")]
ClassWeight = Annotated[str | None, flag_of(ObjectiveOptions, "class_weight")]
Teacher = Annotated[str | None, flag_of(ObjectiveOptions, "teacher")]
TeacherTopK = Annotated[int | None, flag_of(ObjectiveOptions, "top_k")]
LossTemperature = Annotated[float | None, flag_of(ObjectiveOptions, "temperature")]
HardWeight = Annotated[float | None, flag_of(ObjectiveOptions, "hard_weight")]
Pooling = Annotated[str | None, flag_of(ObjectiveOptions, "pooling")]
EmbeddingWidths = Annotated[str | None, flag_of(ObjectiveOptions, "widths")]
# Of drawing tokens (see llm.sampling.Sampling)
Temperature = Annotated[float, Option(help="Sampling temperature; 0 always takes the likeliest token.")]
TopK = Annotated[int | None, Option(help="Number of likeliest tokens to draw from; 0: all. [default: 40]")]
TopP = Annotated[float | None, Option(help="Probability of the likeliest tokens to draw from; 1: all. [default: 0.95]")]
Lora = Annotated[str | None, Option("--lora", help="An adapter to put on the model: .gguf, or a PEFT folder.")]

_TEMPLATE_BYTES = 1 << 20


def data_options(
    text_key: str | None, prompt_key: str | None, completion_key: str | None, messages_key: str | None, as_chat: bool,
    chat_template: str | None, loss_on: str | None, skip_bad_lines: bool,
    special: bool, chosen_key: str | None = None, rejected_key: str | None = None, label_key: str | None = None,
    anchor_key: str | None = None, positive_key: str | None = None, negative_key: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options as llm.data.read_samples takes them; SettingError for a --loss-on that is not known, FileError for
    a template that cannot be read."""
    from .common import need_one_of

    need_one_of("loss_on", loss_on, ("assistant", "all"))
    of_sides = {
        "chosen_key": chosen_key, "rejected_key": rejected_key, "label_key": label_key, "anchor_key": anchor_key,
        "positive_key": positive_key, "negative_key": negative_key,
    }  # fmt: skip
    return {
        "text_key": text_key, "prompt_key": prompt_key, "completion_key": completion_key, "messages_key": messages_key,
        "as_chat": as_chat, "chat_template": read_template(chat_template),
        "train_on_all": None if loss_on is None else loss_on == "all",
        "skip_bad_lines": skip_bad_lines, "special": special,
        **{name: value for name, value in of_sides.items() if value is not None},  # a resume compares those given
    }  # fmt: skip


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
    from ..llm.lora import LoRA, TrainedTensors

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
