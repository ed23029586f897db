"""A one-file plugin of agents that do what agents do on bad days. Loaded with -p by the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from swe_core import AgentContext, AgentSpec, Component, hookimpl

FIX = "echo '# changed' >> $(git ls-files '*.py' | head -1)"

SCRIPTS = {
    "crash": "echo about to fail >&2; exit 3",
    "hang": f"{FIX}; setsid sleep 1000 & sleep 1000",
    "flood": "head -c 100000000 /dev/zero | tr '\\0' 'x'; echo; echo end",
    "fill": "for where in . /tmp; do dd if=/dev/zero of=$where/big bs=1M 2>/dev/null; done; true",
    "fork": "b() { b | b & }; b; sleep 1; true",
    "delete": "rm -rf .git * ; true",
    "commit": f"{FIX}; git -c user.name=x -c user.email=x@example.invalid commit -qam sneaky",
    "silent": "true",
    "orphan": f"{FIX}; (setsid sh -c 'sleep 0.3; while :; do echo late >>README.md; sleep 1; done' &); true",
}


class Misbehaving(AgentSpec):
    """Runs one shell script instead of an agent; only `silent` pretends to talk to a model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dialect: Literal["chat"] | None = "chat" if name == "silent" else None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["sh", "-c", SCRIPTS[self.name]]


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component(name, lambda _config, name=name: Misbehaving(name)) for name in SCRIPTS]
