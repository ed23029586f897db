"""Pytest fixtures for tests that need containers. Public API for plugin authors.

    pytest_plugins = ["swe_sandbox_docker.testing"]  # in the root conftest.py

Without an engine, tests that use these fixtures are skipped; the skip reason names the remedy.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

IMAGE = os.environ.get("SWE_DOCKER_TEST_IMAGE", "swe-core-demo:1")
"""Image for tests, with sh, git, Python, pytest and a /testbed."""

_BUILD = Path(__file__).with_name("demo_image") / "from-debs"


@pytest.fixture(scope="session")
def docker_engine() -> str:
    """Return the address of a running engine."""
    from swe_core.errors import ConfigError, SandboxError
    from swe_sandbox_docker.address import resolve
    from swe_sandbox_docker.client import Client

    try:
        address = resolve()
        Client(address).close()
    except (ConfigError, SandboxError) as error:
        pytest.skip(str(error))
    return address.url


@pytest.fixture(scope="session")
def demo_root() -> Path:
    """Return the root of the test image as a tar, which root on Debian makes of Debian packages."""
    done = subprocess.run([_BUILD, "--tar"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def docker_image(docker_engine: str) -> str:
    """Return the name of the test image. Where it is missing, root on Debian builds it of Debian packages."""
    import docker

    client = docker.APIClient(base_url=docker_engine, version="auto")
    try:
        client.inspect_image(IMAGE)
    except docker.errors.ImageNotFound:
        remedy = f"the image {IMAGE!r} is absent: docker build -t {IMAGE} {_BUILD.parent}"
        environment = {**os.environ, "DOCKER_HOST": docker_engine}
        done = subprocess.run(
            [_BUILD, IMAGE], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            pytest.skip(f"{remedy} ({done.stderr.strip().splitlines()[-1:]})")
    finally:
        client.close()
    return IMAGE
