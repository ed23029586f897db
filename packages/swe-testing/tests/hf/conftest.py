"""What the tests of the local HF share: one in the test's own event loop, and a sandbox of a threaded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from swe_testing.hf import LocalHF


@pytest.fixture
async def hf() -> AsyncIterator[LocalHF]:
    """One that no client in this process is pointed to."""
    async with LocalHF() as server:
        yield server


@pytest.fixture
def sandbox(threaded_hf: LocalHF) -> Iterator[object]:
    """A dedicated sandbox."""
    from huggingface_hub import Sandbox

    with Sandbox.create(start_timeout=60) as sandbox:
        yield sandbox
    sandbox.close()  # where it could not be killed any more
