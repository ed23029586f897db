"""The objects of agent-sandbox that this package creates: templates and warm pools."""

from __future__ import annotations

from typing import Any

from k8s_agent_sandbox.constants import CLAIM_API_GROUP, CLAIM_API_VERSION

from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_k8s.cluster import CONTAINER, POD_UID
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.labels import TEMPLATE, annotations_of, owner_labels

_API = f"{CLAIM_API_GROUP}/{CLAIM_API_VERSION}"
# Process 1: it reaps orphans while it waits, and ends at once when the pod is deleted.
_IDLE = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
# What an upload needs, of what a container has by default; commands run without them (setup.sh).
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETPCAP"]


def template(name: str, spec: SandboxSpec, config: K8sConfig, owner: str) -> dict[str, Any]:
    """Return the template of the pods for `spec`: its image, limits and network."""
    # An agent waits for its model most of the time; memory and disk that are promised twice kill pods.
    limits = {
        "cpu": f"{round(spec.cpus * 1000)}m",
        "memory": f"{spec.memory_mb}Mi",
        "ephemeral-storage": f"{spec.disk_mb}Mi",
    }
    container = {
        "name": CONTAINER,
        "image": spec.image,
        "command": ["sh", "-c", _IDLE],
        "env": [{"name": POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "resources": {"limits": limits, "requests": {**limits, "cpu": f"{round(spec.cpus * 250)}m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": _CAPABILITIES},
        },
    }
    pod: dict[str, Any] = {
        "containers": [container],
        "restartPolicy": "Never",  # a container that starts again has lost what was in it
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if config.runtime_class is not None:
        pod["runtimeClassName"] = config.runtime_class
    found: dict[str, Any] = {
        "podTemplate": {"metadata": {"labels": {**config.labels, TEMPLATE: name}}, "spec": pod},
        "networkPolicyManagement": "Managed",
    }
    if spec.network != "full":
        # No traffic at all. Without this field agent-sandbox allows the internet and forbids the cluster.
        found["networkPolicy"] = {"ingress": [], "egress": []}
    return {**_head("SandboxTemplate", name, owner), "spec": found}


def pool(name: str, replicas: int, owner: str) -> dict[str, Any]:
    """Return the warm pool of the template of the same name. Every claim names a pool, even an empty one."""
    spec = {"replicas": replicas, "sandboxTemplateRef": {"name": name}}
    return {**_head("SandboxWarmPool", name, owner), "spec": spec}


def _head(kind: str, name: str, owner: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": owner_labels(owner), "annotations": annotations_of(owner)}
    return {"apiVersion": _API, "kind": kind, "metadata": metadata}
