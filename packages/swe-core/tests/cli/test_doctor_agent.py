"""`swe-core doctor --agent`: one scripted turn, and what was seen of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swe_core.cli.doctor.command import doctor

pytestmark = pytest.mark.usefixtures("local_sandbox", "no_installed_plugins")
AGENT = '''
from swe_core import AgentSpec, Component, hookimpl

PROGRAM = """
import json, os, subprocess, sys, urllib.request
def ask(messages, **more):
    body = json.dumps({"model": "mine", "max_tokens": 9, "messages": messages, **more}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
ask([{"role": "user", "content": "Give this a title."}])
messages = [{"role": "user", "content": "work"}]
while True:
    message = ask(messages, tools=tools)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        shown = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown})
REWRITES and ask([{"role": "user", "content": "all anew"}], tools=tools)
sys.exit(CODE)
"""

class Mine(AgentSpec):
    name = "mine"

    def command(self, ctx):
        program = PROGRAM.replace("CODE", "%(code)d").replace("REWRITES", "%(rewrites)s")
        return ["python3", "-I", "-c", program]

    def env(self, ctx):
        return {"URL": ctx.base_url, "OPENAI_API_KEY": ctx.api_key}

    def auxiliary(self, request):
        return %(auxiliary)s

    def parse_event(self, line):
        return ()

@hookimpl
def swe_agents():
    return [Component("mine", lambda config: Mine())]
'''


def look(tmp_path: Path, auxiliary: str = "None", code: int = 0, rewrites: bool = False) -> dict[str, Any]:
    file = tmp_path / "mine.py"
    file.write_text(AGENT % {"auxiliary": auxiliary, "code": code, "rewrites": rewrites})
    done = CliRunner().invoke(doctor, ["-p", str(file), "--agent", "mine", "--json"])
    assert done.exit_code == 1, done.output
    return {one["name"]: (one["text"], one["remedy"]) for one in json.loads(done.output)}


def test_doctor_says_what_it_saw_of_an_agent(tmp_path: Path) -> None:
    seen = look(tmp_path)
    assert seen["dialect"] == ("chat (3)", "")
    assert seen["streaming"] == ("0 of 3 calls", "")
    assert seen["model names"] == ("mine (3)", "")
    assert seen["output limits"] == ("9 (3)", "")
    assert seen["tools"] == ("1: bash; bash runs commands", "")
    assert "1 call offers no tools" in seen["auxiliary calls"][1]
    assert seen["key"][0] == "its commands see it in OPENAI_API_KEY"
    assert "SDKs read OPENAI_API_KEY" in seen["key"][1]
    assert "transcript is empty" in seen["transcript"][1]
    assert seen["end"] == ("by itself, with exit code 0", "")


@pytest.mark.slow
def test_doctor_names_auxiliary_calls_a_rewritten_history_and_a_failure(tmp_path: Path) -> None:
    seen = look(tmp_path, auxiliary='"title" if not request.tools else None', rewrites=True, code=3)
    assert seen["auxiliary calls"] == ("title (1)", "")
    assert seen["history"][0] == "2 calls continue no earlier one"
    assert "exited with code 3" in seen["end"][1]


def test_doctor_prints_a_line_for_each_thing() -> None:
    done = CliRunner().invoke(doctor, ["--agent", "mini"])
    assert done.exit_code == 0, done.output
    assert "each call continues an earlier one" in done.output
    assert done.output.startswith("mini 1\n")
