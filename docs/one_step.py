"""One training step in all its forms, as ARCHITECTURE.md shows it: python docs/one_step.py"""

import re

import numpy as np

import gradloom as gl
from gradloom.graph.graph import listing
from gradloom.optim import SGD, UpdateInputs
from gradloom.transform.passes import rewrite
from gradloom.transform.program import gather


def forms() -> dict[str, str]:
    """Graph, gradient graph, rewritten program, plan: the text of each."""
    x = gl.input("x", (4, 3))
    labels = gl.input("labels", (4,), "i32")
    w = gl.parameter(np.zeros((2, 3)), name="w")
    logits = gl.ops.matmul(x, w, transpose_y=True)
    total, weight = gl.ops.loss.cross_entropy_pair(logits, labels)

    (grad,) = gl.gradients(total, [w])
    guard = gl.ops.guard(total, weight, grad)
    update = SGD(lr=0.1).update(UpdateInputs([w], [grad], weight, {}))
    program = rewrite(gather([total, guard], update))
    run = gl.compile([total, guard], update, isa="scalar", threads=1)
    return {
        "graph": _renumber(listing([total])),
        "gradient graph": _renumber(listing([total, guard, *gather([], update).effects])),
        "program": _renumber(listing([*program.outputs, *program.effects])),
        "plan": _renumber(str(run.plan)),
    }


def _renumber(text: str) -> str:
    """Node ids depend on what the process built before: count them from 0; file lines are left out."""
    ids: dict[str, int] = {}
    text = re.sub(r"([%#])(\d+)", lambda m: f"{m[1]}{ids.setdefault(m[2], len(ids))}", text)
    return re.sub(r" at \w+\.py:\d+", "", text)


def page() -> str:
    """The forms as one block of Markdown."""
    return "\n".join(
        f"*{name}*\n\n" + "\n".join(f"    {line}" for line in text.splitlines()) + "\n"
        for name, text in forms().items()
    )


if __name__ == "__main__":
    print(page())
