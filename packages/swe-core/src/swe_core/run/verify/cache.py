"""What is known of tasks that were verified before, in the user's cache directory.

An entry is named by all that decides it: the row, the image or the repository's files, the sandbox and the
grader with their settings, the cheats, the repeats, and swe-core's own code. So nothing in it grows stale,
and all of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import orjson
from pydantic import ValidationError

import swe_core
from swe_core.run.verify.report import TaskVerdict
from swe_core.system.files import write_whole


@cache
def versions() -> Mapping[str, str]:
    """What verifies: swe-core's version, a digest of its code (a checkout changes without its version), and
    the host's Python, which local sandboxes run."""
    digest = hashlib.sha256()
    root = Path(swe_core.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return {
        "swe-core": importlib.metadata.version("swe-core"),
        "program": digest.hexdigest(),
        "python": platform.python_version(),
    }


class VerifyCache:
    """Verdicts by key.

    Args:
        directory: Where they are kept; it is made.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, facts: Mapping[str, object]) -> TaskVerdict | None:
        """Return the verdict for exactly `facts`; None without a readable one."""
        try:
            return TaskVerdict.model_validate_json(self._path(facts).read_bytes())
        except (OSError, ValidationError):  # a damaged entry is as good as none
            return None

    def put(self, facts: Mapping[str, object], verdict: TaskVerdict) -> None:
        """Keep a verdict that was reached. A cache that cannot be written is passed over."""
        path = self._path(facts)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            data = orjson.dumps(verdict.model_dump(mode="json"))
            write_whole(path, data, f".{secrets.token_hex(8)}.new")

    def _path(self, facts: Mapping[str, object]) -> Path:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self._directory / key[:2] / f"{key}.json"
