"""Counts words of the private vocabulary that the sources once used. Each count may fall, never rise.

Source texts are docstrings, comments, messages and identifiers of the package; pages are README.md and docs/.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

WORDS = {  # name -> pattern
    "said, says, say": r"(?<!\.)\b(said|says|say|unsaid)\b",
    "told, tells, tell, heard, hears": r"\b(told|tells|tell|heard|hears)\b",
    "what it, what the, ...": r"\bwhat (it|is|the|they|was|has|an|of|comes|each|else)\b",
    "so many, as many": r"\b(so|as) many\b",
    "need one of both, need one of them": r"\bneed one of\b",
    "heed": r"\b(un)?heed(s|ed)?\b",
    "goes on, gives back, takes back": r"\b(goes|go|gone) on\b|\b(gives?|takes?|gave|took) (it )?back\b",
    "by whatever, such as it is, of the kind that": r"\bby whatever\b|\bsuch as it is\b|\bof the kind that\b",
}
LIMITS = {  # name -> (package, pages)
    "said, says, say": (8, 0),
    "told, tells, tell, heard, hears": (13, 0),
    "what it, what the, ...": (2, 4),
    "so many, as many": (0, 0),
    "need one of both, need one of them": (4, 0),
    "heed": (0, 0),
    "goes on, gives back, takes back": (0, 0),
    "by whatever, such as it is, of the kind that": (0, 0),
}
PACKAGE = sorted((ROOT / "src" / "gradloom").rglob("*.py"))
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "reference")
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *DOCS]


def occurrences(pattern: str, texts: list[str]) -> int:
    return sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts)


@pytest.mark.parametrize("name", WORDS)
def test_words_of_the_private_vocabulary_do_not_return(name: str) -> None:
    for files, limit in zip((PACKAGE, PAGES), LIMITS[name], strict=True):
        count = occurrences(WORDS[name], [path.read_text() for path in files])
        assert count <= limit, f"{name}: {count} in {files[0].parent.name}, at most {limit}"


def test_words_are_counted() -> None:
    texts = ["It says what it is. `--folds 3`: need one of them", "as many as it was told; goes on, takes it back"]
    counted = {name: occurrences(pattern, texts) for name, pattern in WORDS.items()}
    assert list(counted.values()) == [1, 1, 1, 1, 1, 0, 2, 0]


SPELLED = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "examples", "src"]
NOT_TEXT = "*.json,*.png,*.so,*.ipynb,*.npz,*/reference/*,*/assets/*,*/__pycache__/*"
OWN_WORDS = "mape,aer,te,nd,seperator,improbe"  # metrics and names; misspelled names of columns that a hint corrects


def test_pages_and_sources_are_spelled_right() -> None:
    pytest.importorskip("codespell_lib")
    command = [sys.executable, "-m", "codespell_lib", "--skip", NOT_TEXT, "--ignore-words-list", OWN_WORDS, *SPELLED]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
