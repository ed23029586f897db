"""A one-file plugin of agents that do what agents do on bad days. Loaded with -p by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from swe_core import AgentContext, AgentSpec, Component, hookimpl

FIX = "echo '# changed' >> $(git ls-files '*.py' | head -1)"

ORPHAN = "sleep 0.2; while :; do grep -qs git /proc/[0-9]*/comm && echo late >>README.md; done"

SCRIPTS = {
    "crash": "echo about to fail >&2; exit 3",
    "hang": f"echo waiting; {FIX}; setsid sleep 1000 & sleep 1000",
    "flood": "head -c 100000000 /dev/zero | tr '\\0' 'x'; echo; echo end",
    "fill": "for where in . /tmp; do dd if=/dev/zero of=$where/big bs=1M 2>/dev/null; done; true",
    # What it does itself needs no further process, which it would not get, and does not compete for a core.
    "fork": "b() { b | b & }; (b) 2>/dev/null & exec sleep 2",
    "delete": "rm -rf .git * ; true",
    "commit": f"{FIX}; git -c user.name=x -c user.email=x@example.invalid commit -qam sneaky",
    "unshell": "rm -f $(command -v sh dash bash) /bin/sh /bin/dash /bin/bash; true",
    "silent": "true",
    # Outlives its agent, and writes as soon as it sees git at work again: that is the export.
    "orphan": f"{FIX}; setsid sh -c '{ORPHAN}' >/dev/null 2>&1 & sleep 0.5",
}


PROBE = """
import json, os, socket, urllib.request
report = {}
headers = {"Authorization": "Bearer " + os.environ["KEY"]}
request = urllib.request.Request(os.environ["BASE"] + "/models", headers=headers)
report["endpoint"] = urllib.request.urlopen(request, timeout=5).status
for address in os.environ["ADDRESSES"].split(","):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        report[address] = True
    except OSError:
        report[address] = False
print(json.dumps(report))
"""


class Probe(AgentSpec):
    """Asks its endpoint for the models, then tries to reach the addresses in SWE_TEST_PROBE (of the host)."""

    name = "probe"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-c", PROBE]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key, "ADDRESSES": os.environ["SWE_TEST_PROBE"]}


class Absent(AgentSpec):
    """Is not installed in the sandbox."""

    name = "absent"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["no-such-agent", "--print"]


class Leaky(AgentSpec):
    """Prints its own token on every channel it has, then crashes."""

    name = "leaky"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["sh", "-c", "echo token=$KEY; echo token=$KEY >&2; exit 3"]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"KEY": ctx.api_key}


class Misbehaving(AgentSpec):
    """Runs one shell script instead of an agent; only `silent` pretends to talk to a model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dialect: Literal["chat"] | None = "chat" if name == "silent" else None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["sh", "-c", SCRIPTS[self.name]]


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    kinds: Any = (Probe, Leaky, Absent)
    scripts = [Component(name, lambda _config, name=name: Misbehaving(name)) for name in SCRIPTS]
    return [*scripts, *(Component(kind.name, lambda _config, kind=kind: kind()) for kind in kinds)]
