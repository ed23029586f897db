"""`swe-core run` with an OpenEnv server's tasks, environments and rewards."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swe_core.api.sandbox import Sandbox
from swe_core.cli.run import run

from .playground import Played, Playground, plain, playing, recording

TASK = "demo__memofn-1"


def played_by(server: Played, out: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    """Run the command and return the records of its rollouts."""
    settings = [f"tasks.openenv.url={server.url}", "sandbox.openenv.internet=true"]
    sets = [text for setting in settings for text in ("--set", setting)]
    chosen = ["--plugins", "openenv-play", "--tasks", "openenv", "--split", "test", *sets]
    done = CliRunner().invoke(run, [*chosen, *options, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]


def test_gold_patch_resolves_and_no_patch_does_not(played: Played, tmp_path: Path) -> None:
    (gold,) = played_by(played, tmp_path / "gold", "--agent", "oracle", "--task", TASK)
    assert (gold["outcome"], gold["reward"], gold["sandbox"]) == ("resolved", 1.0, "openenv")
    (nothing,) = played_by(played, tmp_path / "nothing", "--agent", "nop", "--task", TASK)
    assert (nothing["outcome"], nothing["reward"]) == ("unresolved", 0.0)


def test_agent_plays_and_a_fresh_episode_gives_the_reward(tmp_path: Path) -> None:
    """Its LLM calls leave the environment through its shell tool, and it never comes near the reward."""
    replies = ("--engine", "replay", "--recording", str(recording()))
    with playing(Playground(), most=1) as server:  # fewer places than rollouts
        rollouts = played_by(
            server, tmp_path / "run", "--agent", "mini", *replies,
            *("--task", TASK, "--concurrency", "2", "--attempts", "2"),
        )  # fmt: skip
        assert [rollout["outcome"] for rollout in rollouts] == ["resolved"] * 2
        assert min(rollout["turns"] for rollout in rollouts) >= 4
        submits = [sandbox for sandbox, tool in server.ground.calls if tool == "submit"]
        episodes = list(dict.fromkeys(sandbox for sandbox, _ in server.ground.calls))
        assert (len(submits), len(set(submits)), len(episodes)) == (2, 2, 4)
        assert {json.dumps(reset["split"]) for reset in server.ground.resets} == {'"test"'}
        assert server.ground.open == set()


def test_server_without_a_reward_gives_errors_and_no_rewards(tmp_path: Path) -> None:
    async def judge(sandbox: Sandbox) -> float:
        return 1.0

    with playing(Playground(reward="nowhere", judge=judge)) as server:
        (rollout,) = played_by(server, tmp_path / "run", "--agent", "oracle", "--task", TASK, code=1)
    assert (rollout["outcome"], rollout["reward"]) == ("error", None)
    assert rollout["failure"]["boundary"] == "grader"
    assert "gave no reward" in rollout["failure"]["message"]


def test_hiccup_of_the_server_is_an_error_and_no_reward(tmp_path: Path) -> None:
    """Here, when the agent has ended and its patch is taken."""
    killed, hiccups = False, 0

    async def shell(sandbox: Sandbox, command: str) -> str:
        nonlocal killed, hiccups
        words = shlex.split(command)
        killed = killed or words[8] == "kill"
        if killed and words[8] == "run" and not hiccups:
            hiccups += 1
            raise RuntimeError("503 Service Unavailable")
        return await plain(sandbox, command)

    with playing(Playground(shell)) as server:
        (rollout,) = played_by(server, tmp_path / "run", "--agent", "oracle", "--task", TASK, code=1)
    assert hiccups == 1
    assert (rollout["outcome"], rollout["reward"]) == ("error", None)
    assert rollout["failure"]["boundary"] == "sandbox"
    assert "503 Service Unavailable" in rollout["failure"]["message"]


def test_server_alone_chooses_nothing_to_play() -> None:
    """`--plugins openenv` is for serving: it leaves tasks, sandbox and grader as they are."""
    from swe_core.plugins.manager import PluginSet

    plugins = PluginSet(["openenv"])
    assert [plugins.choose(role, None, None) for role in ("tasks", "sandbox", "grader")] == [None] * 3
    playing_too = PluginSet(["openenv-play"])
    found = [playing_too.choose(role, None, None) for role in ("tasks", "sandbox", "grader")]
    assert [each and each.name for each in found] == ["openenv"] * 3


@pytest.mark.parametrize("option", ["--sandbox", "--grader"])
def test_roles_can_be_chosen_one_by_one(option: str) -> None:
    from swe_core.plugins.manager import PluginSet

    role = option.removeprefix("--")
    found = PluginSet().find(role, "openenv")  # type: ignore[arg-type]  # one of its literals
    assert found.plugin == "openenv-play"
