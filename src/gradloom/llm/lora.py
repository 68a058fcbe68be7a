"""LoRA (Hu et al., arXiv 2106.09685): y = x W^T + s (x A^T) B^T with A [r, n_in], B [n_out, r], s = alpha / r."""

from __future__ import annotations

import difflib
import fnmatch
import math
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import ops
from ..base import locks
from ..base.arguments import as_bool, as_share, as_whole, f32_hint, in_f32, need_path
from ..base.errors import FileError, SettingError
from ..base.habits import AttributeHints, KeywordHints
from ..data.dataset import generator
from ..files import names_folder, refuse_input
from ..graph.leaves import Parameter, stored_value
from ..graph.scope import scope
from ..graph.stored import Stored, copies
from ..graph.value import Value
from .family import ALL_MODULES, END_MODULES
from .headed import Headed
from .model import model_of

if TYPE_CHECKING:
    from .adapter_arrays import AdapterArrays
    from .model import Model

ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
# Hugging Face's short name of a module -> GGUF's tensor
ALIASES = {module.rpartition(".")[2]: tensor for module, tensor in (ALL_MODULES | END_MODULES).items()}
_STREAM = 3  # of random numbers of a seed (data.dataset uses 1 and 2)


def choose_tensors(names: Sequence[str], wanted: Sequence[str], everything: Sequence[str], what: str) -> list[str]:
    """The names, in order, that `wanted` selects: "all" (those of `everything`), a tensor's full name, its short name
    (attn_q, or q_proj) for all layers, or a pattern (blk.[0-3].attn_*). Raises SettingError, naming the nearest tensor,
    for one that matches none."""
    if isinstance(wanted, str):
        wanted = [part.strip() for part in wanted.split(",") if part.strip()]
    if not wanted:
        raise SettingError(setting=what, seen=wanted, need="at least one tensor, or 'all'")
    chosen: set[str] = set()
    for target in wanted:
        if target in ("all", "all-linear"):
            matches = [n for n in names if n in set(everything)]
        else:
            pattern = _gguf_pattern(target)
            matches = [n for n in names if any(fnmatch.fnmatchcase(form, pattern) for form in _forms(n))]
        if not matches:
            known = sorted({form for n in names for form in _forms(n)} | set(ALIASES))
            near = difflib.get_close_matches(target, known, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            short = ", ".join(dict.fromkeys(_forms(n)[-1] for n in names))
            text = f"{{{what}}}: {target!r} matches no tensor that can be trained; use some of {short}{hint}"
            raise SettingError(text, setting=what)
        chosen.update(matches)
    return [n for n in names if n in chosen]


def _gguf_pattern(target: str) -> str:
    """The pattern for a name of Hugging Face: attn_q for q_proj, blk.3.attn_q for model.layers.3.self_attn.q_proj; any
    other as it is."""
    found = re.fullmatch(r"(?:(?:.*\.)?layers\.([^.]+)\.)?(?:(?:model|self_attn|mlp)\.)*(\w+)(?:\.weight)?", target)
    if found is None or found[2] not in ALIASES:
        return target
    return ALIASES[found[2]] if found[1] is None else f"blk.{found[1]}.{ALIASES[found[2]]}"


def _forms(name: str) -> tuple[str, ...]:
    """blk.3.attn_q.weight, blk.3.attn_q, attn_q.weight and attn_q are one tensor; a bias keeps its ending."""
    stem = name.removesuffix(".weight")
    short = stem.split(".", 2)[2] if stem.startswith("blk.") else stem
    return (name, stem, name.split(".", 2)[2], short) if stem.startswith("blk.") else (name, stem)


class LoRA(Headed, KeywordHints, AttributeHints):
    """An adapter: two trained matrices of low rank for each target; the model itself is frozen.

    rank     r; alpha: the scale's numerator (by default 2 * rank)
    targets  tensors by name, short name or pattern, or "all" for the linear layers of all blocks; by default the four
             projections of the attention. token_embd and output are possible if the model has both.
    dropout  share of the adapter's inputs that is dropped in training
    rslora   scale by alpha / sqrt(rank) instead (Kalajdzievski, arXiv 2312.03732)
    seed     A is sampled from U(-1/sqrt(n_in), 1/sqrt(n_in)), as in PEFT, with a separate stream per target (adding
             a target changes no other); B is 0, so training starts at the model itself. For token_embd A is 0 and B
             normal, as in PEFT.

    The arrays are created for one model, when it is first trained or used with the adapter. chat_template: the template
    that finetune used instead of the model's own, or None; it is saved with the adapter, and merge and Conversation use
    it. head: of an objective that learns from the hidden state of the last token (reward), or None. embedding: how
    texts become embeddings, of the objective embed, or None.
    """

    def __init__(
        self,
        rank: int = 8,
        alpha: float | None = None,
        targets: str | Sequence[str] = ATTENTION,
        dropout: float = 0.0,
        rslora: bool = False,
        seed: int = 0,
    ) -> None:
        rank = as_whole("rank", rank, 1, "LoRA")
        if rank >= 1 << 31:
            raise SettingError(setting="rank", seen=rank, need="a whole number below 2^31", place="LoRA")
        alpha = 2.0 * rank if alpha is None else alpha
        if not isinstance(alpha, (int, float, np.number)) or not 0 < in_f32(alpha) < math.inf:
            raise SettingError(setting="alpha", seen=alpha, need=f"a positive number{f32_hint(alpha)}", place="LoRA")
        dropout = as_share("dropout", dropout, "LoRA")
        generator(seed)  # checks the seed
        self.rank, self.alpha, self.dropout, self.seed = int(rank), float(alpha), dropout, int(seed)
        self.rslora = as_bool("rslora", rslora, "LoRA")
        self.targets = targets
        self.architecture = ""
        self.chat_template: str | None = None
        self.a: dict[str, Parameter] = {}  # tensor -> [r, n_in]; for token_embd [vocabulary, r]
        self.b: dict[str, Parameter] = {}  # tensor -> [n_out, r]
        self._model: Model | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | str | os.PathLike[str]) -> LoRA:
        """Load an adapter from a .gguf file or PEFT's folder (or the .safetensors in it), bound to its model (or to the
        model of a path, which is loaded).

        Raises FileError for a damaged file, and for an adapter of another model; SettingError for an invalid path.
        """
        from .adapter_files import read_adapter

        need_path(path, "LoRA.load", "path", "a path: FILE.gguf, or a folder of PEFT")
        model = model_of(model, "LoRA.load")
        loaded = read_adapter(path, model.file)
        ranks = {b.shape[1] for _, b in loaded.pairs.values()}
        adapter = cls(max(ranks), targets=tuple(loaded.pairs), rslora=loaded.rslora)
        adapter.alpha = loaded.alpha / math.sqrt(adapter.rank) if loaded.rslora else loaded.alpha
        adapter.chat_template = loaded.chat_template
        for name, (a, b) in loaded.pairs.items():
            arrays = ((f"{name}.lora_a", a), (f"{name}.lora_b", b))
            adapter._set(name, *(Stored(at, array, "f32", "trained") for at, array in arrays))
        adapter.bind(model)
        adapter.embedding = loaded.embedding
        if loaded.head is not None:
            adapter.add_head(loaded.head.head, model, adapter.seed, loaded.head.weight)
        return adapter

    def save(self, path: str | os.PathLike[str], model: Model | None = None) -> None:
        """Write the adapter: for llama.cpp if the path ends in .gguf, otherwise a folder for PEFT.

        model: by default the one that it is bound to. Raises FileError if it cannot be written or the path is the
        model's own file, SettingError for a path without a known format.
        """
        from .adapter_gguf import write_adapter_gguf
        from .adapter_peft import in_gguf_order, write_peft

        model = self._model if model is None else model
        if model is None:
            raise SettingError("LoRA.save: the adapter has no arrays yet; train it, or bind it to a model")
        adapter = self.contents(model)
        files = files_of_adapter(path)
        for one in files:
            refuse_input(one, model.path)
        if len(files) == 1:
            write_adapter_gguf(files[0], in_gguf_order(adapter, model.file))
        else:
            base = os.path.abspath(model.path) if os.path.isdir(model.path) else model.config.name
            write_peft(files[0].parent, adapter, model.file, base)

    def contents(self, model: Model) -> AdapterArrays:
        """Copies of the arrays for this model, in its order of rows. Raises FileError if they do not fit it."""
        from .adapter_arrays import CHAT_TEMPLATE, AdapterArrays

        self.bind(model)
        arrays = copies(p.stored for pair in zip(self.a.values(), self.b.values(), strict=True) for p in pair)
        pairs = dict(zip(self.a, zip(arrays[::2], arrays[1::2], strict=True), strict=True))
        texts = {"general.name": f"LoRA for {model.config.name or os.path.basename(model.path)}"}
        if self.chat_template is not None:
            texts[CHAT_TEMPLATE] = self.chat_template
        head = self.head_arrays()
        return AdapterArrays(
            model.config.architecture, self.file_alpha, pairs, self.rslora, texts, head, self.embedding
        )  # fmt: skip

    @property
    def scale(self) -> float:
        """The factor s of pairs of this rank."""
        return self._scale(self.rank)

    def _scale(self, rank: int) -> float:
        if self.alpha == 0:  # as in files without an alpha
            return 1.0
        return self.alpha / (math.sqrt(rank) if self.rslora else rank)

    @property
    def file_alpha(self) -> float:
        """The alpha for a scale of alpha / rank, the only form in adapter files."""
        return self.alpha * math.sqrt(self.rank) if self.rslora else self.alpha

    def bind(self, model: Model) -> None:
        """Create the arrays for this model, unless they exist. Raises SettingError for unknown targets, FileError for
        arrays of a model with other shapes."""
        with locks.building:
            if self._model is model:
                return
            self.check_head(model)
            if self.a:
                self._check_fits(model)
            else:
                for name in self.choose(model):
                    self._draw(name, model.weights[name].shape)
            self.architecture = model.config.architecture
            self._model = model

    def choose(self, model: Model) -> list[str]:
        """The names of the target tensors in this model."""
        targets = self.targets
        if tuple(targets) == ATTENTION and model.config.fused_qkv:
            targets = ("attn_qkv", "attn_output")
        return choose_tensors(without_output(adaptable(model), self), targets, block_linears(model), "targets")

    def trained_bytes(self, model: Model) -> int:
        """Bytes of the arrays, also before they are created. Raises SettingError for unknown targets."""
        if self.a:
            return 4 * self.parameter_count
        head = sum(p.size for p in self.head_parameters().values())
        return 4 * (self.rank * sum(sum(model.weights[name].shape) for name in self.choose(model)) + head)

    def _draw(self, name: str, shape: tuple[int, ...]) -> None:
        n_out, n_in = shape
        rows_of_a = name == "token_embd.weight"  # [vocabulary, d]: a row of A for each token
        a_shape, b_shape = (
            ((n_out, self.rank), (n_in, self.rank)) if rows_of_a else ((self.rank, n_in), (n_out, self.rank))
        )
        zeros = np.broadcast_to(np.float32(0), a_shape if rows_of_a else b_shape)

        def draw() -> np.ndarray:
            rng = generator(self.seed, _STREAM, zlib.crc32(name.encode()))
            if rows_of_a:
                return rng.standard_normal(b_shape)
            bound = 1 / math.sqrt(n_in)  # kaiming_uniform(a=sqrt(5))
            return rng.uniform(-bound, bound, a_shape)

        a, b = f"{name}.lora_a", f"{name}.lora_b"
        if rows_of_a:
            self._set(name, Stored(a, zeros, "f32", "trained"), Stored.deferred(b, b_shape, draw, "f32", "trained"))
        else:
            self._set(name, Stored.deferred(a, a_shape, draw, "f32", "trained"), Stored(b, zeros, "f32", "trained"))

    def _set(self, name: str, a: Stored, b: Stored) -> None:
        self.a[name], self.b[name] = stored_value(a), stored_value(b)

    def _check_fits(self, model: Model) -> None:
        possible = adaptable(model)
        for name in self.a:
            if name not in possible:
                raise FileError(
                    f"adapter: has arrays for {name}, which {model.path} does not have; need an adapter that was "
                    "trained on this model"
                )
            n_out, n_in = model.weights[name].shape
            a, b = self.a[name].shape, self.b[name].shape
            need = ((n_out, a[-1]), (n_in, a[-1])) if name == "token_embd.weight" else ((a[0], n_in), (n_out, a[0]))
            if (a, b) != need:
                raise FileError(
                    f"adapter: {name} has shapes {list(a)} and {list(b)}; {model.path} needs {list(need[0])} and "
                    f"{list(need[1])}: the adapter is for another model"
                )

    # ---- the forward pass ----------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Parameter]:
        return {p.stored.name: p for name in self.a for p in (self.a[name], self.b[name])} | self.head_parameters()

    def weight(self, name: str) -> Parameter | None:
        return None

    def linear(self, name: str, x: Value, rows: int, training: bool) -> Value | None:
        if name not in self.a or name == "token_embd.weight":
            return None
        with scope("lora"):
            if training and self.dropout:
                per_row = x.reshape(rows, x.shape[0] // rows, x.shape[1])  # masks belong to sequences: see ops.dropout
                x = ops.dropout(per_row, self.dropout, stream=zlib.crc32(name.encode())).reshape(x.shape)
            b = self.b[name]
            thin = ops.scale(ops.matmul(x, self.a[name], transpose_y=True), factor=self._scale(b.shape[1]))  # [N, r]
            return ops.matmul(thin, b, transpose_y=True)

    def embed(self, name: str, tokens: Value) -> Value | None:
        if name not in self.a:
            return None
        with scope("lora"):
            b = self.b[name]
            thin = ops.scale(ops.get_rows(self.a[name], tokens), factor=self._scale(b.shape[1]))
            return ops.matmul(thin, b, transpose_y=True)

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters().values())

    def __repr__(self) -> str:
        bound = f", {self.parameter_count} parameters" if self.a else ""
        return f"LoRA(rank {self.rank}, alpha {self.alpha:g}, targets {self.targets}{bound})"


def files_of_adapter(path: str | os.PathLike[str]) -> list[Path]:
    """The files that LoRA.save writes for this path: one .gguf, or PEFT's two in a folder. Raises SettingError for a
    path without a known format."""
    from .adapter_peft import PEFT_CONFIG, PEFT_WEIGHTS

    target = Path(path)
    if target.suffix == ".gguf":
        return [target]
    if names_folder(target) or target.name == PEFT_WEIGHTS:
        folder = target if names_folder(target) else target.parent
        return [folder / PEFT_WEIGHTS, folder / PEFT_CONFIG]
    raise SettingError(f"{path}: must be FILE.gguf (an adapter for llama.cpp) or a folder (for PEFT)")


def without_output(names: Sequence[str], adapter: Headed) -> list[str]:
    """The names without the output's matrix, which embeddings and a head do not use."""
    is_used = adapter.head is None and adapter.embedding is None
    return [name for name in names if is_used or name != "output.weight"]


def block_linears(model: Model) -> list[str]:
    """The linear layers of all blocks, which "all" selects for LoRA."""
    return [f"blk.{i}.{name}.weight" for i in range(model.config.layers) for name in model.family.linears(model.config)]


def adaptable(model: Model) -> list[str]:
    """Tensors that LoRA can adapt. A tied embedding is not one: it would require two pairs of matrices."""
    ends = [] if model.tied else ["token_embd.weight", "output.weight"]
    return [*ends[:1], *block_linears(model), *ends[1:]]
