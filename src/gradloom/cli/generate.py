"""gradloom generate: text that continues a prompt, as it comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_documents import GENERATE
from ..base.memory import resident_peak, show_bytes
from ..base.settings import PRECISIONS
from ..base.terminal import shown_on
from .common import (
    Device,
    GpuLayers,
    GpuMemory,
    Json,
    MemoryLimit,
    Precision,
    Threads,
    exit_code,
    json_text,
    need_one_of,
    need_whole,
    print_report,
)
from .language import Temperature, Template, TopK, TopP, chat_prompt, load_adapter, read_template
from .parser import Argument, Option
from .run_settings import check_places, layers_report, shown_layers

if TYPE_CHECKING:
    from ..llm.generate import Generated

TOKENS = 64  # to generate by default, or fewer where the context ends


HELP = """Continue a prompt. The text goes to stdout as it is generated, speed and memory to stderr."""


def generate(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder.")],
    prompt: Annotated[str, Option("--prompt", "-p", help="The text to continue.")],
    lora: Annotated[str | None, Option(help="An adapter to put on the model: .gguf, or PEFT.")] = None,
    max_tokens: Annotated[
        int | None, Option("--max-tokens", "-n", help="Maximum tokens to generate. [default: 64]")
    ] = None,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, Option(help="Random seed for sampling: the same seed gives the same text.")] = 0,
    chat: Annotated[bool, Option("--chat", help="Format the prompt as a question by the chat template.")] = False,
    chat_template: Template = None,
    stop: Annotated[list[str] | None, Option(help="End before this text; may be given more than once.")] = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    memory: MemoryLimit = None,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    need_whole("max_tokens", max_tokens)
    need_whole("threads", threads)
    need_one_of("precision", precision, PRECISIONS)
    layers = check_places("generate", device, gpu_layers, gpu_memory, memory)
    template = read_template(chat_template)
    from ..base.errors import SettingError
    from ..llm.generate import complete, prompt_ids
    from ..llm.model import load
    from ..llm.sampling import Sampling

    if template is not None and not chat:
        raise SettingError("{chat_template} requires {chat}", chat_template=chat_template, chat=...)
    how = Sampling(temperature, top_k, top_p, seed)
    loaded = load(model)
    adapter = None if lora is None else load_adapter(loaded, lora)
    given = chat_prompt(loaded, prompt, template, adapter) if chat else prompt
    ids = prompt_ids(loaded, given)
    room = max(loaded.config.context_length - len(ids), 1)
    common = {"model": model, "lora": lora, "prompt": prompt, "prompt_tokens": len(ids), "seed": seed}
    shown = Shown("" if chat else prompt)
    try:
        done = complete(
            loaded,
            ids,
            adapter,
            max_tokens or min(TOKENS, room),
            how,
            stop or (),
            shown.add_piece,
            precision=precision,
            device=device,
            gpu_layers=layers,
            gpu_memory=gpu_memory,
            memory=memory,
            threads=threads,
        )
    except KeyboardInterrupt as stopped:
        shown.add("\n")
        if json and shown.pieces:
            ended = {"ended": "interrupted", "peak_bytes": resident_peak(), "interrupted": True}
            print(json_text(GENERATE, common | {"text": "".join(shown.pieces)} | ended))
        return exit_code(stopped)
    shown.add("\n")
    print_report(_summary(done))
    if layers is not None:
        print_report(shown_layers(done.layers))
    if json:
        print(json_text(GENERATE, common | _numbers(done) | layers_report(layers, done.layers)))
    return 0


def _summary(done: Generated) -> str:
    """Tokens, speed and memory in one line."""
    speed = f"prompt {done.prompt_tokens / max(done.prompt_seconds, 1e-9):.0f} tokens/s"
    count = len(done.tokens)
    if count > 1:
        speed += f", then {(count - 1) / max(done.seconds, 1e-9):.0f} tokens/s"
    why = {"end": "the model ended it", "stop": "a stop text came", "length": "the limit was reached"}[done.ended]
    return f"{count} tokens, {why}; {speed}; memory {show_bytes(resident_peak())}"


def _numbers(done: Generated) -> dict[str, Any]:
    """The generated text and its quantities, as --json prints them."""
    count = len(done.tokens)
    return {
        "text": done.text, "tokens": list(done.tokens), "ended": done.ended,
        "seconds": round(done.prompt_seconds + done.seconds, 3),
        "tokens_per_second": round((count - 1) / done.seconds, 1) if count > 1 else None,
        "peak_bytes": resident_peak(), "interrupted": False,
    }  # fmt: skip


class Shown:
    """Text on stdout as it comes, behind the prompt; what stdout's encoding does not know becomes a question mark."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.pieces: list[str] = []  # of the generated text

    def add_piece(self, piece: str) -> None:
        self.pieces.append(piece)
        self.add(piece)

    def add(self, piece: str) -> None:
        piece, self.prompt = self.prompt + piece, ""
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(shown_on(sys.stdout, piece).encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
