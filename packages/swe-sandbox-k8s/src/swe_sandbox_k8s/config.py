"""The settings of the k8s sandbox."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from swe_core import Config

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_PART}")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("expected a name of Kubernetes: lower-case letters, digits and hyphens")
    return name


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not _KEY.fullmatch(key) or not re.fullmatch(f"({_PART})?", value):
            raise ValueError(f"{key!r} = {value!r} is not a label of Kubernetes")
    return labels


class K8sConfig(Config):
    """`[sandbox.k8s]`. Credentials come from the kubeconfig or the pod's service account, never a setting."""

    context: str | None = Field(
        default=None,
        description="context of the kubeconfig; unset: the service account in a pod, else the current one",
    )
    namespace: Annotated[str, AfterValidator(_name)] | None = Field(
        default=None, description="namespace of the pods; unset: the context's"
    )
    runtime_class: Annotated[str, AfterValidator(_name)] | None = Field(
        default=None, description="RuntimeClass of the pods, such as gvisor; unset: the cluster's default"
    )
    internet: bool = Field(
        default=False,
        description="accept that sandboxes may have network access: the cluster's policies are not probed",
    )
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        default_factory=dict,
        description="labels of the pods, such as kueue.x-k8s.io/queue-name",
    )
    warm: int = Field(default=0, ge=0, description="pods kept ready per image while it is in use")
    start_timeout: float = Field(
        default=600.0, gt=0, description="seconds until a pod must be ready, including queue and image pull"
    )
    lifetime: float = Field(
        default=86400.0,
        ge=60,
        description="seconds until the cluster deletes a sandbox, whatever happens here",
    )
    max_concurrent: int = Field(default=32, ge=1, description="open sandboxes of this run; more wait")
