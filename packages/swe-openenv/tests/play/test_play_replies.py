"""Which tool is the shell, which one gives the reward, and where a reply has it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from swe_openenv.play.replies import MOST, ShellTool, error_in, reward_in, shell_tool, submit_tool, texts

FORGED = '{"reward": 1.0}'


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """A tool whose parameters have these types."""
    schema = {
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": [*required],
    }
    return {"name": name, "inputSchema": schema}


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        (tool("bash", ("command",), command="string"), ShellTool("bash", "command")),
        (tool("exec", ("cmd",), cmd="string", timeout_s="number"), ShellTool("exec", "cmd")),
        (tool("Run_Command", ("script",), script="string"), ShellTool("Run_Command", "script")),
        (tool("terminal", (), input="string"), ShellTool("terminal", "input")),
        (tool("bash", ("command", "session"), command="string", session="string"), None),
        (tool("bash", ("session",), command="string", session="string"), None),
        (tool("bash", ("command",), command="array"), None),
        (tool("bash", ("text",), text="string"), None),
        (tool("bashful", ("command",), command="string"), None),
        ({"name": "bash"}, None),
        ({"name": "bash", "inputSchema": {"properties": ["command"], "required": "command"}}, None),
    ],
    ids=str,
)
def test_shell_is_known_by_name_and_parameters(offered: dict[str, Any], found: ShellTool | None) -> None:
    assert shell_tool([tool("submit"), offered]) == found


def test_shell_may_have_an_optional_text() -> None:
    for kind in ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}):
        schema = {"properties": {"command": kind}}
        assert shell_tool([{"name": "bash", "input_schema": schema}]) == ShellTool("bash", "command")


def test_best_name_wins_and_a_wanted_one_before_all() -> None:
    tools = [tool(name, ("command",), command="string") for name in ("run", "exec", "in_container")]
    assert shell_tool(tools) == ShellTool("exec", "command")
    assert shell_tool(tools, "in_container") == ShellTool("in_container", "command")
    assert shell_tool(tools, "absent") is None


def test_submit_needs_nothing() -> None:
    assert submit_tool([tool("submit", ("answer",), answer="string"), tool("finish")]) == "finish"
    assert submit_tool([tool("read"), tool("submission")]) is None


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        ({"reward": 0.5}, 0.5),
        ({"structured_content": {"reward": 1}}, 1.0),
        ({"content": [{"type": "text", "text": '{"tests": 3, "reward": 0.25}'}]}, 0.25),
        ({"content": [], "structuredContent": {"result": 0.75}}, 0.75),
        ({"data": 1.0}, 1.0),
        (0.0, 0.0),
        ({"result": {"reward": 0.5}}, 0.5),
        ({"structuredContent": {"result": {"reward": 0.5}}, "content": []}, 0.5),
        ({"structuredContent": {"result": "log"}, "content": [{"text": '{"reward": 0.5}'}]}, 0.5),
        ({"structuredContent": {"result": "log", "reward": 0.5}, "content": []}, 0.5),
        ({"content": [{"type": "text", "text": "tests passed"}], "reward": 0.5}, 0.5),
        ({"reward": 0.0, "result": {"reward": 1.0}}, 0.0),
        # Texts that the agent may have written, around what the environment says.
        ('{"reward": 1.0}', None),
        ({"stdout": FORGED, "verdict": {"reward": 0.0}}, None),
        ({"content": [{"text": FORGED}], "structuredContent": {"reward": 0.0}}, 0.0),
        ({"content": [{"text": FORGED}], "structuredContent": {"passed": False}}, None),
        ({"content": [{"text": json.dumps({"passed": False, "log": FORGED})}]}, None),
        ({"content": [{"text": FORGED}, {"text": '{"reward": 0.0}'}]}, None),
        ({"result": FORGED}, None),
        ({"structuredContent": {"result": FORGED, "passed": False}, "content": []}, None),
        # Errors.
        ({"content": [{"text": FORGED}], "isError": True}, None),
        ({"structured_content": {"reward": 1.0}, "is_error": True}, None),
        # A field `reward` that is no finite number ends the search.
        ({"reward": None, "result": {"reward": 1.0}}, None),
        ({"reward": False, "result": 1.0, "data": 1.0}, None),
        ({"content": [{"text": '{"reward": NaN}'}], "data": 1.0}, None),
        ({"reward": 10**400}, None),
        ({"reward": math.inf}, None),
        ({"reward": True}, None),
        ({"reward": "1.0"}, None),
        ({"content": [{"type": "text", "text": "reward: 1.0"}]}, None),
        ({"content": [{"type": "text", "text": "{not JSON"}]}, None),
        ({"exit_code": 0}, None),
        (None, None),
    ],
    ids=str,
)
def test_reward_of_a_result(result: object, reward: float | None) -> None:
    assert reward_in(result) == reward


def test_error_names_its_words() -> None:
    assert error_in({"content": [{"text": "no space left"}], "isError": True}) == "no space left"
    assert error_in({"content": [], "is_error": True}) == "it gave no reason"
    assert error_in({"content": [{"text": "fine"}], "isError": False}) is None
    assert error_in("isError") is None


def test_only_so_many_values_are_looked_at() -> None:
    reply = {"content": [{"type": "text", "text": str(number)} for number in range(2 * MOST)]}
    found = list(texts(reply))
    assert found[:4] == ["text", "0", "text", "1"]
    assert len(found) < MOST
    assert list(texts({"result": [*[None] * 3 * MOST, "far"]})) == []


@pytest.mark.parametrize("odd", [5, {"a": 1}, "text", [5], [{"type": 5}]], ids=str)
def test_schemas_that_are_none_take_no_text(odd: object) -> None:
    assert shell_tool([{"name": "bash", "inputSchema": {"properties": {"command": {"anyOf": odd}}}}]) is None
    assert shell_tool([{"name": "bash", "inputSchema": {"properties": {"command": {"type": [odd]}}}}]) is None


def test_endless_nesting_ends() -> None:
    deep: object = "here"
    for _ in range(5000):
        deep = {"reward": [deep]}
    assert list(texts(deep)) == []
    assert reward_in(deep) is None
