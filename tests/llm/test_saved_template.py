"""The template that chats were trained through goes with what was trained: into the adapter, the merged and the full
model."""

import json
from pathlib import Path

import pytest

from gradloom.files import open_gguf
from gradloom.llm import Conversation, LoRA, finetune, load
from gradloom.llm.merge import merge
from tests.cli.command import run
from tests.llm.random_models import write
from tests.real_data import DATA

STORIES = DATA / "gguf" / "stories260K.gguf"
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
KEY = "tokenizer.chat_template"
QUICK = {"context": 64, "batch_size": 2, "epochs": 1, "val_split": 0.0, "progress": False}


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    turns = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A cat."}]
    path.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(4)))
    return path


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    return write(tmp_path_factory.mktemp("plain"), "llama", context=256)


def trained(model, chats, **more):
    return finetune(model, str(chats), data_options={"chat_template": TEMPLATE}, **QUICK, **more)


@pytest.mark.parametrize("place", ["a.gguf", "peft"])
def test_an_adapter_keeps_it_and_merge_writes_it(tmp_path, chats, without, place):
    trained(without, chats).save(tmp_path / place)
    merged = tmp_path / "merged.gguf"
    assert merge(without, tmp_path / place, merged).notes == []
    assert open_gguf(merged).metadata[KEY] == TEMPLATE
    model = load(without)
    adapter = LoRA.load(tmp_path / place, model)
    adapter.save(tmp_path / "again.gguf")
    assert LoRA.load(tmp_path / "again.gguf", model).chat_template == TEMPLATE
    asked = {"max_tokens": 4, "temperature": 0.0}
    talk = Conversation(model, adapter, **asked)
    said = Conversation(model, adapter, chat_template=TEMPLATE, **asked).say("Who?")
    assert talk.say("Who?").tokens == said.tokens and Conversation(merged, **asked).say("Who?").prompt_tokens


def test_a_full_model_holds_it(tmp_path, chats, without):
    trained(without, chats, method="full").save(tmp_path / "full.gguf")
    assert open_gguf(tmp_path / "full.gguf").metadata[KEY] == TEMPLATE


def test_that_of_the_model_is_replaced_and_merge_says_so(tmp_path, chats):
    model = write(tmp_path, "llama", chat=True, context=256)
    own = open_gguf(model).metadata[KEY]
    trained(model, chats).save(tmp_path / "a.gguf")
    notes = merge(model, tmp_path / "a.gguf", tmp_path / "merged.gguf").notes
    assert notes == ["the chat template of the adapter takes the place of the model's own"]
    assert open_gguf(tmp_path / "merged.gguf").metadata[KEY] == TEMPLATE != own
    finetune(model, str(chats), **QUICK).save(tmp_path / "plain.gguf")
    assert KEY not in open_gguf(tmp_path / "plain.gguf").metadata
    assert merge(model, tmp_path / "plain.gguf", tmp_path / "same.gguf").notes == []
    assert open_gguf(tmp_path / "same.gguf").metadata[KEY] == own


def test_a_run_that_continues_another_keeps_it(tmp_path, chats, without):
    trained(without, chats, run=tmp_path / "first", checkpoint_every="1steps")
    text = tmp_path / "more.txt"
    text.write_text("A cat and a dog. " * 60)
    again = finetune(without, str(text), continue_from=tmp_path / "first", **QUICK)
    assert again.adapter.chat_template == TEMPLATE


@pytest.mark.skipif(not STORIES.exists(), reason=f"needs {STORIES}")
def test_the_commands_chat_as_it_was_trained(tmp_path, chats, capsys, monkeypatch):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    options = ("--steps", 1, "--context", 64, "--batch-size", 2, "--val-split", 0, "--chat-template", template)
    code, out, _ = run(capsys, "finetune", STORIES, chats, "--out", "a.gguf", *options)
    assert code == 0 and "template.jinja, saved with it\n" in out
    assert run(capsys, "merge", STORIES, "a.gguf", "-o", "merged.gguf")[0] == 0
    said = []
    for words in (["merged.gguf"], [STORIES, "--lora", "a.gguf"], ["merged.gguf", "--chat-template", template]):
        asked = ["generate", *words, "--prompt", "Who are you?", "--chat", "-n", 8, "--temperature", 0]
        code, out, err = run(capsys, *asked)
        assert code == 0, err
        said.append(out)
    assert said[0] == said[1] == said[2]
    assert "has no chat template" in run(capsys, "generate", STORIES, "--prompt", "x", "--chat")[2]
    assert Path("merged.gguf").exists()
