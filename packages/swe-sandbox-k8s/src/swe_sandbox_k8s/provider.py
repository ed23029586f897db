"""K8sProvider: opens, destroys and reaps sandboxes in a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
from kubernetes_asyncio.client import ApiException

from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxError
from swe_core.sandboxing.background import background_task_group
from swe_core.sandboxing.followed import Archives
from swe_core.system.process_owner import LABEL, is_orphaned, process_state
from swe_sandbox_k8s.cluster import CLAIMS, POOLS, TEMPLATES, Cluster, connected
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.errors import CLIENT, status_of
from swe_sandbox_k8s.labels import owner_of
from swe_sandbox_k8s.opening import Opening
from swe_sandbox_k8s.sandbox import K8sSandbox, Unconfined
from swe_sandbox_k8s.templates import Templates, remove

_NOTES = (
    "A Kubernetes sandbox limits memory, processors and disk by its pod: it dies where it exceeds memory or "
    "disk, and pids is not limited.",
    "In a Kubernetes sandbox commands run as the image's user, without capabilities where the image has "
    "setpriv(1): where it has none, root inside can change the agent's own files under /opt/swe.",
)
_KERNEL_NOTE = (
    "Kubernetes sandboxes share the kernel of their node unless the cluster's default runtime is another: "
    "set sandbox.k8s.runtime_class to a RuntimeClass of gVisor or Kata."
)
_NETWORK_NOTE = (
    "Nobody has checked that the cluster cuts Kubernetes sandboxes off from the network: "
    "sandbox.k8s.internet accepts it."
)
_NOT_FOUND = 404


class K8sProvider:
    """One pod per sandbox. It connects to the cluster at the first use."""

    def __init__(self, config: K8sConfig) -> None:
        self._config = config
        self._archives = Archives()
        self._places = anyio.Semaphore(config.max_concurrent)
        self._templates = Templates(config)
        self._connecting = anyio.Lock()
        self._users = 0
        self._connection = AsyncExitStack()
        self._connected: Cluster | None = None
        self._refused: str | None = None

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[Cluster]:
        """Provide the connection to the cluster, which is open while anything uses it.

        Raises:
            ConfigError: There is no usable kubeconfig.
        """
        self._users += 1
        try:
            async with self._connecting:
                if self._connected is None:
                    self._connected = await self._connection.enter_async_context(connected(self._config))
            yield self._connected
        finally:
            self._users -= 1
            with anyio.CancelScope(shield=True):
                async with self._connecting:
                    if not self._users and self._connected is not None:
                        self._connected = None
                        await self._connection.aclose()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`."""
        if spec.image is None:
            raise SandboxError(
                "the k8s sandbox needs an image and the task names none: give the task an 'image', or use "
                "another sandbox"
            )
        self.check_supported(spec)
        async with self._places, self._cluster() as cluster, AsyncExitStack() as stack:
            with ExitStack() as files:  # before a pod waits for them
                made = await anyio.to_thread.run_sync(files.enter_context, self._archives.of(spec))
                try:
                    name = await stack.enter_async_context(self._templates.use(cluster, spec))
                except CLIENT as error:
                    raise cluster.explained(error, f"open a sandbox of the image {spec.image!r}") from error
                opening = Opening(cluster, spec, self._config, name)
                claim, pod = await stack.enter_async_context(opening.run())
                tasks = await stack.enter_async_context(background_task_group())
                sandbox = K8sSandbox(cluster, claim, pod, spec, tasks)
                await sandbox.prepare(made)
                if spec.network != "full" and not self._config.internet:
                    await self._confine(sandbox)
            yield sandbox

    async def _confine(self, sandbox: K8sSandbox) -> None:
        try:
            await sandbox.confine()
        except Unconfined as error:
            self._refused = str(error)
            raise

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`. Known once a sandbox found the network open."""
        if self._refused is not None and spec.network != "full":
            raise PolicyRefused(self._refused)

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        kernel = () if self._config.runtime_class else (_KERNEL_NOTE,)
        return (*_NOTES, *kernel, *((_NETWORK_NOTE,) if self._config.internet else ()))

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        async with self._cluster() as cluster:
            images = {
                template["metadata"]["name"]: _image(template)
                for template, _ in await _owned(cluster, TEMPLATES)
            }
            return [_entry(claim, owner, images) for claim, owner in await _owned(cluster, CLAIMS)]

    async def reap(self) -> int:
        """See `SandboxProvider.reap`. As a run begins with it, it also checks the namespace."""
        async with self._cluster() as cluster:
            await _check_namespace(cluster)
            claims = await _orphans(cluster, CLAIMS)
            templates = {*await _orphans(cluster, TEMPLATES), *await _orphans(cluster, POOLS)}
            async with anyio.create_task_group() as removals:
                for name in claims:
                    removals.start_soon(cluster.delete, CLAIMS, name)
            async with anyio.create_task_group() as removals:
                for name in templates:
                    removals.start_soon(remove, cluster, name)
            return len(claims)


async def _check_namespace(cluster: Cluster) -> None:
    """Check that the namespace exists: lists of what it has are empty where it does not.

    Raises:
        SandboxError: It does not, or the cluster does not answer.
    """
    try:
        await cluster.call(cluster.core.read_namespace, cluster.namespace, _request_timeout=30.0)
    except ApiException as error:
        if status_of(error) == _NOT_FOUND:
            raise cluster.explained(error, "use Kubernetes sandboxes") from error
        # A user may do everything in a namespace and not read it; what follows tells whether there is more.
    except CLIENT as error:
        raise cluster.explained(error, "use Kubernetes sandboxes") from error


async def _owned(cluster: Cluster, plural: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return the objects that swe-core created, with their owners."""
    try:
        found = await cluster.list(plural, LABEL)
    except CLIENT as error:
        raise cluster.explained(error, "list the sandboxes") from error
    return [(thing, owner) for thing in found if (owner := owner_of(thing)) is not None]


async def _orphans(cluster: Cluster, plural: str) -> list[str]:
    return [thing["metadata"]["name"] for thing, owner in await _owned(cluster, plural) if is_orphaned(owner)]


def _image(template: Mapping[str, Any]) -> str:
    return str(template["spec"]["podTemplate"]["spec"]["containers"][0]["image"])


def _entry(claim: Mapping[str, Any], owner: str, images: Mapping[str, str]) -> SandboxEntry:
    metadata, status = claim["metadata"], claim.get("status") or {}
    ready = [one for one in status.get("conditions", ()) if one.get("type") == "Ready"]
    return SandboxEntry(
        id=metadata["name"],
        owner=process_state(owner),
        image=images.get(claim["spec"]["warmPoolRef"]["name"]),
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        details={
            "namespace": metadata["namespace"],
            "pod": str((status.get("sandbox") or {}).get("name", "")),
            "state": str(ready[0].get("reason")) if ready else "new",
        },
    )
