"""A process that has imported everything, and forks a child for each command: python -m tests.faults.server LIBRARY.

Reads one JSON object per line: module (whose main is called) and its arguments, folder whose calls are counted, at (the
number of the call that fails, 0 for none), mode (that of faults.cpp), place (a folder of its own for out, err, log and
modules), limit in seconds. Answers one line: the exit code, or the negative number of the signal that ended the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])  # the preloaded one
    importlib.import_module("gradloom.cli.main")
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(asked, library)
        status = os.waitpid(child, 0)[1]
        for name in (Path(asked["place"]) / "modules").read_text().split():
            with contextlib.suppress(Exception):  # one that only its own package can import
                importlib.import_module(name)
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)


def _child(asked: dict[str, Any], library: ctypes.CDLL) -> NoReturn:
    place = Path(asked["place"])
    command = importlib.import_module(asked["module"])
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err"), (9, "log"), (8, "modules")):
            handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        signal.alarm(asked["limit"])  # ends a child that hangs
        library.faults_arm(os.fsencode(asked["folder"]), asked["at"], asked["mode"], 9)
        try:
            code = command.main(asked["arguments"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(8, "\n".join(n for n in sys.modules if n != "__main__").encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
