"""Whether an agent's program is missing in its sandbox."""

from __future__ import annotations

from collections.abc import Mapping

from swe_core.api.sandbox import Sandbox
from swe_core.errors import SandboxError, raised_as

_LOOK = """\
case $1 in
*/*) found=$1 ;;
*) found=$(command -v "$1") ;;
esac
[ -e "$found" ] || exit 3
[ -x "$found" ] && [ ! -d "$found" ] || exit 4
"""
_FOUND = {
    3: ("missing", "install it there, or let the agent's plugin bring it with assets()"),
    4: ("not executable", "set its mode, or name an interpreter before it in command()"),
}
"""Exit code of the look → what it found, and the remedy."""
_LOOKING = 30.0
"""Seconds for the look."""


async def missing_program(
    agent: str, program: str, sandbox: Sandbox, *, cwd: str, env: Mapping[str, str]
) -> str | None:
    """Return a sentence if `program` cannot be started in the sandbox, else None.

    Args:
        agent: The agent's name.
        cwd: The directory in which the program should start.
        env: The environment that it should get, with its PATH.

    Raises:
        SandboxError: The sandbox failed.
    """
    with raised_as(SandboxError):
        looked = await sandbox.exec(["sh", "-c", _LOOK, "sh", program], cwd=cwd, env=env, timeout=_LOOKING)
    if looked.exit_code not in _FOUND:
        return None
    image = None if sandbox.image_id is None else sandbox.spec.image  # without an id, no image was opened
    where = "the sandbox" if image is None else f"the image {image!r}"
    found, remedy = _FOUND[looked.exit_code]
    return (
        f"the agent {agent!r} cannot start, because its program {program!r} is {found} in {where}: {remedy}"
    )
