"""Checks of what Kubernetes sandboxes need."""

from __future__ import annotations

import asyncio

from swe_core.api.checks import Check, Finding
from swe_core.errors import SweError
from swe_core.system.plural import counted


def cluster() -> Finding:
    """Check that the cluster answers, has agent-sandbox and lets this user list its sandboxes."""
    from swe_sandbox_k8s.cluster import connected
    from swe_sandbox_k8s.config import K8sConfig
    from swe_sandbox_k8s.provider import K8sProvider

    async def look() -> str:
        config = K8sConfig()
        found = await K8sProvider(config).list()
        async with connected(config) as api:
            return f"{api.host}, namespace {api.namespace!r}, {counted(len(found), 'sandbox', 'sandboxes')}"

    try:
        return Finding("ok", asyncio.run(look()))
    except SweError as error:
        return Finding.missing(str(error))


CHECKS = (Check("Kubernetes cluster", "--sandbox k8s", cluster),)
