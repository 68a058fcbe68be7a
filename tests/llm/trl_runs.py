"""Runs of TRL's trainers on small random models: losses and metrics of each step."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}  # read by the imports below
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.llm.hf_tokenizers import write_tokenizer

VOCAB, EOS = 300, 2
WORDS = ["<unk>", "<pad>", "<end>", *(f"t{i}" for i in range(3, VOCAB))]


def write_folder(folder: Path, seed: int = 0) -> Any:
    """A random llama in f32, saved; returns the model."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.15, eos_token_id=EOS, bos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    write_tokenizer(folder, "gpt-2", 280)
    return model


def tokenizer() -> Any:
    """A token for each of WORDS."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token=WORDS[0], pad_token=WORDS[1], eos_token=WORDS[EOS], add_bos_token=False
    )


def text(ids: Any) -> str:
    return " ".join(WORDS[i] for i in ids)


def logged(trainer: Any, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Train, and return the numbers of all steps under our names. names: TRL's by ours."""
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {ours: np.array([float(line[theirs]) for line in lines]) for ours, theirs in names.items()}


def settings(folder: Path, steps: int, rate: float, batch: int, **more: Any) -> dict[str, Any]:
    """Arguments of all of TRL's configurations: AdamW as gl.optim.AdamW has it, a constant rate, rows in order."""
    return {
        "output_dir": str(folder / "trl"), "max_steps": steps, "learning_rate": rate, "lr_scheduler_type": "constant",
        "per_device_train_batch_size": batch, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False,
        "optim": "adamw_torch", "weight_decay": 0.0, "max_grad_norm": 0.0, "train_sampling_strategy": "sequential",
        "gradient_checkpointing": False, "disable_tqdm": True, "save_strategy": "no", "warmup_steps": 0,
        "max_length": 64, "logging_first_step": True,
    } | more  # fmt: skip


def _rows(samples: list[dict[str, Any]]) -> Any:
    """A data set of texts; completions begin and end with a blank, so that they stay apart from what is joined."""
    joined = {name: " {} " if name in ("chosen", "rejected", "completion") else "{}" for name in samples[0]}
    rows = [{n: v if isinstance(v, bool) else joined[n].format(text(v)) for n, v in s.items()} for s in samples]
    return Dataset.from_list(rows)


def sft(
    model: Any, pairs: list[dict[str, Any]], folder: Path, names: dict[str, str], steps: int, rate: float, **more: Any
) -> dict[str, np.ndarray]:
    """Prompts and completions: the completions count."""
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(**settings(folder, steps, rate, len(pairs), **more))
    trainer = SFTTrainer(model, config, train_dataset=_rows(pairs), processing_class=tokenizer())
    return logged(trainer, names)


def dpo(
    model: Any, pairs: list[dict[str, Any]], folder: Path, names: dict[str, str], steps: int, rate: float, **more: Any
) -> dict[str, np.ndarray]:
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(**settings(folder, steps, rate, len(pairs), **more))
    reference = copy.deepcopy(model)
    trainer = DPOTrainer(model, reference, config, train_dataset=_rows(pairs), processing_class=tokenizer())
    return logged(trainer, names)


def cpo(
    model: Any, pairs: list[dict[str, Any]], folder: Path, names: dict[str, str], steps: int, rate: float, **more: Any
) -> dict[str, np.ndarray]:
    """Also SimPO: loss_type="simpo", cpo_alpha=0."""
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    given = settings(folder, steps, rate, len(pairs), **more)
    trainer = CPOTrainer(model, CPOConfig(**given), train_dataset=_rows(pairs), processing_class=tokenizer())
    return logged(trainer, names)


def orpo(
    model: Any, pairs: list[dict[str, Any]], folder: Path, names: dict[str, str], steps: int, rate: float, **more: Any
) -> dict[str, np.ndarray]:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    config = ORPOConfig(**settings(folder, steps, rate, len(pairs), **more))
    trainer = ORPOTrainer(model, config, train_dataset=_rows(pairs), processing_class=tokenizer())
    return logged(trainer, names)


def kto(
    model: Any, samples: list[dict[str, Any]], folder: Path, names: dict[str, str], steps: int, rate: float, **more: Any
) -> dict[str, np.ndarray]:
    from trl import KTOConfig, KTOTrainer

    config = KTOConfig(**settings(folder, steps, rate, len(samples), **more))
    reference = copy.deepcopy(model)
    trainer = KTOTrainer(model, reference, config, train_dataset=_rows(samples), processing_class=tokenizer())
    return logged(trainer, names)


def reward(
    folder: Path, samples: list[dict[str, Any]], names: dict[str, str], steps: int, rate: float, **more: Any
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(the first head, the numbers of each step) of a model of `write_folder`."""
    from trl import RewardConfig, RewardTrainer

    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    head = model.score.weight.detach().numpy().copy()
    given = settings(folder, steps, rate, len(samples), **more)
    trainer = RewardTrainer(model, RewardConfig(**given), train_dataset=_rows(samples), processing_class=tokenizer())
    return head, logged(trainer, names)
