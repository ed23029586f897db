"""What the tests of the Docker sandbox share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import docker
import pytest

from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_docker.address import resolve


async def sh(sandbox: Sandbox, script: str, code: int = 0, cwd: str | None = None) -> str:
    """Run a script that must end with `code`; returns its stdout."""
    done = await sandbox.exec(["sh", "-c", script], cwd=cwd, timeout=60)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
    return done.text


def containers_of_this_process(engine: docker.APIClient) -> list[str]:
    """The ids of the containers that this process has on an engine."""
    found = engine.containers(all=True, filters={"label": f"{LABEL}={current_owner()}"})
    return [entry["Id"] for entry in found]


def socket_directories(pid: int) -> list[str]:
    """Those of one process; others may have theirs at the same time."""
    owners = Path(tempfile.gettempdir()).glob("swe-docker-*/owner")
    return [str(path) for path in owners if f"/{pid}/" in path.read_text()]


class OnAnEngine:
    """What the suites of all sandboxes need to run on an engine."""

    @pytest.fixture
    def spec(self, spec: SandboxSpec) -> SandboxSpec:
        return spec

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        with closing(docker.APIClient(base_url=resolve().url, version="auto")) as engine:
            return containers_of_this_process(engine) + socket_directories(os.getpid())


def gone_owner() -> str:
    """An owner of this machine that does not run any more."""
    host, boot, namespace, _, started = current_owner().rsplit("/", 4)
    return f"{host}/{boot}/{namespace}/{2**22 + 1}/{started}"
