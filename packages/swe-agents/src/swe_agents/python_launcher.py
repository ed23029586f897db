"""Starts an agent's runner. Both files run inside the sandbox, with the bundle's Python.

The argument is the settings file. The prompt comes on standard input, events go to standard output.
"""

import gc
import importlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Read the settings and the prompt, and call `run` of the runner."""
    token = os.environ.pop("SWE_LLM_TOKEN")
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)  # libraries print
    told = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    environment = dict(os.environ)
    os.environ.update(told["variables"])

    def emit(event: str) -> None:
        events.write(event + "\n")
        events.flush()

    sys.path.insert(0, str(Path(__file__).parent))
    path = list(sys.path)
    gc.disable()  # importing 2,000 modules is a sixth faster without it
    runner = importlib.import_module("runner")
    gc.enable()
    # What was set for the imports, or by them, is none of the business of the agent's commands.
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    runner.run(told["settings"], token, sys.stdin.read(), emit)


main()
