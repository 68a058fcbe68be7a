"""The command inside of the process that tests it."""

from __future__ import annotations

from typing import Any

from gradloom.cli.main import main

FILES = [  # of a fit
    "checkpoints",
    "metrics.jsonl",
    "model.safetensors",
    "plans.json.gz",
    "result.json",
    "run.json",
    "settings.toml",
]


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of gradloom with these arguments."""
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err
