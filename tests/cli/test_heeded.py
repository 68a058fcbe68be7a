"""An option changes what a command does or prints, or is refused in one line: no option is accepted and not heeded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from examples.random_gguf import CHATML
from gradloom.cli.main import main
from tests.llm.other_program import use
from tests.llm.random_models import write
from tests.scripts import script

ROOT = Path(__file__).parents[2]
WORDS = ["once", "upon", "a", "time", "there", "was", "a", "little", "girl", "who", "played", "with", "her", "dog"]
# What a run measures, and the names of files that it was given to write
MEASURED = {
    "seconds", "tokens_per_second", "peak_bytes", "resident_before_bytes", "available_bytes", "out",
    "base_bytes", "other_seconds", "reading_bytes", "planned_total_bytes",
}  # fmt: skip
READS = ["--text-key t", "--prompt-key p", "--completion-key c", "--messages-key m", "--as-chat"]
READS += ["--chat-template tpl.jinja", "--loss-on assistant", "--skip-bad-lines"]  # of which a text heeds none
TAUGHT = "--objective distil --teacher large.gguf --top-k 8"
SIDES = ["--chosen-key c", "--rejected-key r", "--label-key l"]  # of objectives that learn from preferences
SIDES += ["--anchor-key a", "--positive-key p", "--negative-key n"]  # of embed
TRAIN = "finetune m.gguf t.txt --context 32 --lr 0.01 --out o.gguf"
# command line -> (options that change something, options that are refused)
PAIRS = "finetune m.gguf d.jsonl --context 32 --out o.gguf --steps 2"
TABLE: dict[str, tuple[list[str], list[str]]] = {
    TRAIN: (
        ["--rank 4", "--alpha 1", "--targets attn_q", "--dropout 0.3", "--rslora", "--lora base.gguf", "--batch-size 2",
         "--micro-batch-size 1", "--epochs 2", "--steps 2", "--schedule linear", "--warmup 0.9",
         "--schedule wsd", "--schedule one_cycle", "--schedule polynomial --power 3",
         "--schedule cosine_restarts --cycles 2", "--weight-decay 0.1",
         "--val-split 0.3", "--seed 1", "--method full", "--context 64", "--lr 0.1", "--threads 2", "--optimizer lion",
         "--max-norm 0.001", "--freeze *.0.*", "--ema 0.9", "--precision bf16"],
        ["--train-dtype f32", "--exchange fast", "--parallel fork", "--out o.bin", "--weight-decay -1",
         "--sample-every 1steps", "--on-nonfinite go", "--state-bits 8", "--state-bits 16",
         "--optimizer lino", "--power 2", "--cycles 2", "--schedule polynomial", "--eval-rows 0", "--keep 0",
         "--precision f16", "--device nowhere", *READS, *SIDES],
    ),
    TRAIN + " --lora base.gguf": (
        ["--dropout 0.3", "--seed 1"],
        ["--rank 4", "--alpha 1", "--targets attn_q", "--rslora", "--method full", "--train-dtype f32"],
    ),
    TRAIN + " --method full": (
        ["--targets attn_q", "--seed 1", "--weight-decay 0.1", "--state-bits 8", "--state-bits 8 --optimizer lion"],
        ["--state-bits 8 --optimizer sgd", "--rank 4", "--alpha 1",
         "--dropout 0.3", "--dropout 0", "--rslora", "--lora base.gguf"],
    ),
    PAIRS + " --objective dpo": (
        ["--beta 0.5", "--loss-type hinge", "--loss-type ipo", "--label-smoothing 0.1", "--objective orpo",
         "--objective simpo", "--objective cpo", "--chosen-key b --rejected-key a", "--prompt-key p"],
        ["--gamma 1", "--nll-weight 1", "--desirable-weight 2", "--label-key good", "--objective kto",
         "--objective dpp", "--loss-type hinge --label-smoothing 0.1", "--label-smoothing 0.5", "--beta 0",
         "--loss-type log",
         "--chosen-key rejected", "--objective sft"],
    ),
    PAIRS + " --objective simpo": (["--gamma 1"], ["--loss-type hinge", "--undesirable-weight 1"]),
    PAIRS + " --objective cpo": (["--nll-weight 0.5", "--loss-type ipo"], ["--gamma 1"]),
    "finetune m.gguf j.jsonl --context 32 --out o.gguf --steps 2 --objective kto": (
        ["--desirable-weight 2", "--undesirable-weight 0", "--label-key bad", "--beta 0.3"],
        ["--chosen-key completion", "--loss-type hinge", "--objective dpo", "--label-key prompt"],
    ),
    PAIRS + " --objective reward": (
        ["--center-rewards-coefficient 0.1", "--chosen-key b --rejected-key a", "--method full", "--objective dpo"],
        ["--beta 1", "--class-weight balanced", "--objective classify", "--lora base.gguf --objective sft"],
    ),
    f"finetune m.gguf x.jsonl --context 32 --out o.gguf --steps 2 {TAUGHT}": (
        ["--teacher m.gguf", "--top-k 4", "--temperature 2", "--hard-weight 0.5", "--text-key story", "--method full"],
        ["--top-k 1000000", "--temperature 0", "--hard-weight 1", "--beta 1", "--teacher x.jsonl", "--objective sft"],
    ),
    f"plan m.gguf x.jsonl --context 64 {TAUGHT}": (
        ["--teacher m.gguf", "--top-k 4", "--temperature 2", "--hard-weight 0.5"],
        ["--top-k 1000000", "--teacher x.jsonl", "--objective sft"],
    ),
    f"verify m.gguf x.jsonl --context 16 --batch-size 2 --no-reference {TAUGHT}": (
        ["--teacher m.gguf", "--top-k 4", "--temperature 2", "--hard-weight 0.5"],
        ["--top-k 1000000", "--teacher x.jsonl", "--objective sft"],
    ),
    "finetune m.gguf l.jsonl --context 32 --out o.gguf --steps 2 --objective classify": (
        ["--class-weight balanced", "--text-key story", "--label-key other", "--label-key n", "--label-key several",
         "--objective regress --label-key n"],
        ["--class-weight even", "--label-key several --class-weight balanced", "--center-rewards-coefficient 1",
         "--objective regress", "--chosen-key text", "--label-key text2"],
    ),
    "finetune m.gguf e.jsonl --context 32 --out o.gguf --steps 2 --objective embed": (
        ["--temperature 0.5", "--pooling mean", "--widths 8,48", "--anchor-key b --positive-key a",
         "--negative-key c", "--method full"],
        ["--temperature 0", "--pooling max", "--widths 0", "--widths 8,8", "--widths 1000", "--beta 1",
         "--chosen-key a", "--anchor-key nothing", "--objective sft --pooling mean", "--as-chat"],
    ),
    "embed m.gguf t.txt": (
        ["--pooling mean", "--width 5", "--context 8", "--precision bf16", "--lora base.gguf", "--out o.csv"],
        ["--pooling max", "--width 0", "--width 1000", "--precision f16", "--device nowhere", "--text-key words",
         "--encoding nothing", "--out o.bin"],
    ),
    "finetune half.gguf t.txt --context 32 --out o.gguf --method full --train-dtype f32": (["--targets attn_q"], []),
    "evaluate m.gguf t.txt --context 32": (
        ["--lora base.gguf", "--context 64", "--precision bf16"], ["--precision f16", "--device nowhere", *READS],
    ),
    "evaluate m.gguf p.jsonl --context 96": (
        ["--prompt-key q", "--completion-key a", "--as-chat", "--as-chat --chat-template tpl.jinja", "--loss-on all"],
        ["--text-key t", "--messages-key m", "--chat-template tpl.jinja"],
    ),
    "evaluate m.gguf x.jsonl --context 96": (
        ["--text-key story", "--special"],
        ["--prompt-key p", "--completion-key c", "--messages-key m", "--as-chat", "--loss-on assistant"],
    ),
    "evaluate m.gguf c.jsonl --context 96": (
        ["--chat-template tpl.jinja", "--loss-on all", "--special"],
        ["--text-key t", "--prompt-key p", "--completion-key c", "--as-chat"],
    ),
    "compare m.gguf t.txt --context 32 --tokens 60": (
        ["--lora base.gguf", "--context 64", "--tokens 30", "--layers"], ["--with vllm", "--tokens 0", *READS],
    ),
    "compare m.gguf p.jsonl --context 96": (
        ["--prompt-key q", "--completion-key a", "--as-chat", "--as-chat --chat-template tpl.jinja", "--loss-on all"],
        ["--text-key t", "--messages-key m", "--chat-template tpl.jinja"],
    ),
    "compare m.gguf x.jsonl --context 96": (["--text-key story", "--special"], ["--prompt-key p", "--as-chat"]),
    "generate m.gguf --prompt once -n 12": (
        ["--lora base.gguf", "--max-tokens 5", "--temperature 0", "--top-k 2", "--top-p 0.3", "--seed 1", "--chat",
         "--chat --chat-template tpl.jinja", "--prompt upon"],
        ["--chat-template tpl.jinja", "--temperature 0 --top-k 2", "--temperature 0 --top-p 0.3", "--precision f16",
         "--device nowhere"],
    ),
    "plan m.gguf": (
        ["--rank 4", "--targets attn_q", "--context 64", "--batch-size 2", "--micro-batch-size 1", "--optimizer sgd",
         "--threads 2", "--method full", "--precision bf16", "--dropout 0.1", "--max-norm 1", "--freeze blk.0.*",
         "--sample-prompt once", "--val-split 0", "--ema 0.9", "--lora base.gguf"],
        ["--train-dtype f32", "--method full --rank 4", "--precision f16", "--val t.txt", "--eval-rows 2", "--special",
         *READS, *SIDES],
    ),
    "plan m.gguf --method full": (["--state-bits 8"], ["--state-bits 8 --optimizer rmsprop", "--state-bits 16"]),
    "plan m.gguf p.jsonl --context 64 --val-split 0.4": (
        ["--prompt-key q", "--completion-key a", "--as-chat", "--as-chat --chat-template tpl.jinja", "--eval-rows 1",
         "--seed 3"],
        ["--val t.txt", "--text-key t"],
    ),
    "plan m.gguf d.jsonl --context 64 --objective dpo": (
        ["--objective simpo", "--objective orpo", "--chosen-key b --rejected-key a"],
        ["--objective kto", "--label-key x"],
    ),
    "plan m.gguf j.jsonl --context 64 --objective kto": (
        ["--batch-size 2"], ["--rejected-key b", "--objective dpo", "--label-key prompt"],
    ),
    "plan m.gguf l.jsonl --context 64 --objective classify": (
        ["--objective regress --label-key n", "--label-key several"], ["--objective reward"],
    ),
    "plan m.gguf e.jsonl --context 64 --objective embed": (
        ["--pooling mean", "--widths 8,48", "--anchor-key c --positive-key a", "--negative-key c"],
        ["--pooling max", "--widths 1000", "--chosen-key a"],
    ),
    "plan m.gguf x.jsonl --context 64": (["--text-key story", "--val t.txt"], ["--messages-key m"]),
    "verify m.gguf d.jsonl --context 16 --batch-size 2 --no-reference --objective dpo": (
        ["--loss-type hinge", "--loss-type ipo", "--objective cpo", "--objective cpo --nll-weight 0.5",
         "--objective simpo", "--objective simpo --gamma 1", "--objective simpo --beta 1",
         "--objective cpo --label-smoothing 0.3", "--chosen-key b --rejected-key a --objective orpo"],
        ["--gamma 1", "--label-key good"],
    ),
    "verify m.gguf j.jsonl --context 16 --batch-size 2 --no-reference --objective kto": (
        ["--desirable-weight 2", "--undesirable-weight 0.5", "--label-key bad --undesirable-weight 0.2"],
        ["--chosen-key a"],
    ),
    "verify m.gguf d.jsonl --context 16 --batch-size 2 --no-reference --objective reward": (
        ["--center-rewards-coefficient 0.1"], ["--class-weight balanced"],
    ),
    "verify m.gguf l.jsonl --context 16 --batch-size 2 --no-reference --objective classify": (
        ["--class-weight balanced", "--label-key other"], ["--center-rewards-coefficient 0.1"],
    ),
    "verify m.gguf e.jsonl --context 16 --batch-size 2 --no-reference --objective embed": (
        ["--temperature 0.5", "--pooling mean", "--widths 8,48", "--anchor-key b --positive-key a", "--negative-key c"],
        ["--class-weight balanced", "--widths 0"],
    ),
    "verify m.gguf t.txt --context 16": (
        ["--lora base.gguf", "--method full", "--rank 2", "--targets attn_q", "--context 32", "--batch-size 2",
         "--optimizer sgd", "--no-reference", "--seed 2", "--threads 2", "--precision bf16"],
        ["--train-dtype f32", "--precision f16", "--lora base.gguf --rank 2", "--lora base.gguf --targets attn_q",
         *READS],
    ),
}  # fmt: skip
# Options that change neither numbers nor bytes, and what tests them: the same bits for any number of threads or rows at
# a time; a stop text (test_generate.py); a precision, by its logits (tests/llm/test_precision.py); a settings file
# (test_config.py); a device (tests/gpu/test_finetune.py); --json is in every line; --encoding (test_language.py)
GPU = {"--device", "--gpu-layers", "--gpu-memory"}  # tests/gpu/test_gpu_layers.py
ELSEWHERE = {
    "evaluate": {"--threads", "--batch-size", "--skip-bad-lines", "--memory", *GPU},
    "compare": {"--threads", "--skip-bad-lines"},
    "embed": {"--threads"},
    "verify": {"--device", "--special", "--capsule"},  # tests/gpu/test_verify.py
    # tests/llm/test_plan.py, tests/gpu/test_held.py, tests/llm/test_memory.py, tests/reports/test_command.py
    "plan": {"--config", "--skip-bad-lines", "--special", "--memory", "--html", "--watch", "--watch-what", *GPU},
    "generate": {"--threads", "--stop", "--precision", "--memory", *GPU},
    "finetune": {
        *GPU,
        "--memory",  # tests/llm/test_memory.py
        "--special",  # tests/llm/test_control_text.py
        "--val",  # tests/llm/test_data_files.py
        "--config",
        "--run",
        "--sample-prompt",  # test_rerun.py; test_sample_texts.py
        "--resume",
        "--overwrite",
        "--checkpoint-every",
        "--stop-after",
        "--eval-every",
        "--patience",
        "--keep-best",
        "--log",  # test_resume_finetune.py
        "--watch",
        "--watch-every",
        "--watch-what",  # tests/cli/test_watch.py
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write(folder, "llama", chat=True, context=128).rename(folder / "m.gguf")
    write(folder, "qwen2", kind="f16", context=128).rename(folder / "half.gguf")
    write(folder, "qwen2_partial", chat=True, context=128, layers=3).rename(folder / "large.gguf")
    (folder / "tpl.jinja").write_text(CHATML.replace("<|im_start|>", "<|im_start|>now "))
    rng = np.random.default_rng(0)

    def some(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    (folder / "t.txt").write_text(some(900))
    end = " </s>"  # the name of a control token
    rows = [
        {"prompt": some(4), "completion": some(4), "q": some(3), "a": some(5), "text": some(9) + end} for _ in range(20)
    ]
    turns = [[{"role": "user", "content": r["q"] + end}, {"role": "assistant", "content": r["a"]}] for r in rows]
    kinds = {
        "p": [{k: v for k, v in r.items() if k != "text"} for r in rows],
        "l": [
            {
                "text": r["text"],
                "story": r["a"],
                "label": "abc"[min(i % 5, 2)],
                "other": "ab"[i % 2],
                "n": i,
                "several": ["a", "b"][: i % 3],
            }
            for i, r in enumerate(rows)
        ],
        "x": [{"text": r["text"], "story": r["a"]} for r in rows],
        "c": [{"messages": t} for t in turns],
        "d": [
            {
                "prompt": r["prompt"],
                "chosen": r["q"],
                "rejected": r["a"],
                "a": r["completion"],
                "b": r["text"],
                "p": r["q"],
            }
            for r in rows
        ],
        "e": [
            {
                "anchor": r["q"],
                "positive": r["a"],
                "a": r["prompt"],
                "b": r["completion"],
                "c": r["text"],
            }
            for r in rows
        ],
        "j": [
            {"prompt": r["prompt"], "completion": r["q"], "good": True, "label": i % 2 == 0, "bad": i % 3 == 0}
            for i, r in enumerate(rows)
        ],
    }
    for name, lines in kinds.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def fingerprint(capsys: pytest.CaptureFixture[str], folder: Path, line: str) -> tuple[int, str]:
    """(exit code, what the command printed as JSON and wrote; or its last line of stderr)."""
    (folder / "o.gguf").unlink(missing_ok=True)
    code = main([*line.split(), "--json"])
    out, err = capsys.readouterr()
    if code:
        return code, err.splitlines()[-1]
    found = {k: v for k, v in json.loads(out.splitlines()[-1]).items() if k not in MEASURED}
    written = (folder / "o.gguf").read_bytes() if (folder / "o.gguf").exists() else b""
    return 0, json.dumps(found, sort_keys=True) + hashlib.md5(written).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("line", TABLE)
def test_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path, line: str) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("GRADLOOM_THREADS", "1")
    use(monkeypatch)
    if not (files / "base.gguf").exists():
        assert fingerprint(capsys, files, f"{TRAIN} --seed 7 --rank 2")[0] == 0
        (files / "o.gguf").rename(files / "base.gguf")
    changing, refused = TABLE[line]
    code, base = fingerprint(capsys, files, line)
    assert code == 0, base
    for option in changing:
        code, found = fingerprint(capsys, files, f"{line} {option}")
        assert code == 0 and found != base, f"{option}: {found if code else 'changes nothing'}"
    for option in refused:
        code, said = fingerprint(capsys, files, f"{line} {option}")
        assert code == 2 and said.startswith("gradloom: "), f"{option}: accepted"


def test_no_option_is_left_out() -> None:
    page = script("docs/options.py").page()
    for command in {line.split()[0] for line in TABLE}:
        section = page.split(f"### gradloom {command}\n")[1].split("### ")[0]
        names = {row.split("`")[1] for row in section.splitlines() if row.startswith("| `--")}
        lines = [line for line in TABLE if line.split()[0] == command]
        tried = {word for line in lines for group in (line, *TABLE[line][0], *TABLE[line][1]) for word in group.split()}
        assert (
            names - tried - {"--json", "--quiet", "--reference", "--encoding"} - ELSEWHERE.get(command, set()) == set()
        ), command
