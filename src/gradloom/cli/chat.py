"""gradloom chat: a conversation with a model, in the terminal or from a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

from ..base import interrupts
from ..base.errors import DataError
from ..base.settings import PRECISIONS
from .common import Device, GpuLayers, GpuMemory, Precision, Threads, need_one_of, need_whole, print_report, warn
from .generate import Shown
from .language import Lora, Temperature, Template, TopK, TopP, load_adapter, read_template
from .parser import Argument, Option
from .run_settings import check_places, shown_layers

_LONGEST = 1 << 24  # bytes of a line
_HELP = "/forget begins anew, /quit or Ctrl-D ends, Ctrl-C stops a reply"


HELP = """Talk with a model: each line of stdin is a turn, the replies go to stdout.

The history goes with each turn, and is computed once; the oldest turns are left out where the context ends.
/forget begins anew, /quit or Ctrl-D ends, Ctrl-C stops a reply.
"""


def chat(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder with a chat template.")],
    lora: Lora = None,
    system: Annotated[str | None, Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, Option("--max-tokens", "-n", help="Maximum tokens of a reply.")] = 256,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, Option(help="Random seed for sampling: the same seed gives the same replies.")] = 0,
    chat_template: Template = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    threads: Threads = None,
) -> int:
    """Run the command; returns its exit code."""
    need_whole("max_tokens", max_tokens)
    need_whole("threads", threads)
    need_one_of("precision", precision, PRECISIONS)
    layers = check_places("chat", device, gpu_layers, gpu_memory)
    template = read_template(chat_template)
    if sys.stdin is None:
        raise DataError("stdin: is closed; chat requires lines of text there")
    from ..llm.conversation import Conversation
    from ..llm.model import load

    loaded = load(model)
    conversation = Conversation(
        loaded, load_adapter(loaded, lora), system=system, chat_template=template, max_tokens=max_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, precision=precision, device=device,
        gpu_layers=layers, gpu_memory=gpu_memory, threads=threads,
    )  # fmt: skip
    print_report(f"{model}: {loaded.config}; {_HELP}")
    layers_shown = False
    code = 0
    for text in _turns():
        if isinstance(text, DataError):
            code = _left_out(text)
            continue
        if text == "/quit":
            break
        if text == "/forget":
            conversation.forget()
            continue
        shown = Shown("")
        try:
            before = conversation.forgotten
            reply = conversation.say(text, shown.add_piece)
            shown.add("\n")
            if layers is not None and not layers_shown:
                layers_shown = True
                print_report(shown_layers(reply.layers))
            if conversation.forgotten > before:
                warn(f"the context is full: the oldest {conversation.forgotten} messages are left out of the prompt")
            if reply.ended == "length":
                has_room = conversation.max_tokens < loaded.config.context_length // 2
                more = "--max-tokens allows more" if has_room else "half of the context is the most"
                warn(f"the reply was cut after {len(reply.tokens)} tokens; {more}")
        except DataError as error:  # of this turn
            code = _left_out(error)
        except KeyboardInterrupt as stop:
            if not _is_of_a_person(stop):
                raise
            shown.add("\n")
    return code


def _left_out(error: DataError) -> int:
    """Print the reason why a turn is left out; the conversation continues. Returns the exit code: 2 for a program."""
    warn(f"gradloom: {error}")
    return 0 if sys.stdin.isatty() else 2


def _is_of_a_person(stop: KeyboardInterrupt) -> bool:
    """Whether it is Ctrl-C at a terminal, which stops a reply; any other signal ends the chat."""
    return sys.stdin.isatty() and interrupts.number_of(stop) == signal.SIGINT


def _turns() -> Iterator[str | DataError]:
    """Lines that are not empty, asked for with a prompt where a person types them; the error of one that is no text."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import contextlib

        with contextlib.suppress(ImportError):  # gives input() a history and keys for editing
            import readline  # noqa: F401
    number = 0
    while True:
        number += 1
        try:
            line = _typed() if is_terminal else _line_of_stdin(number)
        except EOFError:
            if is_terminal:
                warn("")
            return
        except KeyboardInterrupt as stop:
            if not _is_of_a_person(stop):
                raise
            warn("\n/quit or Ctrl-D ends")
            continue
        except DataError as error:
            yield error
            continue
        except UnicodeDecodeError as error:
            where = "" if is_terminal else f"stdin line {number}: "
            what = f"byte {error.start} is no {error.encoding.upper()} ({error.reason})"
            yield DataError(f"{where}{what}; the line is left out; need a text")
            continue
        if line.strip():
            yield line.strip()


def _typed() -> str:
    """The line that a person types; EOFError at the end, UnicodeDecodeError for one that is no text."""
    return input("> ").encode("utf-8", "surrogateescape").decode()


def _line_of_stdin(number: int) -> str:
    """The next line; EOFError at the end, UnicodeDecodeError and DataError for one that is no text, which is read
    past."""
    stream: Any = getattr(sys.stdin, "buffer", sys.stdin)
    line = stream.readline(_LONGEST)
    if not line:
        raise EOFError
    end = b"\n" if isinstance(line, bytes) else "\n"
    if len(line) == _LONGEST and not line.endswith(end):
        while (more := stream.readline(_LONGEST)) and not more.endswith(end):
            pass
        raise DataError(f"stdin line {number}: more than {_LONGEST:,} bytes; the line is left out; need a shorter one")
    text = str(line, sys.stdin.encoding) if isinstance(line, bytes) else line
    return text.removeprefix("\ufeff") if number == 1 else text
