"""A shell command as a call of the tool that an agent has for it."""

from __future__ import annotations

import json
from typing import Any

from swe_core.api.shell_call import shell_call


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required or [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
EDIT = tool("edit", path=TEXT, text=TEXT)


def test_shell_call_fits_the_tool() -> None:
    for offered, arguments in (
        (tool("bash", command=TEXT), {"command": "ls"}),
        (tool("exec_command", cmd=TEXT), {"cmd": "ls"}),
        (tool("shell", command={"type": "array", "items": TEXT}), {"command": ["bash", "-lc", "ls"]}),
        (
            tool(
                "terminal",
                ["command", "risk", "back", "wait"],
                command=TEXT,
                back={"type": "boolean"},
                risk={"type": "string", "enum": ["LOW", "HIGH"]},
                wait={"type": "integer", "minimum": 5},
            ),
            {"command": "ls", "risk": "LOW", "back": False, "wait": 5},
        ),
    ):
        found = shell_call([EDIT, offered], "ls")
        assert found is not None
        assert found[0] == offered["function"]["name"]
        assert json.loads(found[1]) == arguments


def test_shell_call_prefers_the_most_telling_name() -> None:
    offered = [tool("run_workflow", command=TEXT), tool("Bash", command=TEXT)]
    assert shell_call(offered, "ls") == ("Bash", '{"command":"ls"}')


def test_shell_call_is_none_without_a_shell_tool() -> None:
    for tools in (None, [], [EDIT], [{"type": "web_search"}], [tool("note", command=TEXT)]):
        assert shell_call(tools, "ls") is None
