"""aider: its settings, its output, and the real one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swe_agents.aider import Aider, AiderConfig
from swe_core.api.sandbox import Sandbox
from swe_testing.agents import ScriptedModel, Trial

from .python_agents import settings_of
from .trials import parsed, trial_of

FILES = {"pkg/a.py": b"def f():\n    return 1\n", "pkg/b.py": b"def g():\n    return 1\n"}
WHOLE = "pkg/a.py\n```\ndef f():\n    return 2\n```\n"
DIFF = "pkg/a.py\n```python\n<<<<<<< SEARCH\n    return 1\n=======\n    return 2\n>>>>>>> REPLACE\n```\n"


def test_aider_parses_its_own_output() -> None:
    refused = "litellm.BadRequestError: OpenAIException - the rollout is over"
    assert [event for event in parsed(Aider()) if not event[1].startswith("Tokens: ")] == [
        ("text", "The file pkg/a.py needs a change.", None, False),
        ("info", "pkg/a.py", None, False),
        ("reasoning", "Hm.", None, False),
        ("text", "pkg/a.py\n```\ndef f():\n    return 2\n```\n", None, False),
        ("info", "Applied edit to pkg/a.py", None, False),
        ("reasoning", "Hm.", None, False),
        ("text", "The file pkg/a.py needs a change.", None, False),
        ("info", "pkg/a.py", None, False),
        ("error", refused, None, True),
        ("info", refused, None, False),
    ]


def test_aiders_own_limits_are_off() -> None:
    told = settings_of(Aider())["settings"]
    assert (told["model"], told["edit_format"], told["retry_seconds"]) == (
        "openai/org/Model-8B:high",
        "whole",
        0,
    )
    assert told["params"]["timeout"] == 86_400
    assert min(told["history_tokens"], told["metadata"]["max_input_tokens"]) >= 10**9
    assert told["cache"].startswith("/tmp/swe-home/")


@pytest.mark.parametrize("wrong", [{"edit_format": "architect"}, {"reflections": -1}, {"map_tokens": -1}])
def test_aiders_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        AiderConfig.model_validate(wrong)


async def edited(model: ScriptedModel, config: AiderConfig | None = None, **more: Any) -> tuple[Trial, bytes]:
    """Run aider, and return what it did and the file `pkg/a.py`."""
    found: list[bytes] = []

    async def after(sandbox: Sandbox) -> None:
        found.append(await sandbox.read("/testbed/pkg/a.py"))

    trial = await trial_of(Aider(config), model, files=FILES, after=after, **more)
    return trial, found[0]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize(("edit_format", "edit"), [("whole", WHOLE), ("diff", DIFF)])
async def test_real_aider_asks_for_a_file_and_edits_it(edit_format: Any, edit: str) -> None:
    model = ScriptedModel("I need pkg/a.py.", edit)
    trial, content = await edited(model, AiderConfig(edit_format=edit_format))
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 0, 2)
    assert content == b"def f():\n    return 2\n"
    assert trial.texts("text") == ["I need pkg/a.py.", edit]
    first, second = (str(request.messages) for request in model.asked)
    assert "│def g():" in first, "the map of the repository"
    assert "added these files to the chat" in second
    assert not any(request.tools for request in model.asked)


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_aider_adds_the_files_that_the_task_names_and_follows_no_address() -> None:
    model = ScriptedModel(WHOLE)
    trial, content = await edited(model, problem="/clear See http://127.0.0.1:1/x and fix pkg/a.py.")
    assert (trial.failure, len(trial.turns)) == (None, 1)
    assert content == b"def f():\n    return 2\n"


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_aider_repeats_a_failed_edit_beyond_its_own_limit() -> None:
    wrong = DIFF.replace("return 1", "return 7")
    trial, content = await edited(
        ScriptedModel(f"pkg/a.py {wrong}", *[wrong] * 4, DIFF), AiderConfig(edit_format="diff")
    )
    assert (trial.failure, len(trial.turns)) == (None, 6)
    assert content == b"def f():\n    return 2\n"


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_aider_leaves_nothing_but_its_edit_in_the_repository() -> None:
    states: list[str] = []

    async def after(sandbox: Sandbox) -> None:
        states.append((await sandbox.exec(["git", "status", "--short", "--ignored"])).text)

    trial = await trial_of(Aider(), ScriptedModel("pkg/a.py", WHOLE), files=FILES, after=after)
    assert trial.failure is None
    assert states == [" M pkg/a.py\n"]
