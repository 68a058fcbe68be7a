"""docs/command.md lists the commands and their options as they are (GRADLOOM_UPDATE_GOLDEN=1 rewrites the list)."""

import os
import re
from pathlib import Path

from tests.scripts import script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command.md"


def test_the_options_are_those_of_the_commands():
    fresh = f"<!-- options -->\n{script('docs/options.py').page()}\n<!-- /options -->"
    if os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1":
        text = re.sub(r"<!-- options -->.*?<!-- /options -->", lambda _: fresh, PAGE.read_text(), flags=re.S)
        PAGE.write_text(text)
    found = re.search(r"<!-- options -->.*?<!-- /options -->", PAGE.read_text(), re.S)
    assert found and found[0] == fresh, "run GRADLOOM_UPDATE_GOLDEN=1 pytest tests/cli/test_page.py"
    assert "| `--context` |" in fresh and "### gradloom finetune" in fresh


def test_every_command_has_its_line():
    head = PAGE.read_text().split("## ")[0]
    missing = [
        name for name in script("docs/options.py").commands() if f"gradloom {name} " not in head and name != "predict"
    ]
    assert not missing, f"docs/command.md begins without {missing}"
