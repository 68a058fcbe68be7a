"""A conversation says what generate says of the whole history, and computes each token of the history once."""

import numpy as np
import pytest

from gradloom.base.errors import DataError, SettingError
from gradloom.llm import Conversation, LoRA, TrainedTensors, load
from gradloom.llm.conversation import chat_ids
from gradloom.llm.generate import Generator, generate
from tests.llm.random_models import write
from tests.refused import refused


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("model"), "llama", chat=True, context=512))


def replies(talk, *turns):
    return [talk.say(turn).text for turn in turns]


def expected(model, talk, at, **settings):
    """What generate makes of the messages before this one."""
    return generate(model, chat_ids(talk.template, talk.messages[:at]), max_tokens=12, **settings)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 5}])
@pytest.mark.parametrize("with_adapter", [False, True])
def test_replies_are_those_of_the_whole_history(model, settings, with_adapter):
    adapter = None
    if with_adapter:
        adapter = LoRA(rank=2)
        adapter.bind(model)
        for b in adapter.b.values():
            b.assign(np.random.default_rng(1).standard_normal(b.shape) / 5)
    talk = Conversation(model, adapter, max_tokens=12, system="Be brief.", **settings)
    said = replies(talk, "hello", "how are you", "and now?")
    assert [m["role"] for m in talk.messages] == ["system", *["user", "assistant"] * 3]
    assert [m["content"] for m in talk.messages[2::2]] == said and talk.messages[0]["content"] == "Be brief."
    for i, text in enumerate(said):
        assert text == expected(model, talk, 2 + 2 * i, adapter=adapter, **settings)
    talk.forget()
    assert talk.messages == [{"role": "system", "content": "Be brief."}]
    assert replies(talk, "hello") == said[:1]


def test_the_history_is_computed_once(model, monkeypatch):
    fed = []
    feed = Generator._feed
    monkeypatch.setattr(Generator, "_feed", lambda self, ids: fed.append(len(ids)) or feed(self, ids))
    talk = Conversation(model, max_tokens=6, temperature=0)
    for turn in range(4):
        fed.clear()
        reply = talk.say("a question")
        whole = len(chat_ids(talk.template, talk.messages[:-1]))
        assert reply.prompt_tokens == fed[0]
        assert fed[0] == whole if turn == 0 else fed[0] < whole / 2 + 10


@pytest.mark.parametrize("kind", [LoRA, TrainedTensors])
def test_the_history_is_computed_anew_when_the_adapter_changes(tmp_path, kind):
    model = load(write(tmp_path, "llama", chat=True, context=512))  # its tensors are f32
    adapter = kind()
    adapter.bind(model)
    talk = Conversation(model, adapter, max_tokens=12, temperature=0)
    talk.say("hello")
    rng = np.random.default_rng(1)
    for p in adapter.parameters().values():
        p.assign(rng.standard_normal(p.shape) / 5)
    reply = talk.say("and now?")
    ids = chat_ids(talk.template, talk.messages[:-1])
    assert reply.prompt_tokens == len(ids)
    fresh = Generator(model, adapter, 512).feed(ids)
    talk._generator.rewind(len(ids) - 1)
    assert np.allclose(talk._generator.feed(ids[-1:]), fresh, atol=1e-4)
    assert reply.text == expected(model, talk, len(talk.messages) - 1, adapter=adapter, temperature=0)
    assert talk.say("once more").prompt_tokens < len(ids)


def test_the_oldest_turns_leave_a_full_context(model):
    talk = Conversation(model, max_tokens=12, system="Be brief.", temperature=0)
    long = "word " * 20
    for _ in range(6):
        talk.say(long)
    assert talk.forgotten > 0 and talk.forgotten % 2 == 0 and len(talk.messages) == 13
    seen = [talk.messages[0], *talk.messages[1 + talk.forgotten : -1]]
    assert len(chat_ids(talk.template, seen)) + 12 <= 512
    assert talk.messages[-1]["content"] == generate(model, chat_ids(talk.template, seen), max_tokens=12, temperature=0)
    before = list(talk.messages)
    with pytest.raises(DataError, match=r"a turn of \d+ tokens with the system prompt; the context is 512 and 12 are"):
        talk.say("word " * 400)
    assert talk.messages == before


def test_a_reply_that_is_stopped_stays_as_far_as_it_came(model):
    talk = Conversation(model, max_tokens=12, temperature=0)
    pieces = []

    def stop(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.say("hello", stop)
    assert talk.messages[1:] == [{"role": "assistant", "content": "".join(pieces)}] and len(pieces) == 3
    talk.say("go on")
    assert talk.messages[-1]["content"] == expected(model, talk, 3, temperature=0)


def test_wrong_use(model, tmp_path):
    with refused("max_tokens", 0):
        Conversation(model, max_tokens=0)
    with pytest.raises(SettingError, match=r"say: got .*; need a text"):
        Conversation(model).say(3)
    with pytest.raises(SettingError, match=r"system: got .*; need a text"):
        Conversation(model, system=b"x")
    with pytest.raises(DataError, match="has no chat template"):
        Conversation(write(tmp_path, "llama"))
    talk = Conversation(model, chat_template="{{ raise_exception('no') }}")
    with pytest.raises(DataError, match="no"):
        talk.say("hello")
    assert talk.messages == []
