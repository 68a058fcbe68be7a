"""stories260K, a real model: 200 greedy tokens are PyTorch's, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradloom import llm  # noqa: E402
from gradloom.llm.data import token_data  # noqa: E402
from gradloom.llm.generate import complete  # noqa: E402
from tests.llm.torch_model import TorchModel, spm_decode, spm_encode  # noqa: E402
from tests.real_data import DATA  # noqa: E402

pytestmark = pytest.mark.oracle
STORIES = DATA / "gguf" / "stories260K.gguf"
TEXT = STORIES.parents[1] / "text" / "tinyshakespeare.txt"
PROMPT, COUNT = "Once upon a time", 200


@pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES.name} is not beside the checkout, under shared/data/gguf")
def test_two_hundred_greedy_tokens_are_pytorchs() -> None:
    torch.set_num_threads(1)
    theirs = TorchModel(STORIES)
    prompt = spm_encode(theirs.metadata, PROMPT)
    model = llm.load(STORIES)
    assert model.tokenizer.encode(PROMPT) == prompt
    found = complete(model, PROMPT, max_tokens=COUNT, how=llm.Sampling(temperature=0))
    ids = list(found.tokens)
    assert len(ids) == COUNT
    # what PyTorch would say after each of these beginnings: equal everywhere means equal token by token
    with torch.no_grad():
        logits = theirs.logits([prompt + ids])[0, len(prompt) - 1 : -1]
    best = logits.topk(2, -1)
    assert ids == best.indices[:, 0].tolist()
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 1e-4, "a tie would prove nothing"
    text = spm_decode(theirs.metadata, prompt + ids)
    assert text.startswith(
        " Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )
    assert f" {PROMPT}{found.text}" == text
    assert llm.generate(model, PROMPT, max_tokens=COUNT, temperature=0) == found.text
    assert len(set(ids)) > 50, "the text goes round in a circle"


@pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES.name} is not beside the checkout, under shared/data/gguf")
def test_the_oracle_without_a_cache_says_the_same_as_one_pass() -> None:
    theirs = TorchModel(STORIES)
    prompt = spm_encode(theirs.metadata, PROMPT)
    ids = theirs.greedy(prompt, 12)
    with torch.no_grad():
        assert theirs.logits([prompt + ids])[0, len(prompt) - 1 : -1].argmax(-1).tolist() == ids
    assert np.unique(ids).size > 6


@pytest.mark.skipif(
    not (STORIES.exists() and TEXT.exists()), reason="stories260K or tinyshakespeare is not in shared/data"
)
def test_perplexity_on_a_held_text_is_pytorchs(tmp_path: Path) -> None:
    """Windows of 128 tokens that follow one another, all but the first token of each counted."""
    theirs, length = TorchModel(STORIES, torch.float64), 128
    (tmp_path / "text.txt").write_text(TEXT.read_text()[500_000:506_000])
    model = llm.load(STORIES)
    found = llm.evaluate(model, tmp_path / "text.txt", context=length)
    data, _ = token_data(tmp_path / "text.txt", model.tokenizer, length)
    nll = []
    with torch.no_grad():
        for tokens, positions, labels in zip(data.tokens, data.positions, data.labels, strict=True):
            log_p = torch.log_softmax(theirs.logits([tokens], [positions])[0], -1).numpy()
            nll += [-log_p[t, label] for t, label in enumerate(labels) if label >= 0]
    assert found.tokens == len(nll) > 2000
    assert found.nll == pytest.approx(np.mean(nll), abs=2e-6)
    assert found.nll_unc == pytest.approx(np.std(nll, ddof=1) / len(nll) ** 0.5, rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)
    text = spm_decode(theirs.metadata, [int(t) for t in data.tokens[1]])
    assert text.strip() and text.strip() in TEXT.read_text()
