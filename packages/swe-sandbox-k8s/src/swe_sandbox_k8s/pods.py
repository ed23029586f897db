"""What the cluster says of a pod: why it does not start, and how it died."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes_asyncio.client import V1Pod

from swe_core.errors import SandboxDied
from swe_core.sandboxing.followed.life import Life
from swe_core.system.printable import one_line
from swe_sandbox_k8s.cluster import Cluster
from swe_sandbox_k8s.errors import CLIENT, is_transient

_ABSENT = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
"""Reasons for which a container waits for its image, but for the first failed pull: another may succeed."""


def image_problem(pod: V1Pod) -> str | None:
    """Return the cluster's words if the image of a pod cannot be had."""
    for status in pod.status.container_statuses or ():
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason in _ABSENT:
            return one_line(f"{waiting.reason}: {waiting.message}", 400)
    return None


def obstacle(claim: Mapping[str, Any] | None, pod: V1Pod | None) -> str | None:
    """Return why a sandbox is not ready, in the cluster's words, or None where it gives no reason."""
    said = [*_of_pod(pod), *_of_claim(claim)]
    return one_line(said[0], 400) if said else None


def _of_pod(pod: V1Pod | None) -> Iterator[str]:
    if pod is None:
        return
    if (how := death(pod, pod.metadata.uid)) is not None:
        yield how
    for status in pod.status.container_statuses or ():
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason != "ContainerCreating":
            yield f"{waiting.reason}: {waiting.message}"
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status != "True":
            yield f"{condition.reason}: {condition.message}"


def _of_claim(claim: Mapping[str, Any] | None) -> Iterator[str]:
    for condition in ((claim or {}).get("status") or {}).get("conditions", []):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            yield f"{condition.get('reason')}: {condition.get('message')}"


def death(pod: V1Pod | None, uid: str) -> str | None:
    """Return how a pod died, in the cluster's words, or None if it runs.

    Args:
        uid: The pod's own: agent-sandbox replaces a deleted pod by an empty one of the same name.
    """
    if pod is None or pod.metadata.uid != uid:
        return "its pod was deleted"
    status = pod.status
    for container in status.container_statuses or ():
        ended = container.state.terminated if container.state else None
        if ended is not None:
            why = f": {ended.message}" if ended.message else ""
            return one_line(f"its container ended, {ended.reason}, exit code {ended.exit_code}{why}", 400)
    if status.phase in ("Failed", "Succeeded"):
        return one_line(f"its pod is {status.phase}: {status.reason}: {status.message}", 400)
    if pod.metadata.deletion_timestamp is not None:
        return "its pod is being deleted"
    return None


def life(cluster: Cluster, sandbox: str, name: str, uid: str) -> Life:
    """Return the check whether a pod still runs."""

    async def look() -> SandboxDied | None:
        try:
            how = death(await cluster.pod(name), uid)
        except CLIENT as error:
            if not is_transient(error):
                raise cluster.explained(error, f"check the sandbox {sandbox!r}") from error
            return None
        return None if how is None else SandboxDied(f"the sandbox {sandbox!r} died: {how}")

    return Life(look)
