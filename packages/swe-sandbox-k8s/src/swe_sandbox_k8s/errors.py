"""Errors of the cluster and of its clients as sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiException
from kubernetes_asyncio.config import ConfigException

from swe_core.errors import ConfigError, SandboxError, SweError
from swe_core.sandboxing.followed.failures import BrokenOff
from swe_core.system.printable import one_line

INSTALL = "https://github.com/kubernetes-sigs/agent-sandbox#installation"
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
CLIENT = (ApiException, aiohttp.ClientError, ConfigException, TimeoutError, OSError)
"""What the clients raise."""


class NotRun(BrokenOff):
    """The cluster could not start a command in a pod; the message is the cluster's."""


class NoShell(Exception):
    """There is no shell in a pod; the message is the cluster's."""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a client's error, or None if no answer arrived."""
    if isinstance(error, ApiException | aiohttp.WSServerHandshakeError):
        return None if error.status is None else int(error.status)
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT
    if isinstance(error, aiohttp.ClientSSLError):
        return False
    return isinstance(error, aiohttp.ClientError | TimeoutError | ConnectionError | BrokenOff)


def said_by(error: BaseException) -> str:
    """Return what the cluster or the client says, on one line."""
    if isinstance(error, ApiException) and error.body:
        body = error.body if isinstance(error.body, str) else bytes(error.body).decode(errors="replace")
        try:
            return one_line(str(json.loads(body)["message"]), 400)
        except (ValueError, KeyError, TypeError):  # a proxy's page
            return one_line(f"{error.status}: {body}", 400)
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"{error.status}: {error.message}"
    return one_line(str(error), 400) or type(error).__name__


def explained(error: Exception, doing: str, *, host: str, namespace: str) -> SweError:
    """Return an error of a client as one sentence.

    Args:
        doing: The failed action, such as "open a sandbox".
        host: URL of the API server.
        namespace: The namespace of the sandboxes.
    """
    kind, why, remedy = _problem(error, host, namespace)
    return kind(f"cannot {doing}: {why}; {remedy}")


def _problem(error: Exception, host: str, namespace: str) -> tuple[type[SweError], str, str]:
    said = said_by(error)
    status = status_of(error)
    if isinstance(error, ConfigException):
        remedy = (
            "set KUBECONFIG to a file that kubectl works with, and sandbox.k8s.context to a context of it"
        )
        return ConfigError, f"there is no usable kubeconfig ({said})", remedy
    if status is None:
        remedy = (
            "see whether `kubectl cluster-info` reaches it, or set sandbox.k8s.context to another cluster"
        )
        return SandboxError, f"the API server at {host!r} does not answer ({said})", remedy
    if status == _UNAUTHORIZED:
        return (
            SandboxError,
            f"the API server at {host!r} does not accept the credentials",
            "log in to it again",
        )
    if "exceeded quota" in said:
        remedy = "raise the quota, or lower sandbox.k8s.max_concurrent or [resources]"
        return SandboxError, f"the quota of the namespace {namespace!r} is used up ({said})", remedy
    if status == _FORBIDDEN:
        remedy = "ask for the role that docs/kubernetes.md lists, or set sandbox.k8s.namespace"
        return SandboxError, f"the cluster forbids it ({said})", remedy
    if status == _NOT_FOUND and said.startswith(f"namespaces {json.dumps(namespace)} not found"):
        remedy = "create it, or set sandbox.k8s.namespace"
        return SandboxError, f"the cluster has no namespace {namespace!r}", remedy
    if status == _NOT_FOUND and "page not found" in said:
        remedy = f"install it with its extensions: {INSTALL}"
        return SandboxError, f"agent-sandbox v1beta1 is not installed in the cluster at {host!r}", remedy
    return SandboxError, f"the API server answered {status} ({said})", "see what its administrators say"


@contextmanager
def only_error() -> Iterator[None]:
    """Raise the first exception of a task group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        first: Any = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
