"""Options of fine-tuning: gl.llm.finetune, gl.llm.plan and their commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal

from .defaults import FINETUNE_BATCH, FINETUNE_SCHEDULE, FINETUNE_WARMUP
from .options import (
    Bytes,
    CountOrAuto,
    Decay,
    Flag,
    Limit,
    Often,
    Place,
    Rate,
    Share,
    Whole,
    command_option,
    commas,
    decided,
    option,
    whole_numbers,
)
from .sample_options import CHECKED, DATA_HELP, PLANNED, TRAINED
from .training_options import (
    JSON_HELP,
    OPTIMIZERS,
    EvalOptions,
    LogOptions,
    MemoryOptions,
    SaveOptions,
    StepOptions,
    WatchOptions,
)

Schedules = Literal["cosine", "linear", "constant", "wsd", "one_cycle", "polynomial", "cosine_restarts"]
Widths = Annotated[list[Whole], Limit("different whole numbers of at least 1, such as 64,128")]
Smoothing = Annotated[float, Limit("a number of at least 0 and below 0.5", (("ge", 0.0), ("lt", 0.5)))]


@dataclass(frozen=True)
class ObjectiveOptions:
    """Objective of a fine-tuning; options that it does not have are refused."""

    objective: Any = option(
        "sft",
        'name of the objective: "sft" (the texts); "distil" (the predictions of a `teacher` on them); from pairs of a '
        'chosen and a rejected completion "dpo", "orpo", '
        '"simpo", "cpo", or a reward for each text "reward"; from completions that are judged good or bad "kto"; from '
        'labelled texts their class "classify" or number "regress"; from pairs of texts that belong together "embed"; '
        "or a gl.llm.Objective. See docs/objectives.md",
        Flag(
            CHECKED,
            "sft: the texts; distil: a teacher's predictions on them; dpo, orpo, simpo, cpo: pairs of a chosen and a"
            " rejected completion; reward: a reward for each text, of such pairs; kto: completions that are judged good"
            " or bad; classify, regress: texts with a class or a number; embed: embeddings, of pairs of texts that"
            " belong together.",
            Literal["sft", "classify", "cpo", "distil", "dpo", "embed", "kto", "orpo", "regress", "reward", "simpo"],
            parse=str.lower,
        ),
        typed="Objective | str",
        compared_as="objective",
    )
    beta: Rate | None = option(
        None,
        "factor of rewards (dpo, kto: of ratios to the base model; orpo: of the odds), by default 0.1; simpo: 2",
        Flag(TRAINED, "Factor of rewards. [default: 0.1; simpo 2]", Rate),
        compared_as="objective",
    )
    loss_type: Literal["sigmoid", "hinge", "ipo"] | None = option(
        None,
        'of dpo and cpo: "sigmoid" (the default), "hinge" or "ipo"',
        Flag(TRAINED, "Loss of dpo and cpo: sigmoid, hinge or ipo. [default: sigmoid]"),
        typed="str | None",
        compared_as="objective",
    )
    label_smoothing: Smoothing | None = option(
        None,
        "of sigmoid losses (dpo, cpo, simpo): the share of pairs that are taken to be swapped, by default 0",
        Flag(TRAINED, "Share of pairs that are taken to be swapped. [default: 0]"),
        compared_as="objective",
    )
    gamma: Decay | None = option(
        None,
        "of simpo: the margin by which rewards should differ, by default 0.5",
        Flag(TRAINED, "Margin between the rewards of simpo. [default: 0.5]"),
        compared_as="objective",
    )
    nll_weight: Decay | None = option(
        None,
        "of cpo: the weight of the cross entropy of the chosen completions, by default 1",
        Flag(TRAINED, "Weight of the chosen completions' cross entropy in cpo. [default: 1]"),
        compared_as="objective",
    )
    desirable_weight: Decay | None = option(
        None,
        "of kto: the weight of completions judged good, by default 1",
        Flag(TRAINED, "Weight of good completions in kto. [default: 1]"),
        compared_as="objective",
    )
    undesirable_weight: Decay | None = option(
        None,
        "of kto: the weight of completions judged bad, by default 1",
        Flag(TRAINED, "Weight of bad completions in kto. [default: 1]"),
        compared_as="objective",
    )
    center_rewards_coefficient: Decay | None = option(
        None,
        "of reward: the weight of the squared sum of both rewards of a pair, which centres them at 0, by default 0",
        Flag(TRAINED, "Weight of the squared sum of both rewards of a pair. [default: 0]"),
        compared_as="objective",
    )
    teacher: Any = option(
        None,
        "of distil: the model whose predictions are learned, a Model or the path of a GGUF file or of a Hugging Face "
        "folder, with the same vocabulary. It is read in one pass before the training, then freed",
        Flag(CHECKED, "The model whose predictions distil learns: GGUF, or a Hugging Face folder.", Place),
        typed="Model | str | os.PathLike[str] | None",
        compared_as="objective",
    )
    top_k: Whole | None = option(
        None,
        "of distil: the number of the teacher's likeliest tokens that are kept at each place, by default 64; the other "
        "tokens count as one",
        Flag(CHECKED, "Number of the teacher's likeliest tokens that distil keeps. [default: 64]"),
        compared_as="objective",
    )
    temperature: Rate | None = option(
        None,
        "divisor of the logits of teacher and student (distil, by default 1), or of cosines (embed, by default 0.05)",
        Flag(CHECKED, "Divisor of logits in distil, of cosines in embed. [default: 1; embed 0.05]", Rate),
        compared_as="objective",
    )
    hard_weight: Share | None = option(
        None,
        "of distil: the share of the cross entropy of the data in the loss, by default 0",
        Flag(CHECKED, "Share of the cross entropy of the data in the loss of distil. [default: 0]"),
        compared_as="objective",
    )
    class_weight: Any = option(
        None,
        'of classify: the weight of the loss of each class, {class: weight}, or "balanced": samples / (classes * '
        "samples of the class)",
        Flag(TRAINED, "balanced: classes with fewer samples count more in the loss.", Literal["balanced"]),
        typed="Mapping[str, float] | str | None",
        compared_as="objective",
    )
    pooling: Literal["mean", "last"] | None = option(
        None,
        'of embed: "mean" over the hidden states of all tokens of a text, or that of the "last" one, its end; by '
        'default that of the adapter or of the model, else "last"',
        Flag(CHECKED, "Embedding of a text: mean of its tokens, or last. [default: of adapter or model, else last]"),
        typed="str | None",
        compared_as="objective",
    )
    widths: Any = option(
        None,
        "of embed: numbers of first components that are to be embeddings by themselves, such as [64, 128]; the loss is "
        "the mean of theirs",
        Flag(
            CHECKED,
            "First components that are embeddings, such as 64,128. [default: those of the adapter, else all]",
            Widths,
            parse=whole_numbers,
        ),
        typed="Sequence[int] | None",
        compared_as="objective",
    )


@dataclass(frozen=True)
class TuneOptions(ObjectiveOptions, StepOptions, WatchOptions):
    """Model, rows and optimiser steps of a fine-tuning."""

    method: Literal["lora", "full"] | None = option(
        None,
        '"lora", or "full": the model\'s own `tensors`, as copies that are run.adapter afterwards; by default that of '
        "the adapter, else lora",
        Flag(PLANNED, "lora, or full: the model's own tensors.", default="lora"),
        bits=True,
        typed="str | None",
    )
    tensors: Any = option(
        None, 'of method="full": names and patterns, by default all tensors; see TrainedTensors', compared_as="adapter"
    )
    train_dtype: Literal["f32"] | None = option(
        None,
        'of method="full", "f32": quantised and half tensors train as f32 copies',
        Flag(PLANNED, "f32: quantised and half tensors train as copies."),
        typed="str | None",
        compared_as="adapter",
    )
    context: Whole | None = option(
        None,
        "tokens per row, at most the model's",
        Flag(PLANNED, "Tokens per row. [default: 512, or the model's]"),
        bits=True,
    )
    batch_size: Whole = option(
        FINETUNE_BATCH, "rows per optimiser step", Flag(PLANNED, "Rows per step."), compared_as="batch_size"
    )
    micro_batch_size: Whole | None = option(
        None,
        "rows computed at once, by default about 512 tokens",
        Flag(PLANNED, "Rows computed at a time. [default: about 512 tokens]"),
        compared_as="micro_batch_size",
    )
    epochs: Whole | None = option(
        None,
        "passes over the training rows, by default 1",
        Flag("finetune", "Passes over the training rows. [default: 1]"),
        compared_as="steps",
    )
    steps: Whole | None = option(
        None,
        "optimiser steps, in place of epochs",
        Flag("finetune", "Steps, in place of epochs."),
        bits=True,
    )
    lr: Decay | None = option(
        None,
        "the highest learning rate, by default 2e-4 for a LoRA and 2e-5 for tensors of the model",
        Flag("finetune", "Highest learning rate. [default: 2e-4; full 2e-5]", Rate, decided),
        compared_as="optimizer",
    )
    schedule: Schedules | None = option(
        None,
        '"cosine" (the default) or "linear" down to 0, "constant", or "wsd" (constant, and a cosine down to 0 in the '
        'last tenth of the steps), after the warm-up; "one_cycle": up from lr/25 in the warm-up, then a cosine down '
        'to lr/250000; "polynomial": down to 0 with `power`; "cosine_restarts": `cycles` cosines of one length',
        Flag(
            "finetune",
            "Learning rate after the warm-up: cosine, linear, constant, wsd (constant, down to 0 in the last tenth of "
            "the steps), one_cycle (from and to a small rate), polynomial (with --power) or cosine_restarts (with "
            "--cycles).",
            default=FINETUNE_SCHEDULE,
        ),
        typed="str | None",
        compared_as="optimizer",
    )
    power: Rate | None = option(
        None,
        'with schedule="polynomial": the rate after the warm-up is lr * (share of the steps that are left)^power',
        Flag("finetune", "Power of --schedule polynomial: 1 is linear.", Rate),
        compared_as="optimizer",
    )
    cycles: Whole | None = option(
        None,
        'with schedule="cosine_restarts": the number of cosines from lr down to 0 after the warm-up',
        Flag("finetune", "Number of cosines of --schedule cosine_restarts."),
        compared_as="optimizer",
    )
    warmup: Share | None = option(
        None,
        "share of the steps in which the rate grows linearly, by default 0.03",
        Flag("finetune", "Share of the steps in which the learning rate grows.", default=FINETUNE_WARMUP),
        compared_as="optimizer",
    )
    weight_decay: Decay | None = option(
        None,
        "weight decay of the optimiser, by default 0",
        Flag("finetune", "Weight decay of the optimiser.", default=0.0),
        compared_as="optimizer",
    )
    optimizer: Any = option(
        None,
        'name of a class of gl.optim, such as "adamw" (the default), "sgd" or "lion", which gets lr, schedule, warmup '
        "and weight_decay, and starts anew; or an optimiser object, for example with groups, in place of these four. "
        "An object with parameters (those of the adapter) keeps its state: steps, moments, schedule and the order of "
        "rows resume, also in a run that has loaded it (gl.save, gl.load) with the adapter",
        Flag(
            PLANNED,
            "adamw, adam, sgd, lion, rmsprop, adafactor or muon, with the learning rate --lr.",
            OPTIMIZERS,
            "adamw",
            str.lower,
        ),
        typed="Optimizer | str | None",
        compared_as="optimizer",
    )
    state_bits: Whole = option(
        32,
        "bits of the moments of the optimiser that is named, 32 or 8: with 8 those of parameters of 4096 elements and "
        "more are block-wise codes of a byte (adamw, adam, lion; docs/optimizers.md); an optimizer object has its own "
        "state_bits",
        Flag(PLANNED, "Bits of each moment of the optimiser: 32, or 8 in about a quarter of the memory."),
        bits=True,
    )
    val_split: Share | None = option(
        None,
        "share of the samples (of the rows, for a text) that is never trained on; 0: none; by default 5 % and at most "
        "100",
        Flag(PLANNED, "Share of the rows to validate on. [default: 0.05, at most 100 rows]"),
        compared_as="rows",
    )
    sample_prompt: str | Sequence[str] | None = option(
        None,
        "a text or several, after each of which the model writes a text while it trains; see run.samples. No trained "
        "weight depends on it",
        Flag(
            PLANNED,
            "Prompt for a sample text while the model trains. May be given more than once.",
            list[str],
        ),
    )
    sample_every: Often | None = option(
        None,
        'interval of sampled texts, "100steps" (the default) or "1epoch"',
        Flag("finetune", "Interval of sample texts, such as 100steps or 1epoch. [default: 100steps]"),
    )
    sample_tokens: Whole | None = option(None, "maximum length of a sampled text, by default 64 tokens")
    sample_temperature: Decay | None = option(
        None, "0 (the default): the likeliest tokens; above 0: drawn at this temperature, by the seed"
    )


@dataclass(frozen=True)
class PlacingOptions(MemoryOptions):
    """Memory of the process, and blocks of the model on a GPU."""

    gpu_layers: int | str | None = option(
        None,
        "number of the model's last blocks on the GPU (`device` names it), the others run on the CPU, the head where "
        'it fits; "auto": the largest number that fits into gpu_memory. run.layers has the choice',
        Flag(
            PLANNED,
            "Number of last blocks on the GPU, the others run on the CPU; auto: the largest number that fits into"
            " --gpu-memory; with --device cpu none.",
            CountOrAuto,
            is_number=True,
            metavar="N|auto",
        ),
        compared_as="placement",
    )
    gpu_memory: int | str | None = option(
        None,
        'most bytes that the run may hold on the GPU (`device`, gpu_layers), or a text such as "4GiB": values are '
        "computed again there where that is needed, which changes no bit (docs/memory.md)",
        Flag(
            PLANNED,
            "GPU memory for --gpu-layers, of a training also for --device gpu: bytes, or 4G or 4GiB (of 1024), 4GB (of"
            " 1000); K, M, G, T.",
            Bytes,
            is_number=True,
        ),
        compared_as="placement",
    )


@dataclass(frozen=True)
class FinetuneOptions(EvalOptions, SaveOptions, LogOptions, PlacingOptions):
    """Data, validation and start of a fine-tuning."""

    data_options: Mapping[str, Any] | None = option(
        None, "arguments of gl.llm.read_samples for data and val", compared_as="data_options"
    )
    val: Any = option(
        None,
        "a file (or a list of dicts) to validate on, in place of val_split",
        Flag(PLANNED, "A file to validate on, in place of --val-split.", Place),
        typed="Source | None",
        compared_as="rows",
    )
    patience: Whole | None = option(
        None,
        "number of evaluations without improvement of the validation loss after which the run ends",
        Flag("finetune", "Number of evaluations without improvement after which training ends. [default: never]"),
        compared_as="callbacks",
    )
    keep_best: bool = option(
        False,
        "in the end the adapter holds the weights of the evaluation with the least loss, in place of the last ones",
        Flag("finetune", "Save the weights of the evaluation with the least loss."),
        compared_as="callbacks",
    )
    continue_from: str | os.PathLike[str] | None = option(
        None,
        "folder of an earlier run of finetune: start from its newest checkpoint, with an adapter like its own where "
        "none is given; schedule, order of rows and passes start anew",
    )
    keep_optimizer: bool = option(False, "with continue_from: the optimiser's steps and moments are kept")


@dataclass(frozen=True)
class AdapterOptions:
    """A new LoRA adapter."""

    rank: Whole | None = command_option(PLANNED, "Rank of the adapter. [default: 8]")
    alpha: Rate | None = command_option("finetune", "The LoRA scale is alpha/rank. [default: 2 rank]")
    targets: list[str] | None = command_option(
        PLANNED,
        "Tensors to adapt or train: names as attn_q, patterns, or all. [default: attention; full: all]",
        parse=commas,
    )
    dropout: Share | None = command_option(PLANNED, "Share of the adapter's inputs that is dropped. [default: 0]")
    rslora: bool = command_option("finetune", "Scale the adapter by alpha/sqrt(rank) instead.", False)
    lora: Place | None = command_option(
        PLANNED,
        "Start from the weights of this adapter (.gguf, or a PEFT folder); optimiser, schedule and order of"
        " rows begin anew. --out may name it again.",
    )


@dataclass(frozen=True)
class FinetuneFiles:
    """Files that the command reads."""

    model: Place = command_option(PLANNED, "A GGUF model or a Hugging Face folder.", MISSING, is_argument=True)
    data: Place = option(
        MISSING,
        "",
        Flag("finetune", DATA_HELP, is_argument=True),
        Flag("plan", f"{DATA_HELP} Without: any data.", default=None, is_argument=True),
    )


@dataclass(frozen=True)
class FinetuneOutput:
    """Output of the command."""

    out: Place = command_option(
        "finetune",
        "FILE.gguf, or for an adapter a folder (PEFT). [default: adapter.gguf; full model.gguf]",
        decided,
        saved=False,
    )
    html: Place | None = command_option(
        "plan", "Also write memory maps of all programs to an .html file.", metavar="FILE", saved=False
    )
    json: bool = command_option(PLANNED, JSON_HELP, False, saved=False)
