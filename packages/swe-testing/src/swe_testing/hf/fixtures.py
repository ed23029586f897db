"""Pytest fixtures for tests with a Hugging Face.

    pytest_plugins = ["swe_testing.hf.fixtures"]  # in the root conftest.py

`local_hf` serves in the event loop of an async test, which calls the blocking client in threads
(`anyio.to_thread.run_sync`). `threaded_hf` serves in a thread, for tests that call the client directly.
A subprocess gets `server.environment()`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from swe_testing.hf import LocalHF


@pytest.fixture
async def local_hf(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalHF]:
    """A Hugging Face on loopback, which the `huggingface_hub` of this process uses."""
    async with LocalHF() as server:
        with client_of(server, monkeypatch):
            yield server


@pytest.fixture
def hf_portal() -> Iterator[BlockingPortal]:
    """The event loop of `threaded_hf`: `hf_portal.call(threaded_hf.jobs.kill, id)`."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def threaded_hf(hf_portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHF]:
    """The same in a thread of its own."""
    with hf_portal.wrap_async_context_manager(LocalHF()) as server, client_of(server, monkeypatch):
        yield server


@contextmanager
def client_of(server: LocalHF, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point the `huggingface_hub` of this process to `server`; skip the test where it is not installed."""
    pytest.importorskip("huggingface_hub", reason="there is no client to test with")
    from huggingface_hub import close_session, constants, hf_api

    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    # The client read these from the environment at its import.
    monkeypatch.setattr(constants, "ENDPOINT", server.origin)
    monkeypatch.setattr(hf_api.api, "endpoint", server.origin)  # used by `huggingface_hub.run_job` and others
    template = server.origin + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HOME", str(server.home))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(server.home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(server.home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    try:
        yield
    finally:
        close_session()
