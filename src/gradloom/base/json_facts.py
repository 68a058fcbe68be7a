"""JSON documents about files, texts, runs and machines: info, merge, embed, runs, doctor, run.json, metrics.jsonl."""

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
            Key("task", str, "classification or regression"),
            Key("target", str, "name of the target column"),
            Key("features", int, "inputs of the network"),
            Key("columns", [_COLUMN], "of the table"),
            Key("shape", list[int], "of a row of arrays"),
            Key("missing", list[str], "words for empty cells"),
            Key("encoding", str, "of text files"),
            Key("classes", list[str], "names of the classes"),
            Key("metrics", dict[str, float], "numbers of the training, as in result.json"),
            Key("about", dict[str, Any], "settings of the training"),
        ),
        Key("network", dict[str, Any], "the layers; their description is not part of the compatibility rule"),
        Key("metadata", dict[str, str], "further metadata of the file"),
        Key("tensors", [_TENSOR], "all arrays"),
    ),
)

# ---- texts -----------------------------------------------------------------------------------------------------------

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
        Key("step", int, "optimiser steps done"),
        Key("epoch", int, "epochs done"),
        Key("latest", dict[str, float | dict[str, str]], 'numbers of the last epoch; {"$float": "nan"} if not finite'),
        Key("best", dict[str, Any], "the best evaluation, where one is kept"),
        Key("versions", dict[str, str], "of gradloom, numpy and python"),
        Key("went_on", list[str], "resumes in another environment: from which step, and the differences"),
        Key("pid", int, "process of the last session"),
        Key("host", str, "its machine"),
    ),
)
METRICS = Document(
    "gradloom.metrics/1",
    "a line of `metrics.jsonl` in the folder of a run",
    (
        Key("kind", str, "train, evaluation or epoch"),
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
