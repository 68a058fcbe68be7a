"""The site: `python -m sphinx -W docs build/site` writes pages that a browser opens without a network."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

import reference  # noqa: E402

import gradloom  # noqa: E402

reference.write(DOCS / "reference")

project = "gradloom"
copyright = "the authors of gradloom"
version = release = getattr(gradloom, "__version__", "")
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["**/.*", "package.md", "names/*"]  # the description in package indexes; parts of the reference
master_doc = "index"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
add_module_names = True
python_maximum_signature_line_length = 100
suppress_warnings = ["myst.header"]
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = "gradloom"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
