"""A one-file plugin for the tests: agents that talk, wait or fail, and a grader that reads what one said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swe_core import AgentContext, AgentSpec, ChatRequest, Component, hookimpl
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task

TALK = """
import json, os, urllib.request
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
def ask(messages):
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(os.environ["BASE"] + "/chat/completions", body, headers)
    messages.append(json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]["message"])
main = [{"role": "user", "content": "Mend it."}]
helper = [{"role": "user", "content": "Look it up."}]
for turn in range(3):
    ask(main)
    ask(helper)
    main.append({"role": "user", "content": f"Go on, {turn}."})
    helper.append({"role": "user", "content": "More."})
open("said.txt", "w").write("done\\n")
"""
"""A conversation and a sub-agent's, in turns."""


class Script(AgentSpec):
    """Runs a script of Python."""

    def __init__(self, name: str, script: str, *, talks: bool) -> None:
        self.name = name
        self.dialect = "chat" if talks else None
        self._script = script

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-c", self._script]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key} if self.dialect else {}

    def own(self, request: ChatRequest) -> bool:
        """Return whether it is the sub-agent's."""
        return request.messages[0]["content"] == "Look it up."


class Says:
    """Grades by whether the agent left its file; no sandbox is needed for that."""

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        return Graded(grade=Grade(resolved=b"+done" in patch, reason="read"))


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    def component(name: str, script: str, talks: bool) -> Component[AgentSpec]:
        return Component(name, lambda _config: Script(name, script, talks=talks))

    return [
        component("talker", TALK, True),
        component("sleeper", "import time; time.sleep(600)", False),
        component("failing", "raise SystemExit(3)", False),
    ]


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("says", lambda config: Says())]
