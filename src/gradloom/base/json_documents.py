"""JSON documents for other programs: keys, types and units of result.json, run.json, metrics.jsonl and each --json.

docs/json.md is generated from these declarations, and tests validate real outputs against them. Added keys keep the
version of a document; a key that is removed or changes its type, unit or meaning requires the next version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Key:
    """A key of an object.

    kind     its Python type, or a shape of objects: keys, [keys] for a list, {str: keys} for an object by name
    meaning  its description
    unit     of a number; "" without one
    when     the condition under which the key is present; "" for always
    pattern  name is a regular expression: any number of keys match it
    """

    name: str
    kind: Any
    meaning: str
    unit: str = ""
    when: str = ""
    pattern: bool = False


Keys = tuple[Key, ...]


@dataclass(frozen=True)
class Document:
    """A JSON object that other programs read. schema: its name and version, the value of its key `schema`."""

    schema: str
    source: str  # where it is printed or written
    keys: Keys

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the key `schema` in front."""
        return {"schema": self.schema, **values}


Number = float | None  # null: not defined or not finite, in files; --json then ends with an error or omits the key


def when(condition: str, *keys: Key) -> Keys:
    """The keys with this condition, unless they have their own."""
    return tuple(replace(key, when=key.when or condition) for key in keys)


_LAYERS = when(
    "with `--gpu-layers`",
    Key("gpu_layers", int, "last blocks on the GPU"),
    Key("gpu_head", bool, "whether the output matrix is on the GPU"),
)
PEAK = Key("peak_bytes", int, "peak of resident memory of the process, measured", "bytes")
INTERRUPTED = Key("interrupted", bool, "whether a signal ended the command")
_SECONDS = Key("seconds", float, "duration", "s")
PREDICTED_SECONDS = Key(
    "predicted_seconds", float, "duration of training and validation, predicted before the first step", "s",
    "on the CPU of one process, from 5 s",
)  # fmt: skip

READ = "once the data are read"
_REWARDS = "mean reward and log-probability of a side: of the validation rows, or without any of those trained on"
_SIDES = "for preferences"
_LOSS = "nats/token of sft; of regress squared standard deviations; else nats/sample, or see docs/objectives.md"
SPREADS = "uncertainty (standard error) of the number of that name"
EPOCH = (
    Key("epoch", int, "from 1"),
    Key("seconds", float, "of the epoch with its validation", "s"),
    Key(r"lr.*", float, "learning rate; with groups one for each", pattern=True),
    Key(r".+", Number, "loss, accuracy, ... of training; val_loss, ... of validation; grad_norm_mean", pattern=True),
)

# ---- language models ------------------------------------------------------------------------------------------------

_ON_DEVICE = when(
    "with `--device gpu`",
    Key("device_bytes", int, "all buffers on the GPU", "bytes"),
    Key("uploaded_bytes", int, "uploaded before the first step", "bytes"),
    Key("on_device", dict[str, int], "buffers on the GPU by kind", "bytes"),
    Key("transfers", int, "values that cross between the devices in a step", when="with `--gpu-layers`"),
    Key("transferred_bytes", int, "their bytes", "bytes", "with `--gpu-layers`"),
    *_LAYERS,
)
_SAMPLES = (
    Key("path", str, "of the data"),
    Key("kind", str, "of samples, with their keys"),
    Key("counts", str, "which tokens count for the loss"),
    Key("keys", list[str], "keys of the first line that are read"),
    Key("unused", list[str], "keys of the first line that are not read"),
    Key("samples", int, "samples read"),
    Key("tokens", int, "tokens read"),
    Key("counted", int, "tokens that count for the loss"),
    Key("bad_lines", int, "invalid lines that were skipped"),
    Key("bad", list[str], "the first of them: line and reason"),
    Key("messages_excluded", int, "turns of the assistant that do not count, by `train` or `weight`"),
    Key("messages_weighted", int, "turns of the assistant with a weight other than 0 and 1"),
    Key("samples_weighted", int, "samples with a weight other than 1"),
    Key("as_text", int, "samples with names of control tokens, read as text"),
    Key("skipped", dict[str, int], "skipped samples by reason"),
    Key("context", int, "tokens per row"),
    Key("rows", int, "rows"),
    Key("padding", float, "share of padding in the rows"),
    Key("cut", int, "samples longer than the context"),
    Key("cut_tokens", int, "tokens left out of them"),
)
FINETUNE = Document(
    "gradloom.finetune/1",
    "`gradloom finetune --json`, `gradloom rerun --json` of a finetune",
    (
        Key("model", str, "MODEL as given"),
        Key("data_file", str, "DATA as given"),
        Key("out", str | None, "the adapter or model; null if nothing was saved"),
        Key("steps", int, "optimiser steps done"),
        INTERRUPTED,
        *when(
            READ,
            Key("method", str, "lora or full"),
            Key("objective", str, "sft, dpo, ..."),
            Key("parameters_trained", int, "numbers that train"),
            Key("context", int, "tokens per row (of pairs: of each side)"),
            Key("rows_train", int, "rows trained on"),
            Key("rows_val", int, "rows validated on"),
            Key("batch_size", int, "rows per step"),
            Key("micro_batch_size", int, "rows computed at a time"),
            Key("epochs", int, "whole epochs done"),
            Key("seconds", float, "of training and validation", "s"),
            PREDICTED_SECONDS,
            Key("tokens", int, "tokens trained on"),
            Key("tokens_per_second", Number, "of training", "1/s"),
            Key("planned_bytes", int, "the arena and the scratch of all threads", "bytes"),
            Key("planned_total_bytes", int, "planned peak of resident memory of the process", "bytes", "after a step"),
            Key("resident_before_bytes", int, "resident memory before the first step", "bytes", "after a step"),
            PEAK,
            Key("seed", int, "random seed"),
            Key("precision", str, "f32 or bf16"),
            Key("ranks", int, "processes"),
            Key("saved_epoch", int, "epoch of the saved weights", when="after a step"),
            Key("train_loss", float, "in the epoch of the saved weights", _LOSS, "after a step"),
            Key("val_loss", float, "of the validation rows, saved weights", _LOSS, "with validation rows"),
            Key("val_loss_before", float, "the same before the first step", _LOSS, "with validation rows"),
            Key("test_loss", float, "of the test rows", _LOSS, "at the end, with test rows"),
            Key(r"(train|val|test)_loss(_before)?_unc", float, SPREADS, _LOSS, "if defined", pattern=True),
            Key(r"(test_)?(rewards|logps)_(chosen|rejected)", float, _REWARDS, when=_SIDES, pattern=True),
            Key(
                r"(test_)?rewards_accuracy",
                float,
                "share of pairs with the higher reward on the chosen side",
                when=_SIDES,
                pattern=True,
            ),
            Key(
                r"(test_)?rewards_margin", float, "mean difference of the rewards of a pair", when=_SIDES, pattern=True
            ),
            Key(r"(test_)?nll_loss", float, "see docs/objectives.md", "nats/token", _SIDES, pattern=True),
            Key(
                r"(test_)?(log_odds_ratio|log_odds_chosen|kl)",
                float,
                "see docs/objectives.md",
                "nats",
                _SIDES,
                pattern=True,
            ),
            Key(r"(test_)?(rewards|logps|nll|log|kl|same).*_unc", float, SPREADS, when=_SIDES, pattern=True),
            Key(
                r"(test_)?same_top",
                float,
                "share of tokens after which the teacher and the student find the same token likeliest",
                when="for distil",
                pattern=True,
            ),
            Key(r"(test_)?rewards_mean", float, "mean reward of both sides", when="for reward", pattern=True),
            Key(
                r"(test_)?(accuracy|balanced_accuracy|f1_macro|roc_auc)",
                float,
                "scores of the validation rows, or of those trained on",
                when="for classify, if defined",
                pattern=True,
            ),
            Key(
                r"(test_)?(r2|rmse|mae)",
                float,
                "scores, in units of the labels",
                when="for regress, if defined",
                pattern=True,
            ),
            Key(
                r"(test_)?(accuracy|balanced_accuracy|f1_macro|roc_auc|r2|rmse|mae)_unc",
                float,
                SPREADS,
                when="if defined",
                pattern=True,
            ),
            Key(
                r"(test_)?(recall_at_1|recall_at_5|mrr)",
                float,
                "of the positives among all texts of the rows",
                when="for embed, with such rows",
                pattern=True,
            ),
            Key(r"(test_)?(recall_at_1|recall_at_5|mrr)_unc", float, SPREADS, when="if defined", pattern=True),
            Key("data", _SAMPLES, "report of the reading of DATA"),
            *_ON_DEVICE,
        ),
    ),
)
GENERATE = Document(
    "gradloom.generate/1",
    "`gradloom generate --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("lora", str | None, "the adapter"),
        Key("prompt", str, "the prompt as given"),
        Key("prompt_tokens", int, "its tokens"),
        Key("seed", int, "random seed"),
        Key("text", str, "the generated text"),
        Key("ended", str, "end, stop, length or interrupted"),
        PEAK,
        INTERRUPTED,
        *when(
            "if not interrupted",
            Key("tokens", list[int], "ids of the generated tokens"),
            _SECONDS,
            Key("tokens_per_second", Number, "after the first token; null for one token", "1/s"),
            *_LAYERS,
        ),
    ),
)
EVALUATE = Document(
    "gradloom.evaluate/1",
    "`gradloom evaluate --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("data", str, "DATA as given"),
        Key("lora", str | None, "the adapter"),
        Key("perplexity", float, "exp of the mean loss per token"),
        Key("test_loss", float, "mean loss per token", "nats/token"),
        Key(r"(perplexity|test_loss)_unc", float, SPREADS, when="if defined", pattern=True),
        Key("tokens", int, "tokens that count"),
        Key("rows", int, "windows measured"),
        Key("context", int, "tokens per window"),
        _SECONDS,
        Key("predicted_seconds", float, "predicted duration", "s", "on the CPU, from 5 s"),
        Key("tokens_per_second", float, "of the windows", "1/s"),
        PEAK,
        INTERRUPTED,
        *_LAYERS,
    ),
)
COMPARE = Document(
    "gradloom.compare/1",
    "`gradloom compare --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("data", str | None, "DATA as given; null: the texts of gradloom"),
        Key("lora", str | None, "the adapter"),
        Key("with", str, "the other program"),
        Key("version", str, "of the package that brings it"),
        Key("test_loss", float, "mean loss per token, here", "nats/token"),
        Key("other_loss", float, "the same in the other program", "nats/token"),
        Key("difference", float, "mean of the paired differences, here minus there", "nats/token"),
        Key("kl", float, "mean Kullback-Leibler divergence of both predictions", "nats/token"),
        Key(r"(difference|kl)_unc", float, SPREADS, when="of two tokens and more", pattern=True),
        Key("kl_max", float, "the largest of a token", "nats"),
        Key("same_top", float, "share of tokens after which both find the same token likeliest"),
        Key("tokens", int, "tokens compared"),
        Key("texts", int, "texts compared"),
        Key("texts_with_other_ids", int, "of those that the other program splits into other tokens"),
        Key("context", int, "tokens per row"),
        Key("seconds", float, "of computation here", "s"),
        Key("other_seconds", float, "of computation in the other program", "s"),
        *when(
            "with `--layers`",
            Key("layers", list[float], "difference of the values behind each block, relative to their size"),
            Key("first_layer", int | None, "the first block whose difference is above 1e-4"),
        ),
    ),
)
_CURVE = (
    Key("needed_bytes", int, "memory of the run", "bytes"),
    Key("relative_time", float, "predicted time of a step, relative to that without a budget"),
)
PLAN = Document(
    "gradloom.plan/1",
    "`gradloom plan --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("method", str, "lora or full"),
        Key("optimizer", str, "its name"),
        Key("weights_bytes", int, "weights, mapped from the file", "bytes"),
        Key("copies_bytes", int, "f32 copies of tensors of types that no kernel reads", "bytes"),
        Key("trained_bytes", int, "the adapter, or the tensors that train", "bytes"),
        Key("state_bytes", int, "the optimiser's moments", "bytes"),
        Key("gradients_bytes", int, "accumulated gradients", "bytes"),
        Key("inputs_bytes", int, "rows, constants and settings", "bytes"),
        Key("arena_bytes", int, "activations, gradients and workspace of the largest step", "bytes"),
        Key("scratch_bytes", int, "scratch of one thread", "bytes"),
        Key("threads", int, "threads"),
        Key("process_bytes", int, "graphs, bytecode, tokenizer, rest of huge pages", "bytes"),
        Key("lower_bound_bytes", int, "the most bytes of the arena alive at once", "bytes"),
        Key("unshared_bytes", int, "the arena without shared buffers", "bytes"),
        Key("teacher_bytes", int, "of the teacher's pass before the first step: weights, buffers, logits", "bytes"),
        Key("steps", int, "instructions of the largest step"),
        Key("recomputed_bytes", int, "values that the largest step computes again", "bytes"),
        Key("recompute_overhead", float, "predicted share of its time"),
        Key(
            "memory_curve",
            [_CURVE],
            "peaks with ever smaller budgets, the first without one",
            when="on the CPU, without ranks",
        ),
        Key("available_bytes", int | None, "available memory; null: unknown", "bytes"),
        Key("base_bytes", int, "resident memory before the run", "bytes"),
        Key("reading_bytes", int, "peak of reading the data; 0 without DATA", "bytes"),
        Key("device", str, "where the steps run"),
        Key("needed_bytes", int, "memory of the run, on top of `base_bytes`", "bytes"),
        Key("peak_bytes", int, "planned peak of resident memory of the process", "bytes"),
        Key("planned_bytes", int, "the arena and the scratch of all threads", "bytes"),
        Key(
            "copied_bytes",
            int,
            "copies of trained arrays while a checkpoint or the result is written, not in `needed_bytes`",
            "bytes",
        ),
        Key("left_bytes", int, "memory that planning leaves in the process, not in `needed_bytes`", "bytes"),
        Key("fits", bool, "whether `needed_bytes` and `copied_bytes` are available"),
        Key("step_seconds", float, "predicted duration of an optimiser step", "s", "on the CPU of one process"),
        Key(
            "predicted_seconds",
            float,
            "predicted duration of training and validation",
            "s",
            "on the CPU of one process, with DATA",
        ),
        *_ON_DEVICE,
    ),
)
_CHECK = (
    Key("name", str, "of the check"),
    Key("holds", bool, "its result"),
    Key("found", str, "the finding"),
    Key("node", str, 'the first node that differs, or ""'),
)
VERIFY = Document(
    "gradloom.verify/1",
    "`gradloom verify --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("data", str, "DATA as given"),
        Key("agrees", bool, "whether all checks hold"),
        Key("tokens", int, "tokens that the step trained on"),
        Key("steps", int, "instructions"),
        Key("peak_bytes", int, "planned memory with buffers shared", "bytes"),
        Key("unshared_bytes", int, "the same without sharing", "bytes"),
        Key("loss", float, "of the step", "nats/token"),
        Key("checks", [_CHECK], "an object for each check"),
        Key("capsule", str | None, "the file of `--capsule`, where a check failed"),
    ),
)
