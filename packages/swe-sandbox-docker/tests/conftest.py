"""A provider on the engine that answers, and a look at what is left on it."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from swe_core.owner import LABEL, current_owner
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider


@pytest.fixture
def engine(docker_engine: str) -> Iterator[docker.APIClient]:
    """The engine itself, to look at what is really there."""
    client = docker.APIClient(base_url=docker_engine, version="auto")
    yield client
    client.close()


@pytest.fixture
def provider(engine: docker.APIClient) -> Iterator[DockerProvider]:
    """A provider that must leave no container behind."""
    yield DockerProvider(DockerConfig())
    mine = engine.containers(all=True, filters={"label": f"{LABEL}={current_owner()}"})
    assert mine == [], "a sandbox was left behind"
