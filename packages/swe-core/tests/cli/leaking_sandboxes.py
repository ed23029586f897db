"""A one-file plugin for tests: local sandboxes that fail and leak their secrets.

sandbox `leaking`   each sandbox has a token; FAILS says how many of them do not open, ENDS how reaping ends
agent `telling`     prints its sandbox's token, and changes a file; makes no LLM call
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from swe_core import AgentContext, AgentSpec, Component, Sandbox, SandboxSpec, hookimpl
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SandboxDied, SandboxError
from swe_core.system.redaction import redact

logger = logging.getLogger(__name__)
ACCOUNT = "account-token-of-the-provider"
BEGINNING = "sandbox-"
"""Begins the token of each sandbox; what follows is random."""


class Leaking(LocalProvider):
    def __init__(self) -> None:
        super().__init__(unisolated=True)
        redact(ACCOUNT)
        self._failing = int(os.environ.get("FAILS", "0"))

    def notes(self) -> Sequence[str]:
        return (f"The account's token is {ACCOUNT}.",)

    async def reap(self) -> int:
        ends = os.environ.get("ENDS", "")
        if ends == "sentence":
            raise SandboxError(f"the service does not take the token {ACCOUNT}: get another one")
        if ends == "defect of reap":
            raise KeyError(ACCOUNT)
        return 0

    def check_supported(self, spec: SandboxSpec) -> None:
        if os.environ.get("ENDS") == "defect of check_supported":
            raise KeyError(ACCOUNT)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        token = BEGINNING + secrets.token_hex(8)
        redact(token, temporary=True)
        logger.info("a sandbox with %s", token)
        env = {**spec.env, "TOKEN": token, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which saves time
        spec = spec.model_copy(update={"env": env})
        async with super().open(spec) as sandbox:
            if self._failing:
                self._failing -= 1
                raise SandboxDied(f"the sandbox with the token {token} is gone")
            sandbox.flavor = "small"
            yield sandbox


class Telling(AgentSpec):
    name = "telling"
    dialect = None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["sh", "-c", 'echo "I am in $TOKEN"; echo changed >changed.txt']


@hookimpl
def swe_sandboxes() -> Iterable[Component[Leaking]]:
    return [Component("leaking", lambda _: Leaking())]


@hookimpl
def swe_agents() -> Iterable[Component[Telling]]:
    return [Component("telling", lambda _: Telling())]
