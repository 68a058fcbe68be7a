"""The template that chats were trained through goes with what was trained: into the adapter, the merged and the full
model."""

import json
from pathlib import Path

import pytest

from gradloom.base.errors import DataError, SettingError
from gradloom.files import open_gguf
from gradloom.llm import ChatTemplate, Conversation, LoRA, evaluate, finetune, load, verify
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


@pytest.mark.parametrize(
    ("template", "error"),
    [("chatml.jinja", DataError), ("", DataError), (Path("chatml.jinja"), SettingError), (5, SettingError)],
)
def test_what_is_no_template_is_refused(chats, without, template, error):
    model, adapter = load(without), LoRA(2)
    calls = (
        lambda: ChatTemplate(template, model.tokenizer),
        lambda: Conversation(model, chat_template=template),
        lambda: finetune(model, str(chats), adapter, data_options={"chat_template": template}, **QUICK),
        lambda: evaluate(model, str(chats), data_options={"chat_template": template}),
    )
    for call in calls:
        with pytest.raises(error, match="chat.template") as raised:
            call()
        assert type(template).__name__ in str(raised.value) or repr(template) in str(raised.value)
    assert adapter.chat_template is None


def test_a_full_model_holds_it(tmp_path, chats, without):
    trained(without, chats, method="full").save(tmp_path / "full.gguf")
    assert open_gguf(tmp_path / "full.gguf").metadata[KEY] == TEMPLATE


def test_that_of_the_model_is_replaced_and_merge_says_so(tmp_path, chats):
    model = write(tmp_path, "llama", chat=True, context=256)
    own = open_gguf(model).metadata[KEY]
    trained(model, chats).save(tmp_path / "a.gguf")
    notes = merge(model, tmp_path / "a.gguf", tmp_path / "merged.gguf").notes
    assert notes == ["the chat template of the adapter replaces the model's own"]
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


@pytest.mark.slow
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


OTHER = TEMPLATE.replace("': '", "' says: '")


@pytest.mark.slow
def test_it_is_used_wherever_chats_are_read(tmp_path, chats, without):
    """A further finetune, evaluate, verify: through the template of the adapter, or of the full model; the option goes
    before it."""
    trained(without, chats).save(tmp_path / "a.gguf")
    trained(without, chats, method="full").save(tmp_path / "full.gguf")
    model, full = load(without), load(tmp_path / "full.gguf")
    adapter = LoRA.load(tmp_path / "a.gguf", model)
    sizes = {"context": 64}
    given = [{"data_options": {"chat_template": text}} for text in (TEMPLATE, OTHER)]
    same, other = (evaluate(model, chats, adapter, **sizes, **options) for options in given)
    assert evaluate(model, chats, adapter, **sizes).nll == same.nll != other.nll
    assert evaluate(full, chats, **sizes).nll == evaluate(full, chats, **sizes, **given[0]).nll
    assert verify(model, chats, LoRA.load(tmp_path / "a.gguf", model), reference=False, **sizes).agrees
    more = finetune(model, str(chats), LoRA.load(tmp_path / "a.gguf", model), **QUICK)
    wanted = trained(model, chats, adapter=LoRA.load(tmp_path / "a.gguf", model))
    assert more.history[-1].train.loss == wanted.history[-1].train.loss
    assert "chats (messages), through the adapter's chat template; 4 samples" in more.data.report
    assert "adapter's" not in wanted.data.report and more.adapter.chat_template == TEMPLATE
    over = finetune(model, str(chats), LoRA.load(tmp_path / "a.gguf", model), **QUICK, **given[1])
    assert over.adapter.chat_template == OTHER and over.history[-1].train.loss != more.history[-1].train.loss
    with pytest.raises(DataError, match="has no chat template"):
        evaluate(model, chats, **sizes)


def test_it_stays_through_runs_that_continue_one_another(tmp_path, chats, without):
    trained(without, chats, run=tmp_path / "first", checkpoint_every="1steps")
    more = QUICK | {"checkpoint_every": "1steps"}
    finetune(without, str(chats), continue_from=tmp_path / "first", run=tmp_path / "second", **more)
    third = finetune(without, str(chats), continue_from=tmp_path / "second", **QUICK)
    assert third.adapter.chat_template == TEMPLATE


@pytest.mark.skipif(not STORIES.exists(), reason=f"needs {STORIES}")
@pytest.mark.slow
def test_the_commands_read_chats_as_it_was_trained(tmp_path, chats, capsys, monkeypatch):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    options = ("--steps", 1, "--context", 64, "--batch-size", 2, "--val-split", 0)
    assert run(capsys, "finetune", STORIES, chats, "--out", "a.gguf", *options, "--chat-template", template)[0] == 0
    for command in ("evaluate", "verify"):
        words = [command, STORIES, chats, "--context", 64]
        assert "has no chat template" in run(capsys, *words)[2]
        code, out, err = run(capsys, *words, "--lora", "a.gguf")
        assert code == 0, err
        again = run(capsys, *words, "--lora", "a.gguf", "--chat-template", template)[1]
        assert [line for line in out.splitlines() if "time" not in line] == [
            line for line in again.splitlines() if "time" not in line
        ]
    code, _, err = run(capsys, "finetune", STORIES, chats, "--lora", "a.gguf", "--out", "b.gguf", *options)
    assert code == 0 and "through the adapter's chat template" in err
    assert LoRA.load("b.gguf", load(STORIES)).chat_template == TEMPLATE


@pytest.mark.parametrize("rerun", [False, True])
def test_a_run_is_resumed_and_repeated_from_another_folder(tmp_path, chats, without, monkeypatch, capsys, rerun):
    monkeypatch.chdir(tmp_path)
    Path("t.jinja").write_text(TEMPLATE)
    words = ("--chat-template", "t.jinja", "--context", "64", "--steps", "2", "--val-split", "0", "--out", "a.gguf")
    assert run(capsys, "finetune", without, chats, *words)[0] == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = ("rerun", "../a.run", "--out", "b.gguf") if rerun else ("finetune", "--out", "../a.gguf", "--resume")
    code, _, err = run(capsys, *again)
    assert code == 0, err
