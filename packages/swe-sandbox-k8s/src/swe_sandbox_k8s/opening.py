"""Open a sandbox: claim it, and wait until its pod is ready or says why it cannot be."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from k8s_agent_sandbox.exceptions import (
    SandboxClaimFailedError,
    SandboxTemplateNotFoundError,
    SandboxWarmPoolNotFoundError,
)
from k8s_agent_sandbox.exceptions import SandboxError as ClientSandboxError
from kubernetes_asyncio.client import V1Pod

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import ImageNotFound, SandboxError
from swe_core.system.process_owner import current_owner
from swe_sandbox_k8s.cluster import CLAIMS, Cluster
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.errors import CLIENT, is_transient, only_error, said_by
from swe_sandbox_k8s.labels import annotations_of, labels_of, new_name
from swe_sandbox_k8s.pods import image_problem, obstacle

_LOOK = 2.0
"""Seconds between two looks at a pod that is not ready."""
_RETRY = 0.5
_LATE = 1.0
_NOT_SEEN = (SandboxTemplateNotFoundError, SandboxWarmPoolNotFoundError)
"""The controller may see a claim before the template and pool that were created just before it."""


@dataclass(slots=True)
class Opening:
    """One sandbox that opens.

    Args:
        pool: The warm pool that it is claimed from.
    """

    cluster: Cluster
    spec: SandboxSpec
    config: K8sConfig
    pool: str

    @asynccontextmanager
    async def run(self) -> AsyncIterator[tuple[str, V1Pod]]:
        """Yield the claim's name and its pod. Leaving the context deletes the claim.

        Raises:
            ImageNotFound: The image cannot be pulled.
            SandboxError: The pod is not ready in time, or cannot be.
        """
        name = new_name()
        pod: V1Pod | None = None
        try:
            pod = await self._pod(name)
            yield name, pod
        finally:
            with anyio.CancelScope(shield=True):
                await self.cluster.delete(CLAIMS, name)
                if pod is None:  # an interrupted request may create the claim only now
                    await anyio.sleep(_LATE)
                    await self.cluster.delete(CLAIMS, name)

    async def _pod(self, name: str) -> V1Pod:
        doing = f"open a sandbox of the image {self.spec.image!r}"
        try:
            with anyio.fail_after(self.config.start_timeout), only_error():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch_image, name)
                    pod = await self._ready(name)
                    tasks.cancel_scope.cancel()
            return pod
        except TimeoutError:
            said = await self._obstacle(name) or "the cluster gives no reason"
            remedy = "raise sandbox.k8s.start_timeout, or request less"
            if "exceeded quota" in said:
                remedy = "raise the quota, or lower sandbox.k8s.max_concurrent or [resources]"
            raise SandboxError(
                f"cannot {doing}: it was not ready within {self.config.start_timeout:g} s ({said}); {remedy}"
            ) from None
        except SandboxClaimFailedError as error:
            why = await self._obstacle(name) or said_by(error)
            raise SandboxError(f"cannot {doing}: {why}; correct what the cluster names") from error
        except ClientSandboxError as error:
            raise SandboxError(f"cannot {doing}: {said_by(error)}; the rollout may be tried again") from error
        except CLIENT as error:
            raise self.cluster.explained(error, doing) from error

    async def _ready(self, name: str) -> V1Pod:
        """Claim a sandbox, and return its pod once it is ready. A repeated claim takes what exists."""
        client = self.cluster.sandbox_client()
        while True:
            try:
                sandbox = await client.create_sandbox(
                    self.pool,
                    self.cluster.namespace,
                    math.ceil(self.config.start_timeout),
                    labels_of(self.spec.labels, current_owner()),
                    claim_name=name,
                    adopt_existing=True,
                    shutdown_after_seconds=math.ceil(self.config.lifetime),
                    pod_annotations=annotations_of(current_owner()),
                )
                pod = await self.cluster.pod(await sandbox.get_pod_name())
                await sandbox.close_connection()
                if pod is not None:
                    return pod
            except _NOT_SEEN:
                pass
            except Exception as error:  # two clients raise errors of their own
                if not is_transient(error):
                    raise
            await anyio.sleep(_RETRY)

    async def _watch_image(self, name: str) -> None:
        while True:
            await anyio.sleep(_LOOK)
            try:
                _, pod = await self._look(name)
            except CLIENT:
                continue  # the claim's own watch reports it
            problem = None if pod is None else image_problem(pod)
            if problem is not None:
                raise ImageNotFound(
                    f"cannot open a sandbox of the image {self.spec.image!r}: the cluster cannot pull it "
                    f"({problem}); correct its name, or give the namespace's service account a pull secret"
                )

    async def _obstacle(self, name: str) -> str | None:
        """Return why a claim is not ready, in the cluster's words."""
        try:
            return obstacle(*await self._look(name))
        except CLIENT as error:
            return f"the API server does not answer: {said_by(error)}"

    async def _look(self, name: str) -> tuple[Mapping[str, Any] | None, V1Pod | None]:
        """Return a claim and its pod. A pod that was not warm has the claim's name."""
        claim = await self.cluster.claim(name)
        status = (claim or {}).get("status") or {}
        return claim, await self.cluster.pod((status.get("sandbox") or {}).get("name") or name)
