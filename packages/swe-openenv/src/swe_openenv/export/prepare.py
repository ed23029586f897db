"""Check an exported server's settings and make what it needs, while its image is built.

python -m swe_openenv.export.prepare SETTINGS
"""

from __future__ import annotations

import sys
from pathlib import Path

from swe_core.errors import SweError, sentence
from swe_openenv.plans import load_plan


def prepare(config: Path) -> None:
    """Make the tasks' repositories and the agent's bundle, which a server else makes at its first start.

    Raises:
        SweError: A setting or a task is wrong, or the agent's bundle cannot be built.
    """
    plan, _ = load_plan(config)
    plan.agent.assets()


if __name__ == "__main__":
    try:
        prepare(Path(sys.argv[1]))
    except SweError as error:
        sys.exit(f"error: {sentence(error)}")
