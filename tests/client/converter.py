"""llama.cpp's own converter of Hugging Face folders to GGUF files, in a process of its own:

    python tests/client/converter.py SOURCE JOBS.json

SOURCE is llama.cpp's folder (convert_hf_to_gguf.py, conversion/, gguf-py/). JOBS.json is a list of objects with the
keys folder, out, type (f32 or bf16) and pre, the name of the pre-tokenizer: the converter recognises pre-tokenizers by
a hash of the ids of a text, which fits published tokenizers alone. Everything else is the converter's. The error of a
job that fails is written to OUT.error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def convert(converter: Any, job: dict[str, str]) -> None:
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: job["pre"]
    sys.argv = ["convert_hf_to_gguf.py", job["folder"], "--outfile", job["out"], "--outtype", job["type"]]
    try:
        converter.main()
    except (Exception, SystemExit):
        Path(job["out"] + ".error").write_text(traceback.format_exc())


def main(source: str, jobs: str) -> None:
    sys.path[:1] = [source]
    os.environ["HF_HUB_OFFLINE"] = "1"
    import convert_hf_to_gguf  # type: ignore[import-not-found]

    for job in json.loads(Path(jobs).read_text()):
        convert(convert_hf_to_gguf, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
