"""The notebooks of examples/ run, and show pages, not only text. They are stored without outputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    folder = tmp_path / "examples" / "notebooks"
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    notebook = nbformat.read(path, 4)
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    shown = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert "text/html" in shown


def test_notebooks_have_no_outputs() -> None:
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], path.name
