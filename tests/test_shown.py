"""What objects say of themselves: print, and what a notebook shows. Nothing prints as an object's address."""

import re

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.html import html_table

X, Y = np.random.default_rng(0).random((40, 2)).astype(np.float32), np.arange(40, dtype=np.int32) % 3


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Name -> (object, a part of what it prints)."""
    net = gl.nn.Sequential(gl.nn.Linear(2, 8, activation="relu"), gl.nn.Dropout(0.1), gl.nn.Linear(8, 3))
    history = gl.fit(net, (X, Y), epochs=2, val_split=0.2, progress=False)
    value = gl.input("x", (2, 2))
    run = gl.compile([value * 2])
    trainer = gl.Trainer(net)
    graph = gl.Graph(gl.ops.mean(gl.parameter([1.0, 2.0], name="w")))
    graph.backward()
    with gl.grad_tape(seed=4) as tape:
        loss = gl.ops.mean(net(gl.tensor(X)))
    data = gl.data.Dataset(X, Y)
    return {
        "net": (net, "(0): Linear(n_in=2, n_out=8, activation='relu')"),
        "history": (history, "epoch=2"),
        "epoch": (history[0], "epoch=1"),
        "result": (history[0].train, "loss"),
        "evaluation": (history[0].ended, "step=1"),
        "trainer": (trainer, "Trainer(Sequential, loss cross_entropy, AdamW("),
        "state": (trainer.optimizer_state, "OptimizerState(AdamW, "),
        "optimizer": (gl.optim.AdamW(lr=0.5), "lr=0.5"),
        "run": (run, "(x: f32[2,2]) -> [f32[2,2]]; 1 step; peak"),
        "plan": (run.plan, "1 step; peak"),
        "graph": (graph, "Graph("),
        "compiled graph": (graph.compile(), "with gradients"),
        "value": (value, "f32[2,2]"),
        "parameter": (net[0].weight, "f32[8,2]"),
        "tape": (tape, "GradTape(seed=4"),
        "gradients": (tape.backward(loss), "0.weight"),
        "tensor": (loss, "f32"),
        "data": (data, "40 rows"),
        "loader": (gl.data.DataLoader(data, batch_size=3, shuffle=True, seed=5), "batches of 3, shuffled by seed 5"),
        "callback": (gl.train.Callback(), "Callback()"),
        "average": (gl.train.AveragedWeights(net.parameters(), 0.9), "4 parameters, decay 0.9"),
        "checkpoint": (gl.train.Checkpoint(tmp_path_factory.mktemp("run") / "a", net=net), "Checkpoint("),
        "stopping": (gl.train.EarlyStopping(patience=2), "patience=2"),
        "log": (gl.train.Log(tmp_path_factory.mktemp("log")), "Log()"),
        "schedule": (gl.optim.schedules.Cosine(1e-3, steps=4), "steps=4"),
        "lora": (gl.llm.LoRA(), "rank"),
        "stats": (gl.stats(), "compiled="),
    }


def test_nothing_prints_as_an_address(objects):
    for name, (one, part) in objects.items():
        for text in (repr(one), str(one)):
            assert not re.search(r"\bat 0x[0-9a-f]+", text), (name, text)
        assert part in repr(one), (name, repr(one))


@pytest.mark.parametrize("name", ["net", "history", "epoch", "result", "evaluation", "plan"])
def test_notebooks_show_tables(objects, name):
    one, _ = objects[name]
    text = one._repr_html_()
    if name == "history":  # its report, and a table
        frame, _, text = text.partition("</iframe><details><summary>Table</summary>")
        assert frame.startswith("<iframe ") and "&lt;script" in frame and 'sandbox="allow-scripts"' in frame
    assert text.startswith(("<table>", "<pre>", "<details>")) and text.count("<table>") == text.count("</table>")
    wanted = {"plan": "lower bound", "net": "n_in=2"}.get(name, "loss")
    assert wanted in text and "0x" not in text


def test_a_history_is_a_row_for_each_epoch(objects):
    history = objects["history"][0]
    text = history._repr_html_()
    text = text.partition("</iframe>")[2]
    assert text.count("<tr>") == 3 and "val_accuracy" in text and f"{history[-1].train.loss:.6g}" in text


def test_texts_are_escaped():
    assert html_table(("a<b",), [["<script>"]]).count("<script>") == 0
    model = gl.nn.Sequential(gl.nn.Linear(1, 1))
    model.layers[0].activation, model.layers[0].act = "<b>", gl.ops.relu
    assert "<b>" not in model._repr_html_()


def test_the_tree_of_a_module_of_ones_own():
    class Own(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = gl.nn.MultiheadAttention(8, 2, causal=True)
            self.again = self.first
            self.blocks = [gl.nn.Linear(2, 3, bias=False)]
            self.scale = gl.parameter([1.0, 2.0])

    lines = repr(Own()).splitlines()
    assert lines == [
        "Own(",
        "  (scale): f32[2]",
        "  (first): MultiheadAttention(features=8, heads=2, kv_heads=2, causal=True)",
        "  (again): the same as (first)",
        "  (blocks.0): Linear(n_in=2, n_out=3, bias=False)",
        ")",
    ]


def test_the_summary_counts_what_there_is():
    net = gl.nn.Sequential(gl.nn.Linear(4, 3), gl.nn.BatchNorm(3), gl.nn.ReLU())
    net[0].bias.trainable = False
    lines = net.summary().splitlines()
    assert lines[0].split() == ["name", "layer", "arrays", "numbers"] and len(lines) == 5
    assert "weight f32[3,4], bias f32[3] buffer" in lines[1] and lines[1].endswith("15")
    assert lines[-1] == "18 parameters, 9 numbers in buffers, 108 B"
    assert net.parameter_count() == 18
