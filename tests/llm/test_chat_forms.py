"""Lines as people have them: Alpaca's instructions and ShareGPT's conversations give the samples of the plain forms."""

import pytest

from gradloom.base.errors import DataError, SettingError
from gradloom.llm.chat import ChatTemplate
from gradloom.llm.data import read_samples
from tests.llm.chats import CHAT, CHATML, SYSTEM
from tests.llm.test_data import jsonl, tokenizer
from tests.refused import refused

FROM = {"user": "human", "assistant": "gpt", "system": "system"}
SHARED = [{"from": FROM[m["role"]], "value": m["content"]} for m in CHAT]


def same(a, b):
    assert (a.tokens == b.tokens).all() and (a.counted == b.counted).all() and (a.starts == b.starts).all()
    return a


def test_instructions(tmp_path):
    rows = [
        {"instruction": "Add.", "input": "1 2", "output": "3", "text": "Below is an instruction"},
        {"instruction": "Name a colour.", "input": "", "output": "red"},
        {"instruction": "Name a fruit.", "output": "apple"},
    ]
    plain = [{"prompt": "Add.\n1 2", "completion": "3"}]
    plain += [{"prompt": row["instruction"], "completion": row["output"]} for row in rows[1:]]
    found = read_samples(jsonl(tmp_path, rows), tokenizer())
    same(found, read_samples(jsonl(tmp_path, plain, "p.jsonl"), tokenizer()))
    assert found.report.kind == "prompts and completions (instruction, input, output)" and found.report.unused == (
        "text",
    )
    tok = tokenizer(chat_template=CHATML)
    chats = read_samples(jsonl(tmp_path, rows), tok, as_chat=True)
    same(chats, read_samples(jsonl(tmp_path, plain, "p.jsonl"), tok, as_chat=True))
    assert read_samples(jsonl(tmp_path, rows[:1]), tokenizer(), text_key="text").report.kind == "texts (text)"
    with pytest.raises(DataError, match=r"d.jsonl:2: the keys are instruction; need output, as in line 1"):
        read_samples(jsonl(tmp_path, [rows[1], {"instruction": "Go on."}]), tokenizer())


@pytest.mark.parametrize("key", ["conversations", "messages"])
def test_conversations(tmp_path, key):
    tok = tokenizer(chat_template=CHATML)
    want = read_samples(jsonl(tmp_path, [{"messages": CHAT}, {"messages": [SYSTEM, *CHAT]}], "p.jsonl"), tok)
    system = {"from": "system", "value": SYSTEM["content"]}
    found = read_samples(jsonl(tmp_path, [{key: SHARED}, {key: [system, *SHARED]}]), tok)
    assert same(found, want).report.kind == f"chats ({key})"
    beside = [{key: SHARED, "system": "", "id": 7}, {key: SHARED, "system": SYSTEM["content"]}]
    assert same(read_samples(jsonl(tmp_path, beside), tok), want).report.unused == ("id",)
    roles = read_samples(jsonl(tmp_path, [{"conversations": CHAT}, {"conversations": [SYSTEM, *CHAT]}]), tok)
    same(roles, want)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"from": "alien", "value": "x"}, "message 2 of 2 is from 'alien'; possible are human, user, gpt"),
        ({"from": 3, "value": "x"}, "message 2 of 2 is from 3; possible are"),
        ("hello", "message 2 of 2 is from None; possible are"),
        ({"from": "gpt"}, "message 2 of 2 has no value; need a text"),
        ({"from": "gpt", "value": ["x"]}, "message 2 of 2 has no value; need a text"),
    ],
)
def test_bad_conversations(tmp_path, message, why):
    tok = tokenizer(chat_template=CHATML)
    path = jsonl(tmp_path, [{"conversations": SHARED}, {"conversations": [SHARED[0], message]}])
    with pytest.raises(DataError, match=f"d.jsonl:2: {why}"):
        read_samples(path, tok)
    assert read_samples(path, tok, skip_bad_lines=True).report.bad_lines == 1
    path = jsonl(tmp_path, [{"conversations": SHARED}, {"conversations": SHARED, "system": 5}])
    with pytest.raises(DataError, match="d.jsonl:2: system is 5; need a text"):
        read_samples(path, tok)


def test_contents_in_parts_are_their_texts(tmp_path):
    """OpenAI's form of a content: what a template would write as a list of Python is not trained on."""
    tok = tokenizer(chat_template=CHATML)
    parts = [{**m, "content": [{"type": "text", "text": m["content"][:3]}, m["content"][3:]]} for m in CHAT]
    want = read_samples(jsonl(tmp_path, [{"messages": CHAT}], "p.jsonl"), tok)
    same(read_samples(jsonl(tmp_path, [{"messages": parts}]), tok), want)
    template = ChatTemplate(CHATML, tok)
    assert template.render(parts, generation_prompt=True) == template.render(CHAT, generation_prompt=True)


@pytest.mark.parametrize("option", ["text_key", "prompt_key", "completion_key", "messages_key", "separator"])
def test_a_key_is_a_text(tmp_path, option):
    path = jsonl(tmp_path, [{"prompt": "a", "completion": "b"}])
    with pytest.raises(SettingError, match=f"{option}=5"):
        read_samples(path, tokenizer(), **{option: 5})
    if option == "prompt_key":
        for none in ("", " , ", [], [""], ["a", 5]):
            with refused("prompt_key", need="a key, or several, such as a,b"):
                read_samples(path, tokenizer(), prompt_key=none)


def test_a_list_in_place_of_lines_is_said(tmp_path):
    for text in ('[{"text": "a b"}]', '[{"text": "a b"},\n {"text": "c"}]'):
        (tmp_path / "d.jsonl").write_text(text)
        with pytest.raises(DataError, match="JSON list; need a line for each sample, an object with keys"):
            read_samples(tmp_path / "d.jsonl", tokenizer())
