"""What the tests of the Docker sandbox share."""

from __future__ import annotations

from swe_core.api.sandbox import Sandbox


async def sh(sandbox: Sandbox, script: str, code: int = 0, cwd: str | None = None) -> str:
    """Run a script that must end with `code`; returns its stdout."""
    done = await sandbox.exec(["sh", "-c", script], cwd=cwd, timeout=60)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
    return done.text
