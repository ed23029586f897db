"""An open interception server, and engines that try again at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import ModuleType

import pytest
import tenacity

from swe_core.builtin.openai import engine as engine_module
from swe_core.interception.server import InterceptionServer

from .helpers import KEY


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(engine_module, "_BACKOFF", tenacity.wait_none())


@pytest.fixture
def openai() -> ModuleType:
    """The SDK, whose import takes most of a second: not at collection."""
    import openai

    return openai


@pytest.fixture
async def server() -> AsyncIterator[InterceptionServer]:
    async with InterceptionServer() as server:
        yield server
