"""Chat templates: exact texts, which parts are the assistant's, what a bad template gets."""

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.llm.chat import ChatTemplate
from tests.llm.chats import (
    CHAT,
    CHATML,
    LAST_USER,
    LLAMA3,
    MARKED,
    MISTRAL,
    PHI3,
    PLAIN,
    QWEN3,
    SYSTEM,
    chatml,
    llama3,
    mistral,
    phi3,
)
from tests.llm.small_tokenizers import real


def written(template, tokenizer, messages):
    return [text for text, flag in ChatTemplate(template, tokenizer).parts(messages) if flag]


@pytest.mark.parametrize(
    ("template", "tokenizer", "messages", "turns"),
    [
        (CHATML, chatml, CHAT, ["Hello! <|im_end|>", "It is 4.<|im_end|>"]),
        (CHATML, chatml, [SYSTEM, *CHAT], ["Hello! <|im_end|>", "It is 4.<|im_end|>"]),
        (LLAMA3, llama3, [SYSTEM, *CHAT], ["Hello!<|eot_id|>", "It is 4.<|eot_id|>"]),
        (MISTRAL, mistral, CHAT, [" Hello!</s>", " It is 4.</s>"]),
        (LAST_USER, mistral, [SYSTEM, *CHAT], [" Hello! </s>", " It is 4.</s>"]),
        (QWEN3, chatml, CHAT, ["Hello! <|im_end|>", "<think>\n\n</think>\n\nIt is 4.<|im_end|>"]),
        (MARKED, chatml, CHAT, ["Hello! <|im_end|>", "It is 4.<|im_end|>"]),
        (PHI3, phi3, CHAT, ["Hello! <|end|>", "It is 4.<|end|>"]),
        (PHI3, phi3, CHAT[:2], ["Hello! <|end|>"]),
        (PLAIN, chatml, CHAT, ["\nassistant: Hello! ", "\nassistant: It is 4."]),
        (CHATML, chatml, CHAT[:3], ["Hello! <|im_end|>"]),
        (CHATML, chatml, [CHAT[0], *CHAT[1:2] * 2], ["Hello! <|im_end|>"] * 2),
        (CHATML, chatml, [CHAT[1], CHAT[0]], ["Hello! <|im_end|>"]),
    ],
    ids=lambda value: None,
)
def test_what_the_assistant_wrote(template, tokenizer, messages, turns):
    tokenizer = tokenizer()
    made = ChatTemplate(template, tokenizer)
    parts = made.parts(messages)
    assert [text for text, flag in parts if flag] == turns
    assert "".join(text for text, _ in parts) == made.render(messages)
    ids, mask = made.encode(messages)
    assert ids.dtype == np.int32 and mask.dtype == bool and ids.shape == mask.shape
    runs = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    shown = [tokenizer.decode(ids[a:b], continued=True) for a, b in runs.reshape(-1, 2)]
    assert "".join(shown).removesuffix("<|im_end|>" if template == PLAIN else "") == "".join(turns)


@pytest.mark.parametrize("template", [CHATML, MARKED, LAST_USER, QWEN3, PLAIN])
def test_no_text_of_a_chat_is_taken_for_a_mark(template):
    """What marks are made of comes back as it was, and says nothing of who wrote it."""
    marks = "\ufdd0\ufdd2\ufdd0", "\ufdd1\ufdd2\ufdd1", "\ufdd3\ufdd4\ufdd3", "".join(map(chr, range(0xFDD0, 0xFDF0)))
    begin, end, *others = marks
    asked, said = f"{begin}Hi{end} {''.join(others)}", f"{end}{others[0]}Hello{begin}"
    messages = [SYSTEM, {"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    made = ChatTemplate(template, chatml())
    parts = made.parts(messages)
    (answer,) = (text for text, flag in parts if flag)
    assert said in answer and begin + "Hi" not in answer
    assert "".join(text for text, _ in parts) == made.render(messages)
    assert asked in made.render(messages) and said in made.render(messages)


def test_exact_tokens_of_a_chat():
    tokenizer = chatml()
    ids, mask = ChatTemplate(CHATML, tokenizer).encode([SYSTEM, *CHAT[:2]])
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    first = tokenizer.encode(text)
    turn = tokenizer.encode("Hello! <|im_end|>")
    assert ids.tolist() == [*first, *turn, *tokenizer.encode("\n")]
    assert mask.tolist() == [False] * len(first) + [True] * len(turn) + [False]


def test_special_tokens_at_the_borders_of_turns():
    """A SentencePiece tokenizer puts a space behind each special token, however the chat is taken apart."""
    tokenizer = mistral()
    made = ChatTemplate(MISTRAL, tokenizer)
    ids, mask = made.encode(CHAT)
    assert ids.tolist() == tokenizer.encode(made.render(CHAT), bos=False) and ids[0] == tokenizer.bos
    assert [tokenizer.pieces[i] for i in ids[mask]][:2] == ["\u2581H", "el"] and ids[mask][-1] == tokenizer.eos


def test_bos_and_eos_where_the_template_has_none():
    tokenizer = chatml(add_bos_token=True)
    ids, mask = ChatTemplate(PLAIN, tokenizer).encode(CHAT[:2])
    assert ids[0] == tokenizer.bos and not mask[0]
    assert ids[-1] == tokenizer.eos and mask[-1]  # else it would never learn to stop
    assert ChatTemplate(LLAMA3, llama3()).encode(CHAT)[0].tolist().count(llama3().bos) == 1


@pytest.mark.slow
def test_the_template_of_a_real_model():
    tokenizer = real("qwen2")
    made = ChatTemplate.of(tokenizer)
    assert [t for t, flag in made.parts(CHAT) if flag] == ["Hello! <|im_end|>", "It is 4.<|im_end|>"]
    assert made.render(CHAT[:1], generation_prompt=True).endswith("<|im_start|>assistant\n")


def test_helpers_of_templates():
    template = (
        "{{ tools | tojson }}{{ '%04d' % 7 }}{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
        "{% endfor %}{{ strftime_now('%Y') | int > 2000 }}{{ [messages[0]] | tojson(indent=1) }}\n"
    )
    made = ChatTemplate(template, chatml())
    text = made.render([{"role": "user", "content": "<é>"}], tools=[{"name": "f<x>"}])
    assert text == '[{"name": "f<x>"}]000702True[\n {\n  "role": "user",\n  "content": "<é>"\n }\n]'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}", "model.gguf: chat template is malformed: line 1: Unexpected end of template."),
        ("\n\n{{ x", "chat template is malformed: line 3"),
        ("{{ raise_exception('only\nuser') }}", "chat template refuses the chat: only user"),
        ("{{ messages[7].role }}", "chat template fails: UndefinedError"),
        ("{{ messages + 1 }}", "chat template fails: TypeError"),
        ("{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1] }}", "chat template fails: SecurityError"),
        ("{{ messages.append(1) }}", "chat template fails: SecurityError"),
        ("{% for a in range(10**9) %}{% endfor %}", "chat template fails: OverflowError: Range too big"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "chat template fails: RecursionError"),
        ("{{ 'x' * 10**10 }}", "chat template does not come to an end: it takes more than 1024 MiB of memory"),
        ("{% for a in range(90000) %}{{ 'x' * 90000 }}{% endfor %}", "its text passes 100001"),
        ("{% import 'os' as os %}", "chat template fails: TypeError"),
        ("{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}", "blocks overlap"),
    ],
)
def test_bad_templates(template, message):
    with pytest.raises(DataError) as caught:
        ChatTemplate(template, chatml()).encode(CHAT)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("model.gguf: ")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (CHAT[:1], "the chat of 1 messages has no assistant turn"),
        ([], "messages is an empty list"),
        ("hello", "messages is str"),
        ([{"content": "x"}], "message 1 of 1 has no role"),
        ([CHAT[0], "x"], "message 2 of 2 has no role"),
        ([CHAT[0], {"role": "assistant"}], "message 2 of 2, of the assistant, has no content"),
        ([CHAT[0], {"role": "assistant", "content": 3}], "message 2 of 2, of the assistant, has a content that is 3"),
        ([{"role": "user"}, CHAT[1]], "message 1 of 2 has no content; need a text"),
        ([{"role": "user", "content": None}, CHAT[1]], "message 1 of 2 has no content"),
        ([{"role": "user", "content": True}, CHAT[1]], "message 1 of 2 has a content that is True; need a text"),
        ([{"role": "user", "content": [5]}, CHAT[1]], "message 1 of 2 has a part 5 in its content; need texts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}, CHAT[1]], "has a part of type 'image_url' in its"),
        ([{"role": "", "content": "x"}, CHAT[1]], "message 1 of 2 has no role"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}, CHAT[1]], "part of type 'text' whose text is 5"),
        ([{"role": "user", "content": [{"type": "text"}]}, CHAT[1]], "part of type 'text' whose text is None"),
        ([{"role": "user", "content": [{"type": 5, "text": "x"}]}, CHAT[1]], "has a part of type 5 in its"),
        (
            [CHAT[0], {"role": "assistant", "content": {}}],
            "2 of 2, of the assistant, has a content that is an obj",
        ),
        ([{"role": "user", "content": {"text": "x"}}, CHAT[1]], "message 1 of 2 has a content that is an object"),
    ],
)
def test_bad_chats(messages, message):
    with pytest.raises(DataError, match=message):
        ChatTemplate(CHATML, chatml()).encode(messages)


def test_calls_of_tools():
    """A turn without content, in a template that prompts for a thought but writes none."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
        "<tool_call>{{ m.tool_calls[0] | tojson }}</tool_call>{% else %}{{ m.content }}{% endif %}<|im_end|>\n\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    chat = [CHAT[2], call, {"role": "tool", "content": "4"}, CHAT[3]]
    turns = written(template, chatml(), chat)
    assert turns == ['<tool_call>{"name": "add"}</tool_call><|im_end|>', "It is 4.<|im_end|>"]


def test_a_template_that_hides_its_turns():
    hidden = "{% for m in messages | reverse %}{{ m.role[0] ~ m.content | length }}{% endfor %}"
    with pytest.raises(DataError, match="message 2 of 4 in a way that hides which text is the assistant's"):
        ChatTemplate(hidden, chatml()).encode([CHAT[0], {"role": "assistant", "content": "x"}, *CHAT[:2]])
    ids, mask = ChatTemplate(hidden, chatml()).encode(CHAT[:1], need_assistant=False)
    assert ids.size == 2 and not mask.any()


def test_a_model_without_a_template():
    with pytest.raises(DataError, match=r"model.gguf has no chat template .*; give one .*, or give the data as text"):
        ChatTemplate.of(chatml())
    assert ChatTemplate.of(chatml(chat_template=CHATML)).render(CHAT[:1]).endswith("Hi<|im_end|>\n")
