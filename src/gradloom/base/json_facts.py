"""JSON documents about files, texts, runs, capsules and machines: info, merge, embed, runs, replay, doctor."""

from __future__ import annotations

from typing import Any

from .json_documents import Document, Key, Number, when

# ---- files -----------------------------------------------------------------------------------------------------------

_TENSOR = (
    Key("name", str, "of the tensor"),
    Key("type", str, "of its numbers"),
    Key("shape", list[int], "ggml's order `ne` in GGUF files, NumPy's order in saved models"),
    Key("bytes", int, "stored bytes", "bytes"),
    Key("offset", int, "place in the file's data", "bytes", "for GGUF files"),
    Key("trained", bool, "whether it trains", when="for saved models"),
)
_ADAPTER = "for adapters"
_MODEL = "for models and vocabularies"
_HEAD = (
    Key("kind", str, "reward, classify or regress"),
    Key("scores", int, "scores of a text"),
    Key("labels", list[str], "names of the classes"),
    Key("several", bool, "whether a text can have several classes"),
)
_TYPE = (
    Key("tensors", int, "of this type"),
    Key("parameters", int, "numbers in them"),
    Key("bytes", int, "stored bytes", "bytes"),
)
INFO_GGUF = Document(
    "gradloom.info_gguf/1",
    "`gradloom info FILE.gguf --json`",
    (
        Key("file", str, "path"),
        Key("version", int, "of the format"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("alignment", int, "of the tensors", "bytes"),
        Key("kind", str, "model, adapter, vocabulary, or general.type of the file"),
        Key("architecture", str, 'such as llama; "" without one'),
        Key("name", str, 'general.name, or ""'),
        Key("parameters", int, "numbers in all tensors"),
        Key("types", {str: _TYPE}, "tensors by type"),
        Key("bits_per_weight", Number, "mean over all numbers; null without tensors", "bits"),
        *when(
            _ADAPTER,
            Key("adapter", str, "adapter.type"),
            Key("alpha", Number, "adapter.lora.alpha; null if missing"),
            Key("ranks", list[int], "ranks of the pairs"),
            Key("targets", list[str], "tensors that the adapter changes"),
        ),
        Key("pooling", str | None, "of embeddings: mean, last, cls or rank; null if the file has none"),
        Key("widths", list[int], "first components that were trained to be embeddings by themselves"),
        Key("head", _HEAD, "head of the objectives reward, classify and regress", when="if there is one"),
        *when(
            _MODEL,
            Key(
                r"layers|width|heads|kv_heads|ffn_width|context_length|rope_.+|tokenizer|pre_tokenizer", Any,
                "metadata of this architecture; null if missing", pattern=True,
            ),
            Key(r"bos|eos|pad", int | None, "id of the control token; null for none", pattern=True),
            Key("vocabulary", int | None, "tokens of the tokenizer; null without one"),
            Key("chat_template", bool, "whether the file has a chat template"),
            Key("file_type", str | None, "name of the mixture of types; null if missing"),
            Key("supported", bool, "whether gradloom runs this architecture"),
            Key("tokenizer_problem", str | None, "why a folder's tokenizer is not supported; null if it is"),
        ),
        Key("metadata", dict[str, Any], "all metadata; arrays of more than 64 items as `count` and `first`"),
        Key("tensors", [_TENSOR], "all tensors"),
    ),
)  # fmt: skip
_FITTED = "for models of `gradloom fit`"
_COLUMN = (
    Key("name", str, "of the column"),
    Key("kind", str, "number, a kind of encoding, or unused"),
    Key("reason", str, "why it is unused", when="for unused columns"),
)
_TARGET = (
    Key("name", str, "of the column"),
    Key("task", str, "classification or regression"),
    Key("classes", list[str], "names of the classes; none of a regression"),
)
INFO_MODEL = Document(
    "gradloom.info_model/1",
    "`gradloom info MODEL --json` of a saved model",
    (
        Key("file", str, "path"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("kind", str, "model (of `gradloom fit`) or network (of `gl.save`)"),
        Key("parameters", int, "numbers in the network's parameters"),
        *when(
            _FITTED,
            Key("task", str, "classification or regression; mixed: targets of both kinds"),
            Key("target", str, "name of the target column; of several targets their names, as text"),
            Key("targets", [_TARGET], "each target", when="with several targets"),
            Key("features", int, "inputs of the network"),
            Key("columns", [_COLUMN], "of the table"),
            Key("shape", list[int], "of a row of arrays"),
            Key("missing", list[str], "words for empty cells"),
            Key("encoding", str, "of text files"),
            Key("classes", list[str], "names of the classes; of several targets none"),
            Key("metrics", dict[str, float], "numbers of the training, as in result.json"),
            Key("about", dict[str, Any], "settings of the training"),
        ),
        Key("network", dict[str, Any], "the layers; their description is not part of the compatibility rule"),
        Key("metadata", dict[str, str], "further metadata of the file"),
        Key("tensors", [_TENSOR], "all arrays"),
    ),
)

# ---- texts -----------------------------------------------------------------------------------------------------------

_QUANTIZED = (
    Key("name", str, "of the tensor"),
    Key("type_before", str, "in the model"),
    Key("type", str, "in the new file"),
    Key("bytes_before", int, "in the model", "bytes"),
    Key("bytes", int, "in the new file", "bytes"),
    Key("rmse", float, "root mean square of the rounding errors; 0 for a copied tensor"),
    Key("rms", float, "root mean square of the numbers; 0 for a copied tensor"),
)
MERGE = Document(
    "gradloom.merge/1",
    "`gradloom merge --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("adapter", str, "ADAPTER as given"),
        Key("out", str, "the merged model"),
        Key("type", str | None, "`--type`"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("tensors", dict[str, int], "tensors by type"),
        Key("changed", int, "tensors that the adapter changed"),
        Key("notes", list[str], "changed types and rounding"),
        Key("seconds", float, "wall-clock time", "s"),
    ),
)
QUANTIZE = Document(
    "gradloom.quantize/1",
    "`gradloom quantize --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("out", str, "the file that was written"),
        Key("type", str, "of the file: a type or a mixture of types"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("tensor_bytes_before", int, "all tensors of the model", "bytes"),
        Key("tensor_bytes", int, "all tensors of the new file", "bytes"),
        Key("bits_per_weight", float, "of all tensors of the new file", "bits"),
        Key("types", dict[str, int], "tensors by type"),
        Key("rmse", float, "root mean square of the rounding errors of the converted tensors"),
        Key("rms", float, "root mean square of the numbers of the converted tensors"),
        Key("tensors", [_QUANTIZED], "each tensor, in the file's order"),
        Key("notes", list[str], "other types than those asked for, large errors"),
        Key("seconds", float, "wall-clock time", "s"),
    ),
)
EMBED = Document(
    "gradloom.embed/1",
    "`gradloom embed --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("data", str, "DATA as given"),
        Key("lora", str | None, "the adapter"),
        Key("rows", int, "texts"),
        Key("width", int, "numbers of an embedding"),
        Key("pooling", str, "mean or last"),
        Key("out", str | None, "the file; null without `--out`"),
        Key("notes", list[str], "texts that were cut, names of control tokens"),
        Key("embeddings", list[list[float]], "of each text, of norm 1", when="without `--out`"),
    ),
)

# ---- runs ------------------------------------------------------------------------------------------------------------

_STATES = "running, finished, interrupted or failed"
_TIME = "ISO 8601, UTC"
_RUN = (
    Key("name", str, "path from the searched folder"),
    Key("folder", str, "path"),
    Key("kind", str, "fit, finetune, loop or dp_train"),
    Key("state", str, _STATES),
    Key("begun", str | None, f"begin, {_TIME}"),
    Key("seconds", Number, "duration; null if unknown", "s"),
    Key("steps", int | None, "optimiser steps done"),
    Key("epochs", int | None, "epochs done"),
    Key("data", str | None, "DATA of a fit"),
    Key("settings", str | None, "name of the settings file in the folder; null if missing"),
    Key("numbers", dict[str, Any], "losses and metrics by name"),
)
RUNS = Document(
    "gradloom.runs/1",
    "`gradloom runs --json`",
    (Key("folder", str, "the searched folder"), Key("runs", [_RUN], "in the order of their begin")),
)
RUN = Document(
    "gradloom.run/1",
    "`run.json` in the folder of a run",
    (
        Key("format", int, "of the folder; read by gradloom itself"),
        Key("kind", str, "fit, finetune, loop or dp_train"),
        Key("state", str, f"{_STATES}; still running after a kill"),
        Key("begun", str, f"begin of the run, {_TIME}"),
        Key("ended", str | None, f"end of the last session, {_TIME}; null while it runs"),
        Key("step", int, "optimiser steps done; of watch the step itself"),
        Key("epoch", int, "epochs done"),
        Key("latest", dict[str, float | dict[str, str]], 'numbers of the last epoch; {"$float": "nan"} if not finite'),
        Key("best", dict[str, Any], "the best evaluation, where one is kept"),
        Key("versions", dict[str, str], "of gradloom, numpy and python"),
        Key("went_on", list[str], "resumes in another environment: from which step, and the differences"),
        Key("error", str, "type and message of the error", when="if it failed by one"),
        Key("output", dict[str, str], "path and digest of the adapter or model", when="saved by `gradloom finetune`"),
        Key("pid", int, "process of the last session"),
        Key("host", str, "its machine"),
    ),
)
_SCORE = (
    Key("part", str, "training, validation, test, baseline, before training, or the name of a validation set"),
    Key("quantity", str, "loss, accuracy, ..."),
    Key("value", float, "of the saved weights"),
    Key("value_unc", float, "its uncertainty", when="if known"),
)
_CLASSES = "of classes"
_WORST = (
    Key("row", int, "of the file, from 1; a header is no row"),
    Key("line", int, "of the file, from 1", when="in files with lines"),
    Key("true", str | list[float], "class, or numbers in the units of the targets"),
    Key("predicted", str | list[float], "class, or numbers in the units of the targets"),
    Key("probability", float, "predicted for the true class", when=_CLASSES),
    Key("cells", dict[str, str], "of the most important columns", when="of tables"),
)
_IMPORTANCE = (
    Key("column", str, "its name"),
    Key("score", str, "accuracy or R2; of several targets the mean of theirs"),
    Key("mean", float, "score that is lost when the column is shuffled, mean over the shuffles"),
    Key("deviation", float, "standard deviation over the shuffles"),
    Key("error", float, "standard error from the scatter between rows", when="of two or more rows"),
)
_OF_A_TARGET = (
    Key("rows", int, "in which it is known"),
    Key("scores", dict[str, float], "by name, without those that are not defined"),
    Key("worst", [_WORST], "rows with the worst predictions, the worst first"),
    Key("classes", list[str], "names of the classes", when=_CLASSES),
    Key("confusion", list[list[int]], "rows by true class (first index) and predicted class", "rows", _CLASSES),
)
_QUALITY = (
    Key("file", str, "path of the data"),
    Key("part", str, "test or validation; given: of a file whose rows the training did not hold out"),
    Key("rows", int, "measured"),
    Key("warnings", list[str], "training rows among them, rows that count in no score"),
    Key("notes", list[str], "cells of the file, such as unknown categories"),
    Key(
        "scores",
        dict[str, float],
        "by name as in the result of `fit`, without those that are not defined; of several targets the means",
    ),
    Key("worst", [_WORST], "rows with the worst predictions, the worst first; of several targets none"),
    Key("targets", {str: _OF_A_TARGET}, "each target by its name", when="of several targets"),
    Key("classes", list[str], "names of the classes", when=_CLASSES),
    Key("confusion", list[list[int]], "rows by true class (first index) and predicted class", "rows", _CLASSES),
    Key("importance", [_IMPORTANCE], "permutation importance, the largest first", when="of tables, if defined"),
)
_REPORTED = (
    Key("name", str, "in the page"),
    Key("folder", str, "path"),
    Key("kind", str, "fit, finetune, loop or dp_train"),
    Key("state", str, 'running, finished, interrupted or failed; "" if unknown'),
    Key("scores", [_SCORE], "results of the run"),
    Key("quality", _QUALITY, "of the model of a table or of images, measured now", when="if not left out"),
)
REPORT = Document(
    "gradloom.report/1",
    "`gradloom report --json`",
    (
        Key("out", str, "the page"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("runs", [_REPORTED], "in the order of the command"),
        Key("sections", list[str], "titles of the sections of the page"),
        Key("left_out", list[str], "parts that the page does not have, with the reason"),
        Key("warnings", list[str], "of the measured models: see `quality`"),
    ),
)
METRICS = Document(
    "gradloom.metrics/1",
    "a line of `metrics.jsonl` in the folder of a run",
    (
        Key("kind", str, "train, evaluation, epoch or watch"),
        Key("step", int, "optimiser steps done"),
        Key("epoch", int, "pass over the data, from 1"),
        Key("time", float, "seconds since 1970", "s"),
        Key("seconds", float, "of the whole run, all its sessions", "s"),
        *when(
            "lines train and epoch",
            Key(r"lr.*", float, "learning rate of the last step; with groups one for each", pattern=True),
            Key("grad_norm", Number, "global norm of the gradient of the last step, before clipping"),
            Key("grad_norm_mean", Number, "the same, mean over the steps of the loss"),
            Key("rows", int, "trained on in the whole run"),
            Key("rows_per_second", float, "of training; in lines of epochs with their validation", "1/s"),
            Key("tokens", int, "trained on in the whole run", when="where rows are texts"),
            Key("tokens_per_second", float, "as rows_per_second", "1/s", "where rows are texts"),
            Key("memory_bytes", int, "resident memory now", "bytes"),
            Key("memory_peak_bytes", int, "resident memory, at most so far", "bytes"),
        ),
        Key("epoch_seconds", float, "of the epoch with its validation", "s", "lines epoch"),
        Key(r"norm/.+", Number, "norm of the watched value, or gradient, of this name", "", "lines watch", True),
        Key(
            r"histogram/.+", (
                Key("low", float, "least finite number"), Key("high", float, "largest one"),
                Key("counts", list[int], "numbers in each of equal bins between them"),
                Key("not_finite", int, "other numbers"),
            ), "histogram of the watched value of this name", "", "lines watch, with `watch_what`", True,
        ),
        Key(r"zero_units/.+", int, "units of this activation that are zero for all rows", "", "lines watch", True),
        Key(r"zero_list/.+", str, "these units, such as 3,17-20", "", "lines watch with such units", True),
        Key("not_finite", dict[str, str], "text of each number that is null, by name", when="with such numbers"),
        Key(
            r".+", Number, "loss, accuracy, ... of training (in lines of training the average since the previous line);"
            " val_loss, ... of validation; NAME.loss, ... of a validation set with this name; NAME_unc: uncertainty",
            when="as measured", pattern=True,
        ),
    ),
)  # fmt: skip

# ---- machine ---------------------------------------------------------------------------------------------------------

_CORE = "with a working native core"
_MEASURED = "without `--quick`"
_PROCESSOR = (
    Key("vendor", str, 'from CPUID; "" if unknown'),
    Key("family", int, "from CPUID"),
    Key("model", int, "from CPUID"),
    Key("l1_bytes", int, "data cache of a core; 0: unknown", "bytes"),
    Key("l2_bytes", int, "second cache of a core; 0: unknown", "bytes"),
)
_GPU = (
    Key("hardware", str, "name of the adapter"),
    Key("kind", str, "of the adapter, such as DiscreteGPU"),
    Key("driver", str, "and its version"),
    Key("peak", dict[str, float], "measured rates", "GFLOP/s, GB/s", _MEASURED),
    Key(r"max-.+|min-.+", int, "limits of WebGPU", pattern=True),
)
DOCTOR = Document(
    "gradloom.doctor/1",
    "`gradloom doctor --json`",
    (
        Key("gradloom", str, "version"),
        Key("python", str, "version"),
        Key("system", str, "system and machine, such as Linux x86_64"),
        Key("tested", bool, "whether all tests passed on this kind of system, processor and C library"),
        Key("packages", dict[str, str | None], "versions of the required packages; null: missing"),
        Key("extras", dict[str, dict[str, str | None]], "versions of the packages of each extra; null: missing"),
        Key("problems", list[str], "missing, stale or wrong parts"),
        *when(
            _CORE,
            Key("core", str, "file of the native core"),
            Key("stale_sources", list[str], "sources newer than the core, in a source tree"),
            Key("isas", list[str], "instruction sets with kernels that this machine runs, best first"),
            Key("isa", str, "the one whose kernels are used"),
            Key("cores", int, "cores available to this process"),
            Key("threads", int, "threads used by default"),
            Key("processor", _PROCESSOR, "from CPUID"),
            Key("tuning", str, "settings of matrix products: they change speed, never bits"),
            Key("bf16_units", str, 'units for products of bf16 numbers; "" without'),
            Key("huge_pages", str, "always, madvise, never or unknown"),
            Key("memory_bytes", int, "memory of the machine or the limit of the process", "bytes", "if known"),
            Key("memory_available_bytes", int, "of these available", "bytes", "if known"),
            Key("gpus", {str: _GPU}, "adapters by name: gpu, gpu:1, ..."),
        ),
        *when(
            _MEASURED,
            Key("fma_gflops", dict[str, float], "multiply-add peak by number of threads", "GFLOP/s"),
            Key("copy_gbs", dict[str, float], "copy rate by number of threads", "GB/s"),
            Key("bf16_gain", float, "speed of bf16 products over f32", when="with bf16 units"),
            Key("kernels", dict[str, int], "ops checked against their definitions, by instruction set"),
        ),
    ),
)
REBUILD = Document(
    "gradloom.rebuild/1",
    "`gradloom rebuild --json`",
    (
        Key("run", str, "RUN as given"),
        Key("step", int, "that was computed again, from 1"),
        Key("from_step", int, "of the checkpoint that it was computed from; 0: from the start"),
        Key("epoch", int, "its pass over the data, from 1"),
        Key("rows", list[int], "rows of its batch, counted from 0 in the training data"),
        Key("loss", float, "of the batch", when="unless the step was skipped"),
        Key("grad_norm", float, "global norm of the gradient, before clipping", when="unless the step was skipped"),
        Key("skipped", bool, "whether the step was left out, because a number was not finite"),
        Key("out", str | None, "the file of weights and gradients"),
        Key("seconds", float, "duration", "s"),
    ),
)
CAPSULE = Document(
    "gradloom.capsule/1",
    "`gradloom capsule --json`",
    (
        Key("run", str, "RUN as given"),
        Key("step", int, "that is saved, from 1"),
        Key("from_step", int, "of the checkpoint that it was computed from; 0: from the start"),
        Key("out", str, "the file"),
        Key("bytes", int, "its size", "bytes"),
        Key("calls", int, "micro-batches of the step"),
        Key("steps", int, "instructions of all of them"),
        Key("data", bool, "whether the file has inputs and arrays"),
        Key("error", str | None, "the error that ended the step"),
    ),
)
REPLAY = Document(
    "gradloom.replay/1",
    "`gradloom replay --json`",
    (
        Key("file", str, "FILE as given"),
        Key("agrees", bool, "whether nothing differs"),
        Key("device", str, "that ran"),
        Key("isa", str, "instruction set that ran; empty on a GPU"),
        Key("by_bits", bool, "whether bits were compared; else instructions were held against their definitions"),
        Key("same_plan", bool, "whether the plans are those of the capsule"),
        Key("has_run", bool, "false for a capsule without data: planned and proved only"),
        Key("steps", int, "instructions of all calls"),
        Key("first", str | None, "the first difference"),
        Key("not_finite", str | None, "the first instruction whose output is not finite"),
        Key("error", str | None, "the error with which a call ended, here"),
        Key("reduced", str | None, "the file that `--bisect` has saved"),
    ),
)


# ---- profiles --------------------------------------------------------------------------------------------------------

_TIMED = (
    Key("name", str, "op, line of user code, or module"),
    Key("count", int, "instructions"),
    Key("seconds", float, "of a step: medians, added", "s"),
    Key("flops", float, "floating-point operations", "FLOP"),
    Key("bytes", float, "read and written", "bytes"),
    Key("gflops", float, "rate of the arithmetic", "GFLOP/s"),
    Key("gbs", float, "rate of the bytes", "GB/s"),
    Key("limit_share", float, "share of this machine's measured limit that was reached", when="on the CPU"),
)
_PROFILE = (
    Key("where", str, "device, instruction set, threads"),
    Key("steps", int, "steps that were timed"),
    Key("step_seconds", float, "of a whole step: the median", "s"),
    Key("seconds", float, "of all instructions", "s"),
    Key("instructions", int, "of the program"),
    Key("by_op", [_TIMED], "times by op, the slowest first"),
    Key("by_line", [_TIMED], "by line of user code"),
    Key("by_module", [_TIMED], "by module"),
    Key("by_pattern", [_TIMED], "by module with * for numbers"),
)
PROFILE = Document(
    "gradloom.profile/1",
    "`gradloom profile --json`",
    (
        Key("subject", str, "MODEL or RUN as given"),
        Key("profiles", {str: _PROFILE}, "of each program: training step; prompt and token with `--generate`"),
        Key("trace", str, "the file of --trace", when="with `--trace`"),
        Key("html", str, "the file of --html", when="with `--html`"),
    ),
)
