"""What the tests of the Docker sandbox share."""

from __future__ import annotations

import docker

from swe_core.api.sandbox import Sandbox
from swe_core.system.process_owner import LABEL, current_owner


async def sh(sandbox: Sandbox, script: str, code: int = 0, cwd: str | None = None) -> str:
    """Run a script that must end with `code`; returns its stdout."""
    done = await sandbox.exec(["sh", "-c", script], cwd=cwd, timeout=60)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
    return done.text


def containers_of_this_process(engine: docker.APIClient) -> list[str]:
    """The ids of the containers that this process has on an engine."""
    found = engine.containers(all=True, filters={"label": f"{LABEL}={current_owner()}"})
    return [entry["Id"] for entry in found]


def gone_owner() -> str:
    """An owner of this machine that does not run any more."""
    host, boot, namespace, _, started = current_owner().rsplit("/", 4)
    return f"{host}/{boot}/{namespace}/{2**22 + 1}/{started}"
