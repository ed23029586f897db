"""Pytest fixtures for tests that need a model which samples for real.

    pytest_plugins = ["swe_testing.serving.fixtures"]  # in the root conftest.py

There is one server per session, which all workers of pytest-xdist share. It starts when the first test asks
for it and ends with the session. The terminal's summary says which server it was, and why.
`SWE_TEST_ENGINE=vllm` or `transformers` forces one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from swe_testing.serving.start import Kind, TokenServer, last_words, missing, start, stop

_HOME = pytest.StashKey[Path]()
_TESTS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """A directory that all workers share, and the process whose end is the session's."""
    shared = getattr(config, "workerinput", None)
    config.stash[_HOME] = Path(shared["serving_home"] if shared else tempfile.mkdtemp(prefix="swe-serving-"))
    config.stash[_TESTS] = shared["serving_tests"] if shared else os.getpid()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by pytest-xdist, in the process that starts the workers."""
    node.workerinput["serving_home"] = str(node.config.stash[_HOME])
    node.workerinput["serving_tests"] = node.config.stash[_TESTS]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server, however the session ended."""
    if config.stash[_TESTS] != os.getpid():
        return
    home = config.stash[_HOME]
    with _locked(home):  # a worker may be starting it
        server = _running(home)
        if server is not None:
            stop(server.pid)
    shutil.rmtree(home)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which server the tests had."""
    server = _running(config.stash[_HOME])
    if server is not None:
        name = {"vllm": "vLLM", "transformers": "a Hugging Face model that stands in for vLLM"}[server.kind]
        terminalreporter.write_line(f"token server: {name}, {server.seconds:.0f} s to start: {server.why}")
        said = last_words(server, config.stash[_HOME])
        if said is not None:
            terminalreporter.write_line(f"token server: it ended before the tests did, and said {said!r}")


@pytest.fixture(scope="session")
def tiny_model(request: pytest.FixtureRequest) -> Path:
    """The directory of a tiny random Qwen3 with its tokenizer, made once per session."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    from swe_testing.serving.tiny_model import make_tiny_model

    home = request.config.stash[_HOME]
    model = home / "model"
    with _locked(home):
        if not model.exists():
            make_tiny_model(home / "unfinished").rename(model)
    return model


@pytest.fixture(scope="session")
def token_server(request: pytest.FixtureRequest, tiny_model: Path) -> TokenServer:
    """A server of the tiny model: real vLLM where the machine runs it, else a stand-in that samples too."""
    forced = os.environ.get("SWE_TEST_ENGINE") or None
    if forced not in (None, "vllm", "transformers"):
        pytest.fail(f"SWE_TEST_ENGINE is {forced!r}: it may be 'vllm' or 'transformers'")
    home = request.config.stash[_HOME]
    with _locked(home):
        server = _running(home)
        if server is None:
            server = start(tiny_model, home, request.config.stash[_TESTS], cast("Kind | None", forced))
            (home / "server.json").write_text(server.model_dump_json())
    return server


@pytest.fixture
def lent_server(token_server: TokenServer) -> Iterator[TokenServer]:
    """`token_server`, for a test that gives it other weights: its own are put back."""
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
