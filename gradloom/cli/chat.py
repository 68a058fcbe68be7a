"""gradloom chat: a conversation with a model, in the terminal or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from ..base.settings import PRECISIONS
from .common import Device, GpuLayers, GpuMemory, Precision, Threads, need_one_of, need_whole, say
from .generate import Shown
from .language import Lora, Temperature, Template, TopK, TopP, load_adapter, read_template
from .run_settings import check_device, gpu_layers_of, shown_layers

_HELP = "/forget begins anew, /quit or Ctrl-D ends, Ctrl-C stops a reply"


def chat(
    model: Annotated[str, typer.Argument(help="A GGUF model with a chat template.")],
    lora: Lora = None,
    system: Annotated[str | None, typer.Option(help="A text that tells the model how to behave.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens of a reply at most.")] = 256,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(help="Of the draws: the same seed gives the same replies.")] = 0,
    chat_template: Template = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    threads: Threads = None,
) -> int:
    """Talk with a model: each line of stdin is a turn, the replies go to stdout.

    The history goes with each turn, and is computed once; the oldest turns are left out where the context ends.
    /forget begins anew, /quit or Ctrl-D ends, Ctrl-C stops a reply.
    """
    need_whole("max-tokens", max_tokens)
    need_whole("threads", threads)
    need_one_of("precision", precision, PRECISIONS)
    check_device(device)
    layers = gpu_layers_of(gpu_layers)
    template = read_template(chat_template)
    from ..base.errors import DataError
    from ..llm.conversation import Conversation
    from ..llm.model import load

    loaded = load(model)
    conversation = Conversation(
        loaded, load_adapter(loaded, lora), system=system, chat_template=template, max_tokens=max_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, precision=precision, device=device,
        gpu_layers=layers, gpu_memory=gpu_memory, threads=threads,
    )  # fmt: skip
    say(f"{model}: {loaded.config}; {_HELP}")
    told = False  # what runs where
    for text in _turns():
        if text == "/quit":
            break
        if text == "/forget":
            conversation.forget()
            continue
        shown = Shown("")
        try:
            before = conversation.forgotten
            reply = conversation.say(text, shown.hear)
        except DataError as error:  # of this turn; the conversation goes on
            if not sys.stdin.isatty():
                raise
            say(f"gradloom: {error}")
            continue
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            shown.add("\n")
            continue
        shown.add("\n")
        if layers is not None and not told:
            told = True
            say(shown_layers(reply.layers))
        if conversation.forgotten > before:
            say(
                f"the context is full: the oldest {conversation.forgotten} messages are left out of what the model sees"
            )
        if reply.ended == "length":
            more = (
                "--max-tokens allows more"
                if conversation.max_tokens < loaded.config.context_length // 2
                else "half of the context is the most"
            )
            say(f"the reply was cut after {len(reply.tokens)} tokens; {more}")
    return 0


def _turns() -> Iterator[str]:
    """Lines that are not empty; asked for with a prompt where a person types them."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import contextlib

        with contextlib.suppress(ImportError):  # gives input() a history and keys for editing
            import readline  # noqa: F401
    while True:
        if is_terminal:
            try:
                line = input("> ")
            except EOFError:
                say("")
                return
        elif not (line := sys.stdin.readline()):
            return
        if line.strip():
            yield line.strip()
