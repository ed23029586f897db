"""Session factories for tests: runs of the demo tasks in the background of the test's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swe_openenv.harness import SweSessionFactory

BASIC = ("run.plugins=[]", "sandbox.local.unisolated=true")
AGENTS = str(Path(__file__).with_name("talkers.py"))
OWN = (f'run.extra_plugins=["{AGENTS}"]', "run.grader=says")


@contextmanager
def factory(out: Path, *sets: str, **more: Any) -> Iterator[SweSessionFactory]:
    """A factory in this process, closed at the end."""
    made = SweSessionFactory(sets=(*BASIC, *sets), out=out, **more)
    try:
        yield made
    finally:
        made.close()


def prompt(text: str) -> Sequence[dict[str, Any]]:
    """A row's prompt, as TRL passes it."""
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
