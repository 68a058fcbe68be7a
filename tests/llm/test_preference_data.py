"""Preferences and judged completions: lines as token sequences, sequences as rows, and each bad line."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradloom as gl
from gradloom.base.errors import DataError, SettingError
from gradloom.llm.data import read_samples, token_data
from gradloom.llm.forms import TEXTS, Form
from gradloom.llm.packing import TokenData, pack
from gradloom.llm.preferences import common_prompt
from gradloom.llm.rows import Rows, check_form, read_rows
from gradloom.llm.samples import Report, Samples
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.chats import CHATML, MARKED, QWEN3
from tests.llm.random_models import write
from tests.llm.small_tokenizers import byte_bpe, real
from tests.llm.test_data import jsonl, tokenizer
from tests.refused import refused

PAIRS, REWARD, JUDGED = Form("preferences", 2), Form("preferences", 2, prompts=True), Form("judged")
PAIR = {"prompt": "the", "chosen": "a b", "rejected": "c"}
GOOD = {"prompt": "the", "completion": "a b", "label": True}
BAD = {"prompt": "the", "completion": "c", "label": False}
USER, YES, NO = ({"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "Yes"), ("assistant", "No")))


def read(rows, form=PAIRS, **options):
    return read_samples(rows, tokenizer(chat_template=CHATML), form=form, **options)


def sides_of(samples):
    """[(whole text, text that counts)] of each part, through the tokens."""
    tok = tokenizer()
    bounds = list(zip(samples.starts[:-1], samples.starts[1:], strict=True))
    assert len(bounds) == len(samples) * samples.parts
    return [(tok.decode(samples.tokens[a:b]), tok.decode(samples.tokens[a:b][samples.counted[a:b]])) for a, b in bounds]


# -- preferences -------------------------------------------------------------------------------------------------------


def test_a_pair_of_texts_is_two_prompts_with_completions(tmp_path):
    path = jsonl(tmp_path, [PAIR, PAIR | {"rejected": " d", "id": 4}])
    samples = read_samples(path, tokenizer(), form=PAIRS)
    alone = read_samples(
        [{"prompt": "the", "completion": text} for text in ("a b", "c", "a b", " d")], tokenizer()
    )  # fmt: skip
    for name in ("tokens", "counted", "starts"):
        assert (getattr(samples, name) == getattr(alone, name)).all(), name
    assert (len(samples), samples.parts, samples.values) == (2, 2, None) and samples.starts.size == 5
    assert sides_of(samples)[1] == ("the\nc<|im_end|>", "\nc<|im_end|>")
    tokens, counted = samples[0]
    assert tokens.tolist() == samples.tokens[: samples.starts[2]].tolist() and counted.size == tokens.size
    assert str(samples.report) == (
        f"{path}: preferences (prompt, chosen, rejected); 2 samples, {samples.tokens.size} tokens,"
        f" {int(samples.counted.sum())} to learn (both completions)"
    )
    assert samples.report.keys == ("prompt", "chosen", "rejected") and samples.report.unused == ()


def test_keys_and_the_separator():
    rows = [{"q": "the", "ctx": "an", "good": "a", "worse": "c", "source": "x"}]
    names = {"prompt_key": "q,ctx", "chosen_key": "good", "rejected_key": "worse"}
    samples = read(rows, **names, separator=" = ")
    assert sides_of(samples) == [(f"the\nan = {x}<|im_end|>", f" = {x}<|im_end|>") for x in "ac"]
    assert samples.report.unused == ("source",) and samples.report.kind == "preferences (q, ctx, good, worse)"
    alpaca = read([{"instruction": "the", "input": "an", "chosen": "a", "rejected": "c"}])
    assert sides_of(alpaca)[0] == ("the\nan\na<|im_end|>", "\na<|im_end|>")


@pytest.mark.parametrize(
    "chosen, rejected, prompt",
    [
        ("the sky is blue", "the sky is green", "the sky is"),  # as extract_prompt of TRL: without the space
        ("Q: a?\n\nA: blue", "Q: a?\n\nA: black", "Q: a?\n\nA:"),  # not in the middle of a word
        ("Q\nblue", "Q\ngreen", "Q\n"),
        ("blue", "black", ""),
        ("a b", "a b c", "a"),  # one is the start of the other
        ("a\n", "a\nb", ""),
        ("a  b", "a  c", "a "),
        (" b", " c", ""),
    ],
)
def test_the_common_start_is_the_prompt(chosen, rejected, prompt):
    for one, other in ((chosen, rejected), (rejected, chosen)):
        assert one[: common_prompt(one, other)] == prompt
    samples = read([{"chosen": chosen, "rejected": rejected}])
    counted = [chosen, rejected] if not prompt else [side[len(prompt) :] for side in (chosen, rejected)]
    first = [tokenizer().encode(side)[:1] for side in counted]
    want = [(side + "<|im_end|>", part + "<|im_end|>") for side, part in zip((chosen, rejected), counted, strict=True)]
    if not prompt:  # nothing comes before the first token
        want = [(w, w[len(tokenizer().decode(ids)) :]) for (w, _), ids in zip(want, first, strict=True)]
    assert sides_of(samples) == want and samples.report.kind == "preferences (chosen, rejected)"


def test_tokens_of_a_common_start_are_those_of_the_whole_text():
    """TRL 1.16 tokenises both texts and takes their common tokens as the prompt: the same tokens, and for words the
    same prompt."""
    tok = real("gpt-2")
    for chosen, rejected in (("The sky is blue today.", "The sky is green."), ("\n\nA: Hello you", "\n\nA: Goodbye")):
        samples = read_samples([{"chosen": chosen, "rejected": rejected}], tok, form=PAIRS)
        whole = [[*tok.encode(side), tok.eos] for side in (chosen, rejected)]
        found = [samples.tokens[a:b].tolist() for a, b in zip(samples.starts, samples.starts[1:], strict=False)]
        assert found == whole
        common = next(i for i, (a, b) in enumerate(zip(*whole, strict=False)) if a != b)
        for a, b in zip(samples.starts, samples.starts[1:], strict=False):
            assert np.flatnonzero(samples.counted[a:b])[0] == common


@pytest.mark.slow
def test_chats_with_and_without_a_prompt():
    more = [USER, NO, {"role": "user", "content": "Why"}]
    want = [(f"{x}<|im_end|>") for x in ("Yes", "No")]
    for prompt in ([USER], more):
        whole = read([{"chosen": [*prompt, YES], "rejected": [*prompt, NO]}])
        assert [counted for _, counted in sides_of(whole)] == want  # the turn in the prompt does not count
        assert whole.report.kind == "preferences (chosen, rejected), as chats"
        for row in (
            {"prompt": prompt, "chosen": [YES], "rejected": [NO]},
            {"prompt": prompt, "chosen": [*prompt, YES], "rejected": [*prompt, NO]},
            {"prompt": "Hi ", "chosen": [*prompt, YES], "rejected": [*prompt, NO]},
        ):
            other = read([row])
            assert (other.tokens == whole.tokens).all() and (other.counted == whole.counted).all()
    chat = read_samples([{"messages": [USER, YES]}], tokenizer(chat_template=CHATML))
    short = read([{"chosen": [USER, YES], "rejected": [USER, NO]}])
    assert (short.tokens[: short.starts[1]] == chat.tokens).all()
    as_chat = read([{"prompt": "Hi", "chosen": "Yes", "rejected": "No"}], as_chat=True)
    assert (as_chat.tokens == short.tokens).all() and (as_chat.counted == short.counted).all()
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]
    shared = read([{"chosen": sharegpt, "rejected": [sharegpt[0], {"from": "gpt", "value": "No"}]}])
    assert (shared.tokens == short.tokens).all()
    start = read([{"chosen": [USER, YES], "rejected": [USER, YES, USER, NO]}])  # one is the start of the other
    assert [counted for _, counted in sides_of(start)] == ["Yes<|im_end|>", "Yes<|im_end|>No<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, MARKED, QWEN3])
def test_each_template_counts_the_reply(template):
    prompt = [USER, NO, USER]
    options = {"form": PAIRS, "chat_template": template}
    samples = read_samples([{"prompt": prompt, "chosen": [YES], "rejected": [NO]}], tokenizer(), **options)
    counted = [text for _, text in sides_of(samples)]
    assert all(text.endswith(f"{x}<|im_end|>") for text, x in zip(counted, ("Yes", "No"), strict=True)), counted
    assert not any("Hi" in text or text.count("im_end") > 1 for text in counted)


def test_tools_of_a_line_apply_to_both_sides():
    row = {"chosen": [USER, YES], "rejected": [USER, NO], "tools": [{"name": "f"}]}
    tools = "{% if tools %}{{ tools[0].name }}: {% endif %}"
    samples = read([row], chat_template=tools + CHATML)
    assert all(text.startswith("f: ") for text, _ in sides_of(samples)) and "tools" in samples.report.keys


def test_a_template_whose_blocks_are_not_turns():
    blocks = MARKED.replace("{% generation %}", "{% generation %}{% endgeneration %}{% generation %}")
    with pytest.raises(DataError, match=r"^data: sample 1: the chat template marks 4 texts for 2 turns"):
        read([{"chosen": [USER, NO, USER, YES], "rejected": [USER, NO, USER, NO]}], chat_template=blocks)


def test_margins():
    rows = [PAIR | {"margin": 2}, PAIR | {"margin": -0.5}]
    samples = read(rows)
    assert samples.values.dtype == np.float32 and samples.values.tolist() == [[2.0], [-0.5]]
    assert "margin" in samples.report.keys and samples.report.kind == "preferences (prompt, chosen, rejected)"
    with pytest.raises(DataError, match="sample 2: has margin, which sample 1 does not have; need it in all lines or"):
        read([PAIR, rows[0]])


# -- judged completions ------------------------------------------------------------------------------------------------


def test_judged_completions():
    samples = read([GOOD, BAD, GOOD | {"label": 1}, BAD | {"label": 0}], JUDGED)
    assert samples.values.dtype == np.float32 and samples.values.tolist() == [[1.0], [0.0], [1.0], [0.0]]
    assert sides_of(samples)[:2] == [(f"the\n{x}<|im_end|>", f"\n{x}<|im_end|>") for x in ("a b", "c")]
    report = samples.report
    assert (report.kind, report.counts) == ("judged completions (prompt, completion, label)", "completions")
    assert samples.parts == 1 and len(samples) == 4
    chats = [{"prompt": [USER], "completion": [x], "label": x is YES} for x in (YES, NO)]
    as_chats = read(chats, JUDGED)
    assert [counted for _, counted in sides_of(as_chats)] == ["Yes<|im_end|>", "No<|im_end|>"]
    whole = [{"messages": [USER, x], "label": x is YES} for x in (YES, NO)]
    complete = [{"prompt": [USER], "completion": [USER, x], "label": x is YES} for x in (YES, NO)]
    texts = [{"prompt": "Hi", "completion": x["content"], "label": x is YES} for x in (YES, NO)]
    for rows, more in ((whole, {}), (complete, {}), (texts, {"as_chat": True})):
        other = read(rows, JUDGED, **more)
        assert (other.tokens == as_chats.tokens).all() and (other.counted == as_chats.counted).all()
    long = read([{"messages": [USER, YES, USER, x], "label": x is YES} for x in (YES, NO)], JUDGED)
    assert [counted for _, counted in sides_of(long)] == ["Yes<|im_end|>", "No<|im_end|>"]  # the last reply alone
    assert long.report.kind == "judged chats (messages, label)"
    named = [{"q": "the", "a": "b", "ok": k == 0} for k in range(2)]
    keys = {"prompt_key": "q", "completion_key": "a", "label_key": "ok"}
    assert read(named, JUDGED, **keys).values.tolist() == [[1.0], [0.0]]


def test_one_label_alone():
    for row, label in ((GOOD, "true"), (BAD, "false")):
        with pytest.raises(DataError, match=f"data: the label of all 2 samples is {label}; need completions with"):
            read([row, row], JUDGED)


# -- lines that are no samples -----------------------------------------------------------------------------------------

NUMBER = "need a finite number"
REFUSED = [  # form, good line, what is changed, message
    (PAIRS, PAIR, {"chosen": ...}, "the keys are prompt, rejected; need chosen, as in line 1"),
    (PAIRS, PAIR, {"prompt": ...}, "the keys are chosen, rejected; need prompt, as in line 1"),
    (PAIRS, PAIR, {"rejected": ""}, "rejected is empty; need a completion"),
    (PAIRS, PAIR, {"chosen": None}, "the keys are prompt, rejected; need chosen, as in line 1"),
    (PAIRS, PAIR, {"prompt": [USER]}, "prompt is a list; need a text"),
    (PAIRS, PAIR, {"chosen": "\ud800"}, "chosen holds U+D800, half of a pair"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": ...}, "need margin, as in line 1"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": "1"}, "margin is a text; need a number"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": True}, "margin is a truth value; need a number"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": float("nan")}, f"margin is nan; {NUMBER}"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": 1e39}, f"margin is 1e+39; {NUMBER}"),
    (PAIRS, PAIR | {"margin": 1}, {"margin": -(10**400)}, f"margin is inf; {NUMBER}"),
    (PAIRS, {"chosen": "a b", "rejected": "a c"}, {"prompt": "a"}, "has prompt, which line 1 does not have; need it"),
    (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"rejected": "No"}, "rejected is a text; need a list of"),
    (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"rejected": []}, "rejected is empty; need messages"),
    (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"rejected": [USER, USER]}, "rejected has no turn of the"),
    (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"rejected": [USER, NO | {"content": ""}]},
     "rejected is empty: the turns of the assistant have no text"),
    (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"rejected": [USER, 3]}, "message 2 of 2 has no role"),
    (PAIRS, {"prompt": [USER], "chosen": [YES], "rejected": [NO]}, {"prompt": "Ho"},
     "prompt is a text that the common messages of chosen and rejected do not contain"),
    (JUDGED, GOOD, {"label": ...}, "the keys are prompt, completion; need label, as in line 1"),
    (JUDGED, GOOD, {"label": None}, "the keys are prompt, completion; need label"),
    (JUDGED, GOOD, {"label": 2}, "label is 2; need true or false"),
    (JUDGED, GOOD, {"label": 1.0}, "label is 1.0; need true or false"),
    (JUDGED, GOOD, {"label": float("nan")}, "label is nan; need true or false"),
    (JUDGED, GOOD, {"label": "true"}, "label is 'true'; need true or false"),
    (JUDGED, GOOD, {"completion": ""}, "completion is empty; need a completion"),
    (JUDGED, {"messages": [USER, YES], "label": True}, {"messages": [USER, YES, USER]},
     "messages has no turn of the assistant after the last turn of the user"),
    (JUDGED, {"prompt": [USER], "completion": [YES], "label": True}, {"prompt": "Hi"},
     "prompt is a text and completion a list; need two lists of messages"),
]  # fmt: skip


@pytest.mark.parametrize("form, good, change, message", REFUSED)
def test_bad_lines(tmp_path, form, good, change, message):
    bad = {key: value for key, value in (good | change).items() if value is not ...}
    more = [good | {"label": False}] if form is JUDGED else []
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (good, bad, *more)))
    tok = tokenizer(chat_template=CHATML)
    with pytest.raises(DataError) as caught:
        read_samples(path, tok, form=form)
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value), caught.value
    assert "\n" not in str(caught.value)
    samples = read_samples(path, tok, form=form, skip_bad_lines=True)
    assert len(samples) == 1 + len(more) and samples.report.bad_lines == 1 and message in samples.report.bad[0]


def test_identical_sides_are_skipped(tmp_path):
    same = PAIR | {"rejected": PAIR["chosen"]}
    samples = read([PAIR, same, PAIR, same])
    assert len(samples) == 2 and samples.report.skipped == {"identical sides": 2}
    assert "skipped: 2 samples, identical sides" in str(samples.report)
    with pytest.raises(DataError, match="2 lines, no sample to train on; skipped: 2 samples, identical sides"):
        read_samples(jsonl(tmp_path, [same, same]), tokenizer(), form=PAIRS)
    chat = {"prompt": [USER], "chosen": [USER, YES], "rejected": [YES]}
    assert read([chat | {"rejected": [NO]}, chat]).report.skipped == {"identical sides": 1}
    assert read([{"chosen": "a b", "rejected": "a c"}, {"chosen": "a b", "rejected": "a b"}]).report.skipped


def test_first_lines_without_the_keys(tmp_path):
    for form, row, message in (
        (
            PAIRS,
            {"prompt": "a", "chosen": "b"},
            "the keys are prompt, chosen; need chosen and rejected, with prompt or",
        ),
        (PAIRS, {"text": "a"}, "the keys are text; need chosen and rejected, with prompt or a common start"),
        (JUDGED, {"prompt": "a", "completion": "b"}, "need prompt with completion and label, or messages and label"),
        (JUDGED, {"completion": "b", "label": True}, "need prompt with completion and label"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            read([row], form)
    with pytest.raises(DataError, match="need chosen and rejected, with q or a common start"):
        read([PAIR], prompt_key="q")
    with pytest.raises(DataError, match="sample 1: chosen is a JSON object; need a text or a list of messages"):
        read([PAIR | {"chosen": {"from": "gpt", "value": "a"}}])
    (tmp_path / "t.txt").write_text("once upon a time")
    with pytest.raises(DataError, match=r"t.txt: is one text; need prompt, chosen and rejected in each line of a .jso"):
        read_samples(tmp_path / "t.txt", tokenizer(), form=PAIRS)
    with pytest.raises(SettingError, match="form is a str; need a gl.llm.Form"):
        read([PAIR], "preferences")


@pytest.mark.parametrize(
    "form, row, options, setting",
    [
        (PAIRS, PAIR, {"text_key": "text"}, "text_key"),
        (PAIRS, PAIR, {"completion_key": "chosen"}, "completion_key"),
        (PAIRS, PAIR, {"label_key": "chosen"}, "label_key"),
        (PAIRS, PAIR, {"messages_key": "chosen"}, "messages_key"),
        (PAIRS, PAIR, {"train_on_all": True}, "train_on_all=True"),
        (PAIRS, PAIR, {"train_on_all": False}, "train_on_all=False"),
        (PAIRS, PAIR, {"chat_template": CHATML}, "chat_template"),
        (PAIRS, PAIR, {"as_chat": True, "separator": " "}, "separator"),
        (PAIRS, {"chosen": "a b", "rejected": "a c"}, {"separator": " "}, "separator"),
        (PAIRS, {"chosen": "a b", "rejected": "a c"}, {"as_chat": True}, "as_chat"),
        (PAIRS, {"chosen": [USER, YES], "rejected": [USER, NO]}, {"as_chat": True}, "as_chat"),
        (JUDGED, GOOD, {"chosen_key": "completion"}, "chosen_key"),
        (JUDGED, GOOD, {"rejected_key": "completion"}, "rejected_key"),
        (JUDGED, {"messages": [USER, YES], "label": True}, {"prompt_key": "p"}, "prompt_key"),
        (TEXTS, {"text": "a"}, {"chosen_key": "a"}, "chosen_key"),
        (TEXTS, {"prompt": "a", "completion": "b"}, {"rejected_key": "a"}, "rejected_key"),
        (TEXTS, {"messages": [USER, YES]}, {"label_key": "a"}, "label_key"),
    ],
)
def test_options_without_effect_are_refused(form, row, options, setting):
    with pytest.raises(DataError, match=rf"{re.escape(setting)} requires ") as caught:
        read([row], form, **options)
    assert "\n" not in str(caught.value)
    with refused("chosen_key", 3):
        read([PAIR], chosen_key=3)


# -- rows --------------------------------------------------------------------------------------------------------------


def made(parts, counted, count=1, values=None):
    """Samples of these parts: lists of tokens, and of flags."""
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    flags = np.array([flag for part in counted for flag in part], bool)
    report = Report("made", "made")
    return Samples(np.concatenate(parts).astype(np.int32), flags, starts, report, False, count, values)


def test_rows_by_hand():
    samples = made(
        [[1, 2, 3, 4], [1, 2, 5], [6, 7], [6, 8, 9]], [[0, 0, 1, 1], [0, 0, 1], [0, 1], [0, 1, 1]], 2,
        np.array([[0.5], [-2]], np.float32),
    )  # fmt: skip
    data = pack(samples, 4)
    assert data.tokens.tolist() == [[1, 2, 3, 1, 2, 6, 6, 8]]
    assert data.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1]]
    assert data.labels.tolist() == [[-100, 3, 4, -100, 5, 7, 8, 9]]
    assert data.parts.tolist() == [[-2, 0, 0, -3, 1, 2, 3, 3]]
    assert data.values.tolist() == [[[1, 0.5], [1, -2]]] and data.samples.tolist() == [[0, 1]]
    everywhere = pack(samples, 4, prompts=True)
    assert everywhere.labels.tolist() == [[2, 3, 4, 2, 5, 7, 8, 9]]
    assert (everywhere.parts == data.parts).all() and everywhere.report == data.report
    apart = pack(samples, 4, packing=False)
    assert apart.parts.tolist() == [[-2, 0, 0, -3, 1, -1, -1, -1], [0, 1, 1, -1, -1, -1, -1, -1]]
    assert apart.samples.tolist() == [[0], [1]] and apart.values.shape == (2, 1, 2)
    report = data.report
    assert (report.rows, report.context, report.samples, report.tokens, report.counted) == (1, 4, 2, 12, 6)
    assert report.padding == 0 and "1 row of 2 x 4 tokens, 0.0% padding" in str(report)
    assert "parts" not in report.as_dict()
    arrays = (data.tokens, data.positions, data.labels, data.parts, data.samples)
    assert all(array.dtype == np.int32 for array in arrays) and data.values.dtype == np.float32
    first = pack(made([[1, 2], [1, 3], [4, 5, 6], [4, 5, 7]], [[0, 1], [0, 1], [0, 1, 1], [0, 0, 1]], 2), 3)
    assert first.tokens.tolist() == [[4, 5, 4, 5, 1, 1]] and first.samples.tolist() == [[1, 0]]  # the longest first
    assert first.parts.tolist() == [[0, 0, -3, 1, 2, 3]] and first.values.tolist() == [[[1], [1]]]


def test_long_sides_are_cut_and_long_prompts_skipped():
    flags = [0, 0, 1, 1, 1, 1]
    samples = made(
        [[1, 2, 3, 4, 5, 6], [1, 2, 7], [*range(1, 7), 8], [1, 9], [1, 2], [1, 3]],
        [flags, [0, 0, 1], [0] * 6 + [1], [0, 1], [0, 1], [0, 1]], 2,
    )  # fmt: skip
    data = pack(samples, 4)
    report = data.report
    assert (report.cut, report.cut_tokens, report.samples) == (1, 1, 2)
    assert report.skipped == {"a side has no token that counts within the context": 1}
    assert sorted(data.samples.ravel().tolist()) == [0, 2] and data.labels.max() == 7
    with pytest.raises(
        DataError, match="made: no sample has a token to learn within 1 token .*; need a longer context"
    ):
        pack(made([[1, 2, 3], [1, 4]], [[0, 0, 1], [0, 1]], 2), 1)


def unpacked(data, parts):
    """{index of the sample: ([(tokens, counted) of each part], values)}, from the rows alone."""
    found = {}
    for row in range(len(data)):
        numbers = np.where(data.parts[row] >= 0, data.parts[row], -2 - data.parts[row])
        is_padding = data.parts[row] == -1
        assert (data.labels[row][is_padding] == -100).all() and not data.tokens[row][is_padding].any()
        assert not data.positions[row][is_padding].any() and (np.diff(is_padding.astype(int)) >= 0).all()
        for k in np.flatnonzero(data.values[row, :, 0]).tolist():
            sides = []
            for number in range(k * parts, (k + 1) * parts):
                at = np.flatnonzero((numbers == number) & ~is_padding)
                assert at.tolist() == list(range(at[0], at[-1] + 1))
                assert data.positions[row, at].tolist() == list(range(at.size))
                sides.append((
                    [*data.tokens[row, at].tolist(), int(data.labels[row, at[-1]])],
                    [False, *(data.parts[row, at] >= 0).tolist()],
                    data.labels[row, at].tolist(),
                ))  # fmt: skip
            found[int(data.samples[row, k])] = sides, data.values[row, k, 1:].tolist()
        assert (data.samples[row][data.values[row, :, 0] == 0] == -1).all()
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.sampled_from([(1, 1), (2, 0), (2, 1), (3, 2)]))
def test_rows_lose_nothing(seed, packing, prompts, form):
    rng = np.random.default_rng(seed)
    count, width = form
    context, number = int(rng.integers(2, 30)), int(rng.integers(1, 40))
    sizes = rng.integers(2, context + 2, number * count)
    parts = [rng.integers(1, 1000, n) for n in sizes]
    counted = [np.concatenate([[False], rng.random(n - 2) < 0.5, [True]]) for n in sizes]
    values = rng.standard_normal((number, width)).astype(np.float32) if width else None
    samples = made(parts, counted, count, values)
    data = pack(samples, context, packing, prompts)
    found = unpacked(data, count)
    assert sorted(found) == list(range(number)) and data.tokens.shape[1] == count * context
    for i, (sides, numbers) in found.items():
        assert numbers == ([] if values is None else values[i].tolist())
        for side, (tokens, flags, labels) in enumerate(sides):
            want, known = parts[i * count + side].tolist(), counted[i * count + side].tolist()
            assert (tokens, flags) == (want, known)
            shown = [t if flag or prompts else -100 for t, flag in zip(want[1:], known[1:], strict=True)]
            assert labels == shown
    again = pack(samples, context, packing, prompts)
    names = ("tokens", "positions", "labels", "parts", "values", "samples")
    assert all((getattr(again, name) == getattr(data, name)).all() for name in names)
    assert data.report.counted == int(samples.counted.sum()) and data.report.tokens == samples.tokens.size
    assert packing or len(data) == number


def test_rows_of_texts_have_no_parts():
    data = pack(read_samples([{"text": "the end"}], tokenizer()), 8)
    assert data.parts is data.values is data.samples is None
    with pytest.raises(SettingError, match="prompts=True requires samples of several parts"):
        pack(read_samples([{"text": "the end"}], tokenizer()), 8, prompts=True)


def test_a_split_keeps_the_parts_of_a_sample_together():
    rows = [{"prompt": f"p{i}", "chosen": f"good {i}", "rejected": f"bad {i}", "margin": i} for i in range(30)]
    samples = read(rows)
    parts = samples.split(0.2, 3)
    assert [len(part) for part in parts] == [24, 6] and all(part.parts == 2 for part in parts)
    seen = []
    for part in parts:
        texts = sides_of(part)
        for i in range(len(part)):
            margin = int(part.values[i, 0])
            assert [texts[2 * i][0], texts[2 * i + 1][0]] == [
                f"p{margin}\n{word} {margin}<|im_end|>" for word in ("good", "bad")
            ]
            assert (part[i][0] == samples[margin][0]).all() and (part[i][1] == samples[margin][1]).all()
            seen.append(margin)
    assert sorted(seen) == list(range(30))
    with pytest.raises(IndexError):
        samples[30]
    train, val = token_data(rows, tokenizer(), 32, 0.2, 3, form=REWARD)
    assert (train.report.samples, val.report.samples) == (24, 6) and (val.labels[val.parts < -1] != -100).any()


# -- read_rows ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gl.llm.load(write(tmp_path_factory.mktemp("model"), "llama", context=32))


def test_rows_for_a_model(model):
    rows = [{"prompt": "once", "chosen": "upon " * (1 + i % 3), "rejected": "time", "margin": i} for i in range(40)]
    found = read_rows(model, rows, 32, 0.25, seed=2, form=REWARD)
    assert found.tokens.shape[1] == 64 and len(found.train) + len(found.val) == len(found.tokens)
    assert found.values.shape == (*found.samples.shape, 2) and found.parts.shape == found.tokens.shape
    index = [sorted(part[part >= 0].tolist()) for part in (found.samples[found.train], found.samples[found.val])]
    assert index == [list(range(30)), list(range(30, 40))]
    again = read_rows(model, rows, 32, 0.25, seed=2, form=REWARD)
    assert all((getattr(again, n) == getattr(found, n)).all() for n in ("tokens", "parts", "values", "samples"))
    other = read_rows(model, rows[:20], 32, val=rows[20:21], form=PAIRS)
    assert other.samples[other.val].max() == 20 and other.values[other.val][:, 1:].max() == 0
    assert (other.samples[other.val][:, 1:] == -1).all() and read_rows(model, other, form=PAIRS) is other
    with pytest.raises(DataError, match="margins, which data has and the validation data has not"):
        read_rows(model, rows, 32, val=[PAIR], form=PAIRS)
    with refused("context", 33):
        read_rows(model, rows, 33, form=PAIRS)
    judged = read_rows(model, [GOOD, BAD], 32, 0.0, form=JUDGED)
    assert judged.tokens.shape[1] == 32 and sorted(judged.values[0, :, 1].tolist()) == [0, 1]


def test_rows_that_the_caller_packed(model):
    samples = read_samples([PAIR, PAIR | {"margin": 1}][:1] * 3, model.tokenizer, form=PAIRS)
    data = pack(samples, 16)
    found = read_rows(model, data, 16, 0.0, form=PAIRS)
    assert isinstance(found, Rows) and (found.parts == data.parts).all() and found.samples is data.samples
    assert read_rows(model, pack(samples, 32), None, 0.0, form=PAIRS).tokens.shape[1] == 64  # each part fits
    with refused("context", 32):
        read_rows(model, data, 32, 0.0, form=PAIRS)
    with pytest.raises(DataError, match="rows of preferences or judged completions; need rows of texts or chats"):
        read_rows(model, data, 32)
    plain = pack(read_samples([{"text": "once upon a time"}], model.tokenizer), 16)
    with pytest.raises(DataError, match="without parts, values, samples; need parts i32"):
        read_rows(model, plain, form=PAIRS)

    def changed(**arrays):
        return TokenData(**{name: getattr(data, name) for name in vars(data)} | arrays)

    for arrays, message in (
        ({"parts": data.parts[:, 1:]}, "parts, values and samples are int32"),
        ({"values": data.values[:, :, 0]}, "parts, values and samples are int32"),
        ({"samples": data.samples[:, :1]}, "parts, values and samples are int32"),
        ({"parts": data.parts.astype(np.float32)}, "parts, values and samples are float32"),
        ({"values": np.repeat(data.values, 3, 2)}, "parts, values and samples are int32"),
        ({"values": data.values * np.float32("nan")}, "values are not finite"),
        ({"values": data.values * 0}, "values are not finite, or mark other samples"),
        ({"parts": data.parts + 2 * data.values.shape[1]}, "parts outside of 0.."),
        ({"labels": np.full_like(data.labels, -100)}, "a part that counts without a label"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            read_rows(model, changed(**arrays), form=PAIRS)
    check_form(data, PAIRS)
    with pytest.raises(DataError, match="parts, values and samples are"):
        check_form(data, JUDGED)  # without labels
    long = made([[1] * 40, [2] * 40], [[0] + [1] * 39] * 2, 2)
    with refused("data", need="") as caught:
        read_rows(model, pack(long, 39), form=PAIRS)
    assert "parts of 39 tokens; must be at most 32" in str(caught.value)


def test_a_small_tokenizer_without_eos():
    tok = Tokenizer(byte_bpe(control=("<|endoftext|>",), eos_token_id=256))
    assert read_samples([PAIR], tok, form=PAIRS).tokens[-1] == 256


def test_sides_that_are_identical_after_the_cut_are_skipped():
    """Of pairs with a long common start; judged completions are not compared."""
    rows = [
        {"prompt": "p", "chosen": "x" * 30 + "good", "rejected": "x" * 30 + "bad"},
        {"prompt": "p", "chosen": "x" * 30, "rejected": "y" * 30},
        {"prompt": "p", "chosen": "abc", "rejected": "abd"},
    ]
    for last in (False, True):
        data = pack(read_samples(rows, tokenizer(), form=PAIRS), 16, last=last)
        assert data.report.skipped == {"identical sides after the cut": 1}
        assert (data.report.samples, data.report.cut) == (2, 1)
        assert sorted(data.samples[data.samples >= 0]) == [1, 2]
        assert len(pack(read_samples(rows, tokenizer(), form=PAIRS), 64, last=last).report.skipped) == 0
    with pytest.raises(DataError, match="no sample has a token to learn within 16 tokens"):
        pack(read_samples(rows[:1], tokenizer(), form=PAIRS), 16)


def test_sides_of_the_same_tokens_are_identical():
    """Texts that differ only before the chat template trims them."""
    source = CHATML.replace("message['content']", "message['content'] | trim")
    row = {"prompt": "p", "chosen": "x ", "rejected": "x"}
    samples = read_samples([row, row | {"rejected": "y"}], tokenizer(chat_template=source), form=PAIRS, as_chat=True)
    assert pack(samples, 64).report.skipped == {"identical sides": 1}


def test_a_prompt_that_is_null_is_absent():
    rows = [{"prompt": None, "chosen": "a b", "rejected": "a c"}, {"chosen": "d e", "rejected": "d f", "prompt": None}]
    listed = [{key: value for key, value in row.items() if value is not None} for row in rows]
    one, two = (read_samples(each, tokenizer(), form=PAIRS) for each in (rows, listed))
    np.testing.assert_array_equal(one.tokens, two.tokens)
    np.testing.assert_array_equal(one.counted, two.counted)
    for row, message in (({"prompt": None, "completion": "a", "label": True}, "the keys are completion, label"),):
        with pytest.raises(DataError, match=message):
            read_samples([row], tokenizer(), form=JUDGED)
    with pytest.raises(DataError, match="sample 2: the keys are chosen, rejected; need prompt, as in sample 1"):
        read_samples([{"prompt": "p"} | listed[0], rows[1]], tokenizer(), form=PAIRS)
