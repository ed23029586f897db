"""A provider on the engine that answers, and a look at what is left on it."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox import ESSENTIAL
from swe_testing.sandbox.base import SandboxSuite

from .helpers import containers_of_this_process

ESSENTIAL_ELSEWHERE = {"test_assets", "test_reach"}
"""Of an engine that shares no files: what differs there."""


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark what is slow of a suite that is not written here."""
    essential = ESSENTIAL_ELSEWHERE if "test_docker_elsewhere" in item.nodeid else ESSENTIAL
    if issubclass(item.cls or object, SandboxSuite) and item.name not in essential:
        item.add_marker(pytest.mark.slow)


@pytest.fixture
def engine(docker_engine: str) -> Iterator[docker.APIClient]:
    """The engine itself, to look at what is really there."""
    client = docker.APIClient(base_url=docker_engine, version="auto")
    yield client
    client.close()


@pytest.fixture
def spec(docker_image: str) -> SandboxSpec:
    """A small sandbox of the test image."""
    return SandboxSpec(image=docker_image, memory_mb=512, pids=128)


@pytest.fixture
def provider(engine: docker.APIClient) -> Iterator[DockerProvider]:
    """A provider that must leave no container behind."""
    yield DockerProvider(DockerConfig())
    assert containers_of_this_process(engine) == [], "a sandbox was left behind"
