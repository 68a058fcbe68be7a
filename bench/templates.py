"""Microseconds per chat: the assistant's turns found in the process that renders templates, and in this process.

python bench/templates.py [--chats N] [--blocks N]

The blocks of both alternate; the ratio is that of the medians. Both do the same work (llm/template_rendering.py:
Template); the difference is the pipe: chats there, texts back, many at a time. A request is made while the one
before it is answered.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from datetime import datetime
from typing import Any

from common import table

from gradloom.llm.chat import ChatTemplate
from gradloom.llm.template_rendering import Template
from gradloom.llm.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)
BATCH = 512  # chats at a time, as llm/jsonl.py takes them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=5)
    args = parser.parse_args()
    chats = drawn(args.chats)
    for name, source in (("turns looked for", CHATML), ("turns marked", MARKED)):
        tokenizer = Tokenizer({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"]})
        made = ChatTemplate(source, tokenizer)
        here = Template(source, datetime.now(), made._source["tokens"], made._source["ends"])
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.blocks):
            began = time.perf_counter()
            for i in range(0, len(chats), BATCH):
                for _ in made.split([(chat, None) for chat in chats[i : i + BATCH]]):
                    pass
            seconds[0].append((time.perf_counter() - began) / len(chats) * 1e6)
            began = time.perf_counter()
            for chat in chats:
                here.split(chat, None, 10_000_000)
            seconds[1].append((time.perf_counter() - began) / len(chats) * 1e6)
        middle = [statistics.median(times) for times in seconds]
        rows = [
            (what, f"{median:.1f}", f"{min(times):.1f}", f"{median / middle[1]:.2f}")
            for what, median, times in zip(("its own process", "this process"), middle, seconds, strict=True)
        ]
        table(rows, (f"{len(chats)} chats, {name}", "us/chat", "least", "ratio"))


def drawn(count: int) -> list[list[dict[str, Any]]]:
    """Chats of 2 to 8 messages of 5 to 120 words."""
    draw = random.Random(0)
    words = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away")
    roles = ("user", "assistant")
    return [
        [
            {"role": roles[i % 2], "content": " ".join(draw.choices(words, k=draw.randint(5, 120)))}
            for i in range(2 * draw.randint(1, 4))
        ]
        for _ in range(count)
    ]


if __name__ == "__main__":
    main()
