import math

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError
from gradloom.llm import LoRA, evaluate, load
from gradloom.llm.evaluate import LOGITS
from tests.llm.random_models import rows_of, write
from tests.real_data import need
from tests.refused import refused


def by_hand(model, data, adapter=None):
    """-log p of every label that counts, in float64, from the logits of whole rows."""
    found = []
    tokens, positions = (gl.input(n, (1, data.tokens.shape[1]), "i32") for n in "tp")
    run = gl.compile(model.logits(tokens, positions, adapter), backend="numpy")
    for row in range(len(data.tokens)):
        logits = run(t=data.tokens[row : row + 1], p=data.positions[row : row + 1])[0].astype(np.float64)
        log_p = (
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1)[:, None]
        )
        labels = data.labels[row]
        found += [-log_p[t, labels[t]] for t in range(len(labels)) if labels[t] >= 0]
    return np.array(found)


@pytest.mark.cheap
@pytest.mark.parametrize(("rows", "length", "size"), [(5, 24, 2), (1, LOGITS + 9, None), (3, 24, 99)])
@pytest.mark.parametrize("with_adapter", [False, True])
def test_what_is_measured(tmp_path, rows, length, size, with_adapter):
    """The mean over the tokens that count, its standard error, and exp of both, whatever the batches."""
    model, data = load(write(tmp_path, "llama", tied=False)), rows_of(rows, length)
    adapter = None
    if with_adapter:
        adapter = LoRA(rank=2, targets="all,output")
        adapter.bind(model)
        rng = np.random.default_rng(0)
        for b in adapter.b.values():
            b.assign(rng.standard_normal(b.shape) * 0.2)
    heard = []
    found = evaluate(model, data, adapter, batch_size=size, on_progress=lambda *a: heard.append(a[:2]))
    nll = by_hand(model, data, adapter)
    assert found.tokens == len(nll) == rows * (length - 2) and found.rows == rows
    assert found.nll == pytest.approx(nll.mean(), rel=1e-6)
    assert found.nll_unc == pytest.approx(nll.std(ddof=0) / math.sqrt(len(nll) - 1), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(nll.mean()), rel=1e-5)
    assert found.perplexity_unc == pytest.approx(found.perplexity * found.nll_unc)
    assert str(found) == f"perplexity {found.perplexity:.4f} +- {found.perplexity_unc:.4f}"
    assert heard[-1] == (rows, rows) and len(heard) == -(-rows // min(size or 512 // length, rows))


def test_rows_whose_tokens_do_not_count_change_nothing(tmp_path):
    model, data = load(write(tmp_path, "qwen2")), rows_of(4, 24)
    data.labels[1] = -100
    data.labels[2, :20] = -100
    found = evaluate(model, data)
    nll = by_hand(model, data)
    assert found.tokens == len(nll) == 22 + 3 + 22 and found.nll == pytest.approx(nll.mean(), rel=1e-6)


def test_the_same_bits_for_any_number_of_threads(tmp_path):
    model, data = load(write(tmp_path, "llama")), rows_of(3, 40)
    first, second = (evaluate(model, data, threads=n) for n in (1, 2))
    assert (first.nll, first.nll_unc) == (second.nll, second.nll_unc)


def test_stories_know_stories(tmp_path):
    model = load(need("gguf/stories260K.gguf"))
    known, other = tmp_path / "known.txt", tmp_path / "other.txt"
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she "
    known.write_text((story + "saw a big, red ball. She wanted to play with it, but it was too high. ") * 6)
    other.write_text(need("text/tinyshakespeare.txt").read_text()[:2000])
    good, bad = (evaluate(model, path, context=128) for path in (known, other))
    assert good.perplexity + 5 * good.perplexity_unc < bad.perplexity and good.perplexity < 5


def test_bad_input(tmp_path):
    model, data = load(write(tmp_path, "llama")), rows_of(2, 24)
    with refused("batch_size", 0):
        evaluate(model, data, batch_size=0)
    data.labels[...] = -100
    with pytest.raises(DataError, match="no token counts"):
        evaluate(model, data)
    data.tokens[1, 3] = 300
    with pytest.raises(DataError, match=r"token id 300 in row 1; need 0\.\.299"):
        evaluate(model, data)


def test_full_training_leaves_the_model_as_it_was(tmp_path):
    """The trained weights are in run.adapter; what it saves is the two together."""
    import gradloom as gl
    from tests.llm.random_models import rows_of
    from tests.llm.random_models import write as write_small

    model, data = gl.llm.load(write_small(tmp_path)), rows_of(4)
    before = gl.llm.evaluate(model, data, threads=1).nll
    run = gl.llm.finetune(model, data, method="full", lr=1e-2, epochs=3, val_split=0.0, progress=False, threads=1)
    assert gl.llm.evaluate(model, data, threads=1).nll == before
    after = gl.llm.evaluate(model, data, run.adapter, threads=1).nll
    run.save(tmp_path / "trained.gguf")
    assert after < before - 0.01
    assert abs(gl.llm.evaluate(tmp_path / "trained.gguf", data, threads=1).nll - after) < 1e-5


def test_the_loss_of_a_text_is_called_nll() -> None:
    found = gl.llm.Perplexity(2.0, 0.1, 0.69, 0.05, 10, 1, 0.5)
    with pytest.raises(AttributeError, match="no attribute 'loss'; use result.nll, in nats for each token"):
        found.loss  # noqa: B018
