"""Pytest fixtures for tests that need a model which samples for real.

    pytest_plugins = ["swe_testing.serving.fixtures"]  # in the root conftest.py

All workers of pytest-xdist share one vLLM server per session. It starts with the first test that requests it
and ends with the session. Where vLLM cannot run, these tests are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from swe_testing.serving.start import TokenServer, exit_message, missing, obstacle, start, stop

_HOME = pytest.StashKey[Path]()
_TESTS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Note the directory that all workers share, and the process that the server must not outlive."""
    shared = getattr(config, "workerinput", None)
    config.stash[_HOME] = Path(shared["serving_home"] if shared else tempfile.mkdtemp(prefix="swe-serving-"))
    config.stash[_TESTS] = shared["serving_tests"] if shared else os.getpid()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass both on to a worker of pytest-xdist."""
    node.workerinput["serving_home"] = str(node.config.stash[_HOME])
    node.workerinput["serving_tests"] = node.config.stash[_TESTS]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server."""
    if config.stash[_TESTS] != os.getpid():
        return
    home = config.stash[_HOME]
    with _locked(home):  # a worker may be starting it
        server = _running(home)
        if server is not None:
            stop(server.pid)
    shutil.rmtree(home)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write how long the server took to start, and its error if it has exited."""
    server = _running(config.stash[_HOME])
    if server is not None:
        terminalreporter.write_line(f"token server: vLLM started in {server.seconds:.0f} s")
        error = exit_message(server, config.stash[_HOME])
        if error is not None:
            terminalreporter.write_line(f"token server: vLLM exited before the tests ended: {error!r}")


@pytest.fixture(scope="session")
def tiny_model(request: pytest.FixtureRequest) -> Path:
    """Make a tiny random Qwen3 with its tokenizer, once per session, and return its directory."""
    if (absent := missing()) is not None:
        pytest.skip(absent)
    from swe_testing.serving.tiny_model import make_tiny_model

    home = request.config.stash[_HOME]
    model = home / "model"
    with _locked(home):
        if not model.exists():
            make_tiny_model(home / "unfinished").rename(model)
    return model


@pytest.fixture(scope="session")
def token_server(request: pytest.FixtureRequest, tiny_model: Path) -> TokenServer:
    """Serve the tiny model with vLLM; skip the test where vLLM cannot run."""
    home = request.config.stash[_HOME]
    with _locked(home):
        server = _running(home)
        if server is None:
            if (why := obstacle()) is not None:
                pytest.skip(f"vLLM cannot run here: {why}")
            server = start(tiny_model, home, request.config.stash[_TESTS])
            (home / "server.json").write_text(server.model_dump_json())
    return server


@pytest.fixture
def lent_server(token_server: TokenServer) -> Iterator[TokenServer]:
    """Lend `token_server` to a test that pauses it or loads other weights; restore it afterwards."""
    yield token_server
    own = {"method": "reload_weights", "kwargs": {"weights_path": str(token_server.directory)}}
    with httpx.Client(base_url=token_server.url, timeout=60) as client:
        for path, body in (("/resume", None), ("/collective_rpc", own), ("/reset_prefix_cache", None)):
            client.post(path, json=body).raise_for_status()


def _running(home: Path) -> TokenServer | None:
    file = home / "server.json"
    return TokenServer.model_validate_json(file.read_text()) if file.exists() else None


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
