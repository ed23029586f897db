"""Write docs/demo.svg: the terminal of a real run of the demo with the agent Pi.

python docs/generate_demo_svg.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 104
COMMANDS = (
    "swe-core run --plugins pi --tasks demo --out run",
    "swe-core show run demo__memofn-1-0 --diff --tests",
)


def main() -> None:
    """Run the commands and draw what they print on standard output."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "PAGER": "cat",
        "SWE_SANDBOX__LOCAL__UNISOLATED": "true",  # has no effect where the machine can isolate
    }
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            done = subprocess.run(
                command.split(), cwd=directory, env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
            console.print(Text.from_ansi(done.stdout.strip()), "")
    picture = console.export_svg(title="swe-core", unique_id="demo")
    # Without fonts from the network: a viewer takes its own.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
