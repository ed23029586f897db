"""The engine, as what a real agent calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core import Sandbox
from swe_engine_script import Script, ScriptConfig
from swe_testing.agents import builtin, run_once


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_commands_of_the_file_are_played(tmp_path: Path) -> None:
    (tmp_path / "commands.sh").write_text("echo hi > made.txt\n")
    made: list[bytes] = []

    async def look(sandbox: Sandbox) -> None:
        made.append(await sandbox.read(f"{sandbox.spec.workdir}/made.txt"))

    engine = Script(ScriptConfig(file=tmp_path / "commands.sh"))
    provider = builtin("sandbox", "local", unisolated=True)
    trial = await run_once(builtin("agent", "mini"), engine, provider=provider, after=look)
    assert (trial.failure, made, len(trial.turns)) == (None, [b"hi\n"], 2)
