"""The real bundle, once per session, and an endpoint for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_agents_pi.bundle import pi_recipe
from swe_core.bundles import ensure_bundle
from swe_core.errors import AgentError

from .helpers import ScriptedLLM


@pytest.fixture(scope="session")
def pi_bundle() -> Path:
    """The real bundle; skipped only where no registry can be reached, and never in CI."""
    try:
        return ensure_bundle(pi_recipe()).path
    except AgentError as error:
        if "npm cannot fetch" not in str(error) or os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
async def llm() -> AsyncIterator[ScriptedLLM]:
    """Answers what a test tells it to."""
    async with ScriptedLLM() as llm:
        yield llm
