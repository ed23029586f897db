"""Faults of the local Kubernetes, which a test may switch on at any time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """What goes wrong.

    Args:
        plan: Name of a route → statuses of its next answers. Routes: "VERB PLURAL", such as
            "create sandboxclaims"; "exec pods".
        forbidden: Routes that the user may not take.
        missing: Plural names of resources that the cluster does not serve.
        namespaces: The namespaces that exist.
        lost: Routes that do their work, while the answer never arrives.
        drop_after: Bytes after which the connection of a command breaks off; None never.
        quota: Number of pods that the namespace's quota allows; None is any.
        unready: Pods are scheduled and never get ready, for this reason.
        unseen: Number of times that the controller does not see the pool of a claim yet.
        failing: The container of a pod cannot start, as in an image without a shell.
        unenforced: The network plugin ignores network policies.
        start_delay: Seconds until a pod runs.
    """

    plan: dict[str, list[int]] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=lambda: {"default"})
    lost: set[str] = field(default_factory=set)
    drop_after: int | None = None
    quota: int | None = None
    unready: str | None = None
    unseen: int = 0
    failing: bool = False
    unenforced: bool = False
    start_delay: float = 0.0
