"""The commands for language models: finetune, evaluate, generate, verify; what they print, save and refuse."""

import importlib.util
import json
import os
import signal
import sys
import time

import numpy as np
import pytest

from examples.random_gguf import CHATML
from gradloom.base import memory
from gradloom.graph.opspec import REGISTRY
from gradloom.llm import LoRA, load
from tests import processes
from tests.cli.command import run
from tests.llm.random_models import write
from tests.real_data import need

ENV = processes.environment(GRADLOOM_THREADS="1")
TEXT = "once upon a time there was a little girl who loved to play in the park with her dog and a big red ball"
QUESTION = ["--prompt-key", "question", "--completion-key", "answer"]
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "once upon"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model"), "llama", chat=True, context=256)


@pytest.fixture
def text(tmp_path):
    rng = np.random.default_rng(0)
    place = tmp_path / "t.txt"
    place.write_text(" ".join(rng.choice(TEXT.split(), 3000)))
    return place


def refused(capsys, message, *arguments):
    """Exit code 2, nothing on stdout, and one line of error that says this."""
    code, out, err = run(capsys, *arguments)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("gradloom: ") and message in last, err
    assert err.count("gradloom: ") == 1 and "Traceback" not in err


def lines(path, *rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


# -- finetune ----------------------------------------------------------------------------------------------------------


def test_finetune_evaluate_generate(capsys, tmp_path, path, text):
    out = tmp_path / "a.gguf"
    code, shown, err = run(
        capsys, "finetune", path, text, "--context", 32, "--batch-size", 8, "--rank", 4, "--lr", 0.01, "--epochs", 2,
        "--out", out, "--json", "--threads", 1,
    )  # fmt: skip
    found = json.loads(shown.splitlines()[-1])
    assert code == 0 and shown.count("\n") == 1 and out.exists()
    for name in ("attn_q", "LoRA", "frozen", "without sharing", "it fits", "validation", "lower bound"):
        assert name in err, name
    assert found["val_loss"] < found["val_loss_before"] - 0.1 and found["train_loss_unc"] > 0
    keys = "train_loss val_loss val_loss_unc epochs steps seconds tokens_per_second peak_bytes planned_bytes out"
    assert all(key in found for key in keys.split()) and found["epochs"] == 2 and found["interrupted"] is False
    assert 0 < found["planned_bytes"] < found["peak_bytes"] >= found["resident_before_bytes"]

    scores = {}
    for name, more in (("bare", []), ("lora", ["--lora", out])):
        code, shown, err = run(capsys, "evaluate", path, text, "--context", 32, "--json", *more)
        scores[name] = json.loads(shown.splitlines()[-1])
        assert (
            code == 0
            and "perplexity" in err
            and scores[name]["test_loss"] == pytest.approx(np.log(scores[name]["perplexity"]))
        )
    assert scores["lora"]["perplexity"] < scores["bare"]["perplexity"]
    assert 0 < scores["lora"]["perplexity_unc"] < scores["lora"]["perplexity"]

    texts = []
    for more in ([], ["--lora", out], ["--lora", out]):
        code, shown, err = run(
            capsys, "generate", path, "--prompt", "once upon", "-n", 12, "--temperature", 0, "--json", *more
        )
        texts.append(json.loads(shown.splitlines()[-1]))
        assert code == 0 and shown.startswith("once upon" + texts[-1]["text"]) and "tokens/s" in err
    assert texts[1]["tokens"] == texts[2]["tokens"] != texts[0]["tokens"] and texts[0]["prompt_tokens"] >= 2


def test_a_new_run_from_the_weights_of_an_adapter(capsys, tmp_path, path, text):
    options = ("--context", 32, "--steps", 6, "--lr", 0.01, "--json")
    losses = []
    for more in (("--rank", 4), ("--lora", tmp_path / "a.gguf")):
        code, shown, err = run(capsys, "finetune", path, text, *options, *more, "--out", tmp_path / "a.gguf")
        losses.append(json.loads(shown.splitlines()[-1]))
        said = f"a new run from the weights of {tmp_path / 'a.gguf'}: optimiser, schedule and order of rows begin anew"
        assert code == 0 and (said in err) == (more[0] == "--lora")
    assert losses[1]["val_loss_before"] == pytest.approx(losses[0]["val_loss"], rel=1e-5)
    assert losses[1]["val_loss"] < losses[0]["val_loss"]


def test_full_fine_tuning_writes_a_model(capsys, tmp_path, text):
    half = write(tmp_path, "qwen2", kind="f16", context=256)
    options = ("--context", 32, "--steps", 12, "--lr", 0.003, "--method", "full", "--targets", "attn_q,output_norm")
    refused(capsys, "need --train-dtype f32", "finetune", half, text, *options, "--out", tmp_path / "m.gguf")
    code, shown, err = run(
        capsys, "finetune", half, text, *options, "--train-dtype", "f32", "--out", tmp_path / "m.gguf", "--json"
    )
    found = json.loads(shown.splitlines()[-1])
    assert code == 0 and found["val_loss"] < found["val_loss_before"] and "attn_q" in err
    code, shown, _ = run(capsys, "evaluate", tmp_path / "m.gguf", text, "--context", 32, "--json")
    assert code == 0 and json.loads(shown.splitlines()[-1])["perplexity"] > 1


def test_peft_folders(capsys, tmp_path, path, text):
    out = tmp_path / "peft"
    code, *_ = run(capsys, "finetune", path, text, "--context", 32, "--steps", 2, "--rslora", "--out", out)
    assert code == 0 and sorted(os.listdir(out)) == ["adapter_config.json", "adapter_model.safetensors"]
    code, shown, _ = run(capsys, "generate", path, "--lora", out, "-p", "once", "-n", 3)
    assert code == 0 and shown.startswith("once")


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([{"question": "a big dog ?", "answer": "once upon a time"}] * 20, QUESTION),
        ([{"text": "once upon a time there was a dog"}] * 20, []),
        ([{"messages": CHAT}] * 20, []),
        ([{"messages": [{"role": "user", "content": "hello"}]}] * 20, ["--loss-on", "all"]),
        ([{"text": "once upon a time there was"}, "{", {"text": "a little girl"}] * 6, ["--skip-bad-lines"]),
    ],
)  # fmt: skip
def test_every_kind_of_data(capsys, tmp_path, path, rows, options):
    data = lines(tmp_path / "d.jsonl", *rows)
    command = ("finetune", path, data, "--context", 64, "--steps", 3, "--val-split", 0, "--out", tmp_path / "a.gguf")
    code, _, err = run(capsys, *command, *options)
    assert code == 0, err
    if "--skip-bad-lines" in options:
        assert "skipped: 6 bad lines (line 2: not JSON" in err


# -- what bad input gets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "0"], "--rank 0: must be a whole number of at least 1"),
        (["--method", "qlora"], "--method qlora: must be lora or full"),
        (["--lr", "nan"], "--lr nan: must be a finite number above 0"),
        (["--dropout", "1"], "--dropout 1: must be a number of at least 0 and below 1"),
        (["--epochs", "1", "--steps", "5"], "--epochs 1 and --steps 5 are mutually exclusive"),
        (["--context", "300"], "--context 300: must be 2 to 256, the model's context"),
        (["--targets", "attn_z"], "--targets: 'attn_z' matches no tensor that can be trained"),
        (["--train-dtype", "bf16"], "--train-dtype bf16: must be f32"),
        (["--loss-on", "user"], "--loss-on user: must be assistant or all"),
        (["--out", "a.bin"], "--out a.bin: must be FILE.gguf (for llama.cpp) or a folder (for PEFT)"),
        (["--method", "full", "--out", "folder"], "--out folder: must be FILE.gguf, as which a full fine-tuning is"),
        (["--finesse"], "No such option: --finesse; see gradloom finetune --help"),
        (["--method", "full", "--rank", "4"], "--rank 4 requires --method lora"),
        (["--method", "full", "--rslora"], "--rslora requires --method lora"),
        (["--method", "full", "--lora", "a.gguf"], "--lora a.gguf requires --method lora"),
        (["--train-dtype", "f32"], "--train-dtype f32 requires --method full"),
        (["--lora", "a.gguf", "--targets", "attn_q"], "--targets attn_q cannot be combined with --lora"),
        (["--batch-size", "2", "--micro-batch-size", "3"], "--micro-batch-size 3 must be at most --batch-size 2"),
        (["--val-split", "0.2", "--val", "b.jsonl"], "gradloom: --val-split 0.2 cannot be combined with b.jsonl"),
    ],
)
def test_bad_options(capsys, tmp_path, monkeypatch, path, text, options, message):
    monkeypatch.chdir(tmp_path)
    refused(capsys, message, "finetune", path, text, "--context", "32", *options)
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], [], "d.jsonl: the file is empty"),
        (['{"text": "a b c"}', '{"text": '], [], "d.jsonl:2: not JSON"),
        (['{"text": "a b c"}', "[1]"], [], "d.jsonl:2: a JSON list; need a line for each sample"),
        ([{"text": "a b c"}, {"txt": "a"}], [], "d.jsonl:2: the keys are txt; need text, as in line 1"),
        ([{"question": "a", "answer": "b"}], [], "text_key= (--messages-key, ...)"),
        (["nothing"] * 3, ["--skip-bad-lines"], "no sample to train on"),
        ([{"messages": [{"role": "user", "content": "a"}]}], [], "the chat of 1 messages has no assistant turn"),
    ],
)
def test_bad_data(capsys, tmp_path, path, rows, options, message):
    refused(capsys, message, "finetune", path, lines(tmp_path / "d.jsonl", *rows), "--context", 32, *options)


def test_files_of_other_encodings(capsys, tmp_path, path):
    """Each command reads the same text as from UTF-8; the report names another file."""
    words = TEXT.replace("park", "parc d'\xe9t\xe9 \u20ac")
    for name in ("utf-8", "cp1252"):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{words},a\nonce upon,b\n", encoding=name)
    for command, more in {
        "evaluate": ["--context", 64], "compare": ["--context", 64], "plan": ["--context", 64],
        "finetune": ["--context", 64, "--val-split", 0, "--out", tmp_path / "a.gguf", "--overwrite"],
        "verify": ["--no-reference"], "embed": ["--pooling", "mean"],
    }.items():  # fmt: skip
        if command == "compare" and importlib.util.find_spec("llama_cpp") is None:
            continue
        refused(capsys, "--encoding can name another", command, path, tmp_path / "cp1252.csv", *more)
        shown = []
        for name in ("utf-8", "cp1252"):
            code, out, err = run(capsys, command, path, tmp_path / f"{name}.csv", *more, "--encoding", name, "--json")
            assert code == 0, err
            shown.append(json.loads(out.splitlines()[-1]))
        assert shown[0].keys() == shown[1].keys()
        for key in ("test_loss", "train_loss", "loss", "tokens", "inputs_bytes", "embeddings"):
            assert shown[0].get(key) == shown[1].get(key), (command, key)


def test_bad_texts(capsys, tmp_path, path, text):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("once upon a time")
    (tmp_path / "raw.txt").write_bytes(b"once \xff upon")
    refused(capsys, "empty.txt: the file is empty", "finetune", path, tmp_path / "empty.txt")
    refused(capsys, "shorter than the context of 64", "evaluate", path, tmp_path / "short.txt", "--context", 64)
    refused(capsys, "byte 5 is not UTF-8", "evaluate", path, tmp_path / "raw.txt")
    refused(capsys, "nowhere.txt: cannot be read", "verify", path, tmp_path / "nowhere.txt")
    refused(capsys, "the name ends in .bin", "evaluate", path, tmp_path / "x.bin")


def test_bad_models(capsys, tmp_path, path, text):
    whole = path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "magic.gguf").write_bytes(b"GGML" + whole[4:])
    (tmp_path / "key.gguf").write_bytes(whole.replace(b"llama.embedding_length", b"llama.embedding_lengtX"))
    for command in ("evaluate", "plan", "finetune", "verify"):
        more = [] if command == "plan" else [text]
        refused(capsys, "cut.gguf: ", command, tmp_path / "cut.gguf", *more)
        refused(capsys, "magic.gguf: ", command, tmp_path / "magic.gguf", *more)
        refused(capsys, "llama.embedding_length is missing", command, tmp_path / "key.gguf", *more)
    refused(capsys, "no.gguf", "generate", tmp_path / "no.gguf", "--prompt", "x")


def test_an_adapter_for_another_base(capsys, tmp_path, path, text):
    other = load(write(tmp_path, "llama", width=96, heads=6, context=256))
    adapter = LoRA(rank=2)
    adapter.bind(other)
    adapter.save(tmp_path / "a.gguf")
    for command in (["evaluate", path, text], ["generate", path, "--prompt", "a"], ["finetune", path, text]):
        refused(capsys, "is for another base", *command, "--lora", tmp_path / "a.gguf")
    qwen = load(write(tmp_path, "qwen2"))
    mine = LoRA(rank=2)
    mine.bind(qwen)
    mine.save(tmp_path / "q.gguf")
    refused(capsys, "'qwen2'", "generate", path, "--prompt", "a", "--lora", tmp_path / "q.gguf")


def test_chat_templates(capsys, tmp_path, path):
    assert "im_start" in CHATML
    code, shown, _ = run(capsys, "generate", path, "--chat", "--prompt", "hello", "-n", 4, "--json")
    found = json.loads(shown.splitlines()[-1])
    assert code == 0 and found["prompt_tokens"] > 8 and not shown.startswith("hello")
    bare = write(tmp_path, "llama", context=256)
    refused(capsys, "has no chat template", "generate", bare, "--chat", "--prompt", "hello")
    chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    refused(capsys, "has no chat template", "finetune", bare, lines(tmp_path / "d.jsonl", *chats))
    raises = write(
        tmp_path, "llama", context=256, metadata={"tokenizer.chat_template": "{{ raise_exception('only poems') }}"}
    )
    refused(capsys, "only poems", "generate", raises, "--chat", "--prompt", "hello")
    refused(capsys, "only poems", "finetune", raises, lines(tmp_path / "d.jsonl", *chats))


@pytest.mark.parametrize("command", ["finetune", "evaluate", "verify"])
def test_questions_and_answers_as_chats(capsys, tmp_path, command):
    """A template of one's own does what the model's would do, and the same samples come of it in every command."""
    bare = write(tmp_path, "llama", context=256)
    template = tmp_path / "chat.jinja"
    template.write_text(CHATML)
    pairs = lines(tmp_path / "p.jsonl", *[{"prompt": "a big dog", "completion": "once upon a time"}] * 12)
    turns = [{"role": "user", "content": "a big dog"}, {"role": "assistant", "content": "once upon a time"}]
    chats = lines(tmp_path / "c.jsonl", *[{"messages": turns}] * 12)
    more = ["--steps", 2, "--val-split", 0, "--out", tmp_path / "a.gguf"] if command == "finetune" else []
    options = ["--chat-template", template, "--context", 128, "--json", *more]
    found = []
    for data, way in ((pairs, ["--as-chat"]), (chats, [])):
        code, shown, err = run(capsys, command, bare, data, *options, *way)
        assert code == 0, err
        report = json.loads(shown.splitlines()[-1])
        found.append([report.get(key) for key in ("tokens", "train_loss", "test_loss", "loss")])
    assert found[0] == found[1]
    if command == "evaluate":
        code, shown, err = run(capsys, command, bare, pairs, "--context", 128, "--json")
        assert code == 0 and json.loads(shown.splitlines()[-1])["tokens"] != found[0][0]


def test_a_template_is_not_overwritten(capsys, tmp_path, path):
    """--out that names the file of --chat-template, by its name or another one."""
    template = tmp_path / "chat.gguf"
    template.write_text(CHATML)
    (tmp_path / "link.gguf").symlink_to(template)
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").hardlink_to(template)
    data = lines(tmp_path / "c.jsonl", *[{"messages": CHAT}] * 12)
    for out in (template, tmp_path / "link.gguf", tmp_path / "peft"):
        more = ["--chat-template", template, "--steps", 1, "--out", out]
        refused(capsys, f"is the same file as {template}, which is read", "finetune", path, data, *more)
    assert template.read_text() == CHATML


def test_chats_that_are_none(capsys, tmp_path, path, text):
    template = tmp_path / "chat.jinja"
    template.write_text(CHATML)
    pairs = lines(tmp_path / "p.jsonl", {"prompt": "a big dog", "completion": "once upon a time"})
    texts = lines(tmp_path / "t.jsonl", {"text": "a big dog"})
    refused(capsys, "t.jsonl:1: is a text; --as-chat requires prompts and", "evaluate", path, texts, "--as-chat")
    refused(capsys, "is one text; --as-chat requires", "finetune", path, text, "--as-chat")
    need = "p.jsonl:1: is a prompt and its completion; --chat-template"
    refused(capsys, need, "verify", path, pairs, "--chat-template", template)
    refused(capsys, "no.jinja: cannot be read: No such", "evaluate", path, pairs, "--chat-template", "no.jinja")
    refused(capsys, "cannot be read: Is a directory", "evaluate", path, pairs, "--chat-template", tmp_path)
    for data, message in ((b"{{ \xff", "byte 3 is not UTF-8"), (b" ", "is empty"), (b"a" * (1 << 21), "longer than")):
        template.write_bytes(data)
        refused(capsys, message, "evaluate", path, pairs, "--as-chat", "--chat-template", template)
    template.write_text("{% if %}")
    refused(capsys, "template is malformed: line 1", "evaluate", path, pairs, "--as-chat", "--chat-template", template)


def test_a_question_through_a_template_of_ones_own(capsys, tmp_path):
    bare = write(tmp_path, "llama", context=256)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }} indeed")
    options = ("--chat-template", template, "--temperature", 0, "-n", 5, "--json")
    refused(capsys, " requires --chat", "generate", bare, "-p", "a big dog", *options)
    code, shown, _ = run(capsys, "generate", bare, "-p", "a big dog", "--chat", *options)
    chat = json.loads(shown.splitlines()[-1])
    assert code == 0
    code, shown, _ = run(capsys, "generate", bare, "-p", "a big dog indeed", *options[2:])
    assert json.loads(shown.splitlines()[-1])["tokens"] == chat["tokens"]


def test_texts_longer_than_the_context(capsys, path):
    refused(capsys, "the context is 256: need at most", "generate", path, "--prompt", "once upon", "-n", 256)
    refused(
        capsys, "the context is 256: need a prompt of at most 255", "generate", path, "--prompt", "once upon " * 200
    )
    code, _, err = run(capsys, "generate", path, "--prompt", "once " * 45, "--temperature", 0)
    assert code == 0, err  # the default goes as far as the context does


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "--temperature -1: must be"),
        (["--top-k", "-1"], "--top-k -1: must be"),
        (["--top-p", "0"], "--top-p 0: must be"),
        (["-n", "0"], "--max-tokens 0: must be a whole number of at least 1"),
        (["--stop", ""], "--stop: must be texts that are not empty"),
        (["--temperature", "0", "--top-k", "5"], "--top-k 5 requires --temperature > 0"),
        (["--temperature", "0", "--top-p", "0.5"], "--top-p 0.5 requires --temperature > 0"),
    ],
)
def test_bad_sampling(capsys, path, options, message):
    refused(capsys, message, "generate", path, "--prompt", "once", *options)


def test_more_memory_than_there_is(capsys, tmp_path, path, text, monkeypatch):
    """Said before anything runs, and nothing is written."""
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 300_000))
    out = tmp_path / "a.gguf"
    refused(capsys, "of memory are needed, 292.97 KiB are available; need ", "finetune", path, text, "--out", out)
    refused(capsys, "are needed to train these tensors", "finetune", path, text, "--method", "full", "--out", out)
    refused(capsys, "verify: ", "verify", path, text)
    assert not out.exists()


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify(capsys, path, text):
    code, out, _ = run(capsys, "verify", path, text, "--context", 24, "--rank", 2, "--threads", 2, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and out.splitlines()[-2] == "all agree" and found["agrees"] is True
    assert len(found["checks"]) == 7 and found["tokens"] == 24 and found["loss"] > 1
    assert "the same bits in all" in out and "float64" in out


def test_verify_where_something_differs(capsys, path, text, monkeypatch):
    spec = REGISTRY["rms_norm"]
    honest, call, names = spec.reference, spec.call, spec.wants["reference"]

    def moved(rule, scope):
        if rule != "reference":
            return call(rule, scope)
        found = honest(**{n: scope[n] for n in names})
        return [np.asarray(a) * 1.01 for a in found] if isinstance(found, (tuple, list)) else found * 1.01

    monkeypatch.setattr(spec, "call", moved)
    code, out, _ = run(capsys, "verify", path, text, "--context", 16)
    assert code == 1 and "DIFFERS: the first node that differs: rms_norm" in out
    verdict, hint = out.splitlines()[-2:]
    assert verdict.startswith("FAILED at rms_norm") and hint.startswith("--capsule FILE saves the step")


# -- when something goes wrong outside ---------------------------------------------------------------------------------


def test_ctrl_c_saves_the_adapter_so_far(tmp_path, path, text):
    command = ["finetune", path, text, "--context", 32, "--epochs", 100000, "--out", tmp_path / "a.gguf", "--json"]
    job = processes.start([sys.executable, "-m", "gradloom", *command], env=ENV)
    for line in job.stderr:
        if line.startswith("epoch ") and int(line.split()[1].split("/")[0]) >= 2:
            break
    job.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130 and time.monotonic() - began < 30 and "Traceback" not in err
    found = json.loads(out.splitlines()[-1])
    assert (
        found["interrupted"] is True
        and found["epochs"] >= 2
        and f"the weights so far are in {tmp_path / 'a.gguf'}" in err
    )
    model = load(path)
    assert any(b.numpy().any() for b in LoRA.load(tmp_path / "a.gguf", model).b.values())


def test_ctrl_c_before_the_first_step(capsys, tmp_path, path, text, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    training = importlib.import_module("gradloom.llm.finetune")
    monkeypatch.setattr(importlib.import_module("gradloom.train.loop"), "run_part", stop)
    code, out, err = run(capsys, "finetune", path, text, "--context", 32, "--out", tmp_path / "a.gguf")
    assert (code, out) == (130, "") and "nothing to save yet" in err and not (tmp_path / "a.gguf").exists()
    told = ("finetune", path, text, "--context", 32, "--out", tmp_path / "a.gguf", "--json")
    found = json.loads(run(capsys, *told)[1])
    assert (found["interrupted"], found["steps"], found["out"]) == (True, 0, None) and found["rows_train"] > 0
    monkeypatch.setattr(training, "read_rows", stop)
    assert run(capsys, "finetune", path, text)[::2] == (130, "gradloom: interrupted\n")
    code, out, _ = run(capsys, *told)
    assert code == 130 and json.loads(out) == {
        "schema": "gradloom.finetune/1", "model": str(path), "data_file": str(text), "out": None, "steps": 0,
        "interrupted": True
    }  # fmt: skip
    monkeypatch.setattr(importlib.import_module("gradloom.llm.generate").Generator, "_feed", stop)
    assert run(capsys, "generate", path, "--prompt", "once")[0] == 130


def test_ctrl_c_while_measuring_or_generating(capsys, path, text, monkeypatch):
    """What was measured and generated so far is told; stdout ends with the object."""
    calls = []

    def third(honest):
        def call(*arguments, **options):
            calls.append(1)
            if len(calls) % 3 == 0:
                raise KeyboardInterrupt
            return honest(*arguments, **options)

        return call

    measuring = importlib.import_module("gradloom.llm.evaluate")
    monkeypatch.setattr(measuring, "_picks", third(measuring._picks))
    code, out, err = run(capsys, "evaluate", path, text, "--context", 32, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 130 and "interrupted after 32 of " in err and found["interrupted"] is True
    assert found["rows"] == 32 and found["tokens"] == 32 * 32 and found["perplexity"] > 1
    generating = importlib.import_module("gradloom.llm.generate")
    monkeypatch.setattr(generating, "sample", third(generating.sample))
    code, out, err = run(capsys, "generate", path, "-p", "once", "--temperature", 0, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 130 and found["interrupted"] is True and found["ended"] == "interrupted"
    assert found["text"] and out.startswith("once" + found["text"] + "\n")


@pytest.mark.parametrize(("rate", "kept"), [(1e30, "are in "), (1e38, "cannot be saved: ")])
def test_a_loss_that_is_not_finite_keeps_what_was_trained(capsys, tmp_path, path, text, rate, kept):
    options = ("--lr", rate, "--warmup", 0, "--schedule", "constant", "--epochs", 3, "--out", tmp_path / "a.gguf")
    code, out, err = run(capsys, "finetune", path, text, "--context", 32, *options)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("gradloom: training stopped at step ")
    assert f"; the weights before it {kept}{tmp_path / 'a.gguf'}" in last
    assert (tmp_path / "a.gguf").exists() == (kept == "are in ")


# -- real files --------------------------------------------------------------------------------------------------------


def test_stories(capsys):
    model = need("gguf/stories260K.gguf")
    code, out, err = run(capsys, "generate", model, "--prompt", "Once upon a time", "-n", 32, "--temperature", 0)
    assert code == 0 and out.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside"
    )
    assert "32 tokens, the limit was reached" in err


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_shakespeare_lowers_the_loss(capsys, tmp_path, method):
    model, data = need("gguf/stories260K.gguf"), tmp_path / "t.txt"
    data.write_text(need("text/tinyshakespeare.txt").read_text()[:60_000])
    rate = {"lora": 0.003, "full": 0.001}[method]
    code, out, err = run(
        capsys, "finetune", model, data, "--method", method, "--context", 128, "--batch-size", 8, "--steps", 25,
        "--lr", rate, "--out", tmp_path / "out.gguf", "--json",
    )  # fmt: skip
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["val_loss"] < found["val_loss_before"] - 0.3, err


@pytest.mark.slow
def test_gsm8k_lowers_the_loss(capsys, tmp_path):
    model, data = need("gguf/stories260K.gguf"), tmp_path / "d.jsonl"
    rows = need("instruct/gsm8k-train.jsonl").read_text().splitlines()[:200]
    data.write_text("\n".join(rows) + "\n")
    code, out, err = run(
        capsys, "finetune", model, data, "--prompt-key", "question", "--completion-key", "answer", "--context", 256,
        "--batch-size", 4, "--steps", 20, "--lr", 0.005, "--out", tmp_path / "a.gguf", "--json",
    )  # fmt: skip
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["val_loss"] < found["val_loss_before"] - 0.2, err


def test_a_setting_is_named_as_it_was_asked_for(capsys, tmp_path, path):
    """Also one of a settings file, and one that is no number."""
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    words = ("finetune", path, data, "--context", 32)
    refused(capsys, "gradloom: --prompt-key: must be a key", *words, "--prompt-key", "")
    settings = tmp_path / "s.toml"
    settings.write_text("val_split = 0.25")
    refused(
        capsys,
        f"{settings}: val_split = 0.25 cannot be combined",
        *words,
        "--val",
        data,
        "--config",
        settings,
    )
