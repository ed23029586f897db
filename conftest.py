"""Shared by the tests of every package: the event loop they run on."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """aiohttp's server needs asyncio, so asyncio is what everything is tested on."""
    return "asyncio"
