"""The hf sandbox in an image whose programs the code inside can replace; the local HF runs it with Docker."""

from __future__ import annotations

import anyio
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import SandboxBroken
from swe_sandbox_hf.provider import HfProvider
from swe_testing.hf import LocalHF

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
PATIENCE = 60.0


ENDLESS = ["exec yes ''", "tr -d '\\n' </dev/zero | tr '\\0' x"]


@pytest.mark.parametrize(
    "program",
    ["echo no base64", *(pytest.param(one, marks=pytest.mark.slow) for one in [*ENDLESS, "kill -9 $PPID"])],
)
async def test_base64_that_is_replaced(
    local_hf: LocalHF,
    provider: HfProvider,
    docker_image: str,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
) -> None:
    """What every command's output goes through: the code's own deed, and this host keeps nothing of it."""
    monkeypatch.setattr("swe_core.sandboxing.followed.sandbox.ATTEMPTS", 2)
    async with provider.open(SandboxSpec(image=docker_image)) as sandbox:
        done = await sandbox.exec(["sh", "-c", "echo before"])
        assert (done.exit_code, done.text) == (0, "before\n")
        write = 'mkdir -p /usr/local/bin; printf "#!/bin/sh\\n%s\\n" "$1" >/usr/local/bin/base64'
        script = f"{write}; chmod +x /usr/local/bin/base64"
        assert (await sandbox.exec(["sh", "-c", script, "sh", program])).exit_code == 0
        with anyio.fail_after(PATIENCE), pytest.raises(SandboxBroken, match="broke the sandbox"):
            await sandbox.exec(["echo", "after"])
        with anyio.fail_after(PATIENCE):
            await sandbox.kill_all()
    assert local_hf.jobs.running() == []


async def test_shell_that_is_removed(
    local_hf: LocalHF, provider: HfProvider, docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server inside cannot run it any more."""
    monkeypatch.setattr("swe_core.sandboxing.followed.sandbox.ATTEMPTS", 2)
    async with provider.open(SandboxSpec(image=docker_image)) as sandbox:
        assert (await sandbox.exec(["rm", "/bin/sh"])).exit_code == 0
        for use in (lambda: sandbox.exec(["true"]), sandbox.kill_all):
            with anyio.fail_after(PATIENCE), pytest.raises(SandboxBroken, match=r"its shell \(sh\)"):
                await use()
    assert local_hf.jobs.running() == []
