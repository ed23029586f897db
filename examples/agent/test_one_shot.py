"""The agent in a real sandbox, with a script in place of the model."""

from __future__ import annotations

import pytest

from swe_agents_one_shot import OneShot
from swe_core import Sandbox
from swe_testing.agents import ScriptedModel, builtin, run_once

PATCH = "--- /dev/null\n+++ b/made.txt\n@@ -0,0 +1 @@\n+hi\n"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_diff_of_the_reply_is_applied() -> None:
    made: list[bytes] = []

    async def look(sandbox: Sandbox) -> None:
        made.append(await sandbox.read(f"{sandbox.spec.workdir}/made.txt"))

    model = ScriptedModel(f"Here it is.\n```diff\n{PATCH}```")
    provider = builtin("sandbox", "local", unisolated=True)
    trial = await run_once(OneShot(), model, provider=provider, after=look)
    assert (trial.failure, made, len(trial.turns)) == (None, [b"hi\n"], 1)
