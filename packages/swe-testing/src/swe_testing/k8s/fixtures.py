"""A pytest fixture for tests with a Kubernetes cluster.

    pytest_plugins = ["swe_testing.k8s.fixtures"]  # in the root conftest.py

`local_k8s` serves in the event loop of an async test. A subprocess gets `local_k8s.environment()`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from swe_testing.k8s import LocalK8s


@pytest.fixture
async def local_k8s(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalK8s]:
    """A cluster on loopback, to which the kubeconfig of this process leads."""
    async with LocalK8s() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield server
