"""A shell command as a call of the tool that an agent has for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swe_core.api.shell_call import shell_call


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required or [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
EDIT = tool("edit", path=TEXT, text=TEXT)


@pytest.mark.parametrize(
    ("offered", "arguments"),
    [
        (tool("bash", command=TEXT), {"command": "ls"}),
        (tool("exec_command", cmd=TEXT), {"cmd": "ls"}),
        (tool("shell", command={"type": "array", "items": TEXT}), {"command": ["bash", "-lc", "ls"]}),
        (tool("terminal", ["command", "risk", "back", "wait"], command=TEXT, back={"type": "boolean"},
              risk={"type": "string", "enum": ["LOW", "HIGH"]}, wait={"type": "integer", "minimum": 5}),
         {"command": "ls", "risk": "LOW", "back": False, "wait": 5}),
    ],
)  # fmt: skip
def test_shell_call_fits_the_tool(offered: dict[str, Any], arguments: dict[str, Any]) -> None:
    found = shell_call([EDIT, offered], "ls")
    assert found is not None
    assert found[0] == offered["function"]["name"]
    assert json.loads(found[1]) == arguments


def test_shell_call_prefers_the_most_telling_name() -> None:
    offered = [tool("run_workflow", command=TEXT), tool("Bash", command=TEXT)]
    assert shell_call(offered, "ls") == ("Bash", '{"command":"ls"}')


@pytest.mark.parametrize("tools", [None, [], [EDIT], [{"type": "web_search"}], [tool("note", command=TEXT)]])
def test_shell_call_is_none_without_a_shell_tool(tools: list[dict[str, Any]] | None) -> None:
    assert shell_call(tools, "ls") is None
