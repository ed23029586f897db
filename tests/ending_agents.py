"""A one-file plugin of agents that end, or do not, in their own ways. Loaded with -p by the tests."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import BaseModel

from swe_core import AgentContext, AgentSpec, Component, HostTool, hookimpl

PRELUDE = """
import json, os, time, urllib.request
def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))
def ask(text):
    body = {"messages": [{"role": "user", "content": text}]}
    return post(os.environ["BASE"] + "/chat/completions", body)["choices"][0]
open("changed.txt", "w").write("changed")
"""
SCRIPTS = {
    "submit": """
ask("hello")
print(post(os.environ["TOOLS"] + "/look", {"where": "metrics"})["content"], flush=True)
post(os.environ["EXIT"], {})
time.sleep(1000)
""",
    "insist": """
number = 0
while True:
    number += 1
    print(ask(str(number))["finish_reason"], flush=True)
""",
    "dawdle": 'ask("hello"); time.sleep(1000)',
}


class Where(BaseModel):
    """What the tool looks at."""

    where: str


def _look(where: str) -> str:
    """Write down what a user of the host finds in the run directory while it lives."""
    (file,) = Path(os.environ["SWE_TEST_DIR"]).glob("*/server.json")
    server = json.loads(file.read_text())
    headers = {"Authorization": f"Bearer {server['metrics_token']}"}
    with urllib.request.urlopen(urllib.request.Request(f"{server['url']}/{where}", headers=headers)) as found:
        note = {**server, "mode": file.stat().st_mode & 0o777, "found": found.read().decode()}
    Path(os.environ["SWE_TEST_DIR"], "note.json").write_text(json.dumps(note))
    return "looked"


async def look(at: Where) -> str:
    """The host tool; the server that it asks runs in this event loop."""
    return await anyio.to_thread.run_sync(_look, at.where)


class Ending(AgentSpec):
    """Runs one Python script instead of an agent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-c", PRELUDE + SCRIPTS[self.name]]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key, "TOOLS": ctx.tools_url, "EXIT": ctx.exit_url}

    def tools(self, ctx: AgentContext) -> Sequence[HostTool[Any]]:
        return [HostTool("look", "Looks.", Where, look)]


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component(name, lambda _config, name=name: Ending(name)) for name in SCRIPTS]
