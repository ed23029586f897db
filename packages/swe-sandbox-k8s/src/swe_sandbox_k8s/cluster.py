"""Cluster: the API server as one user sees it, with retries and readable errors."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import tenacity
from k8s_agent_sandbox import AsyncSandboxClient
from k8s_agent_sandbox.constants import CLAIM_API_GROUP, CLAIM_API_VERSION
from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig
from kubernetes_asyncio import client, config
from kubernetes_asyncio.stream import WsApiClient

from swe_core.errors import SweError
from swe_core.sandboxing.background import background_task_group
from swe_core.system.redaction import redact
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.errors import CLIENT, explained, is_transient, said_by, status_of
from swe_sandbox_k8s.exec import Exec

logger = logging.getLogger(__name__)

CLAIMS, TEMPLATES, POOLS = "sandboxclaims", "sandboxtemplates", "sandboxwarmpools"
"""Plural names of the resources of agent-sandbox, v1beta1."""
CONTAINER = "sandbox"
"""The container of a pod in which commands run."""
POD_UID = "SWE_POD_UID"
"""Variable of the container with the uid of its pod."""
ANOTHER = 79
"""Exit code of a command that met another pod of the same name."""
ATTEMPTS = 9
BACKOFF = tenacity.wait_exponential(multiplier=0.1, max=8.0) + tenacity.wait_random(0.0, 0.2)
"""Seconds between two attempts, up to half a minute in total."""
REQUEST_TIMEOUT = 30.0
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_NOT_FOUND, _CONFLICT = 404, 409
# The script travels as standard input: the URL of the request would show it to proxies and audit logs, and
# would be too long for them. Standard input has no end in this protocol, so its length comes first.
_SHELL = "sh"
_BOOT = 'read -r n && eval "$(head -c "$n")"'


class Cluster:
    """An API server and a namespace.

    Attributes:
        host: URL of the API server.
        namespace: The namespace of the sandboxes.
        core: The client of pods and namespaces.
    """

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        self.host = str(configuration.host)
        self.namespace = namespace
        self._api = client.ApiClient(configuration)
        self._streams = WsApiClient(configuration)
        self.core = client.CoreV1Api(self._api)
        self._objects = client.CustomObjectsApi(self._api)
        self._exec = client.CoreV1Api(self._streams)

    def sandbox_client(self) -> AsyncSandboxClient:
        """Return a client of agent-sandbox. It keeps each sandbox that it opens, so each gets its own.

        Its connection is unused: requests to a sandbox need a server inside, which images of tasks lack.
        """
        connection = SandboxInClusterConnectionConfig()
        return AsyncSandboxClient(connection, cleanup=False, api_client=self._api)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._streams.close()
        await self._api.close()

    async def call(
        self,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
        between: Callable[[], Awaitable[None]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function of the client, and repeat it after transient failures. It must be safe to repeat.

        Args:
            between: Called after each failure. An exception that it raises ends the attempts.

        Raises:
            Exception: The function's own, after the last attempt.
        """

        async def attempt() -> Any:
            return await function(*args, **kwargs)

        async def pause(seconds: float) -> None:
            if between is not None:
                await between()
            await anyio.sleep(seconds)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=BACKOFF,
            sleep=pause,
            before_sleep=_log_retry,
            reraise=True,
        )
        return await retrying(attempt)

    async def create(self, plural: str, body: Mapping[str, Any]) -> None:
        """Create an object of agent-sandbox under a name that nobody else uses."""
        try:
            await self._custom("create_namespaced_custom_object", plural, body=body)
        except client.ApiException as error:
            if error.status != _CONFLICT:  # else an earlier attempt created it, and its answer was lost
                raise

    async def list(self, plural: str, selector: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects of agent-sandbox with these labels."""
        found = await self._custom("list_namespaced_custom_object", plural, label_selector=selector)
        items: Sequence[Mapping[str, Any]] = found["items"]
        return items

    async def delete(self, plural: str, name: str) -> bool:
        """Delete an object of agent-sandbox, and return whether it is gone. A failure is only logged."""
        try:
            await self._custom("delete_namespaced_custom_object", plural, name=name)
        except CLIENT as error:
            if status_of(error) != _NOT_FOUND:
                logger.warning("%s %s is left for the next run to reap: %s", plural, name, said_by(error))
                return False
        return True

    async def claim(self, name: str) -> Mapping[str, Any] | None:
        """Return a claim, or None if it does not exist."""
        try:
            found: Mapping[str, Any] = await self._custom("get_namespaced_custom_object", CLAIMS, name=name)
        except client.ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    async def pod(self, name: str) -> client.V1Pod | None:
        """Return a pod, or None if it does not exist; once, without retries."""
        try:
            return await self.core.read_namespaced_pod(name, self.namespace, _request_timeout=REQUEST_TIMEOUT)
        except client.ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def pods(self, selector: str) -> Sequence[client.V1Pod]:
        """Return the pods with these labels."""
        found = await self.call(
            self.core.list_namespaced_pod,
            self.namespace,
            label_selector=selector,
            _request_timeout=REQUEST_TIMEOUT,
        )
        pods: Sequence[client.V1Pod] = found.items
        return pods

    @asynccontextmanager
    async def exec(
        self,
        pod: str,
        uid: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> AsyncIterator[Exec]:
        """Run a command in a pod. Leaving the context closes its standard input and does not kill it.

        Args:
            uid: The pod's own. In another pod of that name the command does not run and its exit code is
                `ANOTHER`: agent-sandbox replaces a pod that was deleted.
            env: Variables to add; their names are names of shell variables.
            stdin: Standard input, ASCII text. With None, `Exec.send` continues it.

        Raises:
            Exception: The client's own.
        """
        lines = [f'[ "${POD_UID}" = {uid} ] || exit {ANOTHER}', f"unset {POD_UID}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items()]
        command = shlex.join(argv)
        if stdin is None:
            lines.append(f"exec {command}")  # nothing of ours stays that `kill -9 -1` would kill
        else:
            lines.append(f"printf %s {shlex.quote(stdin)} | {command}")
        script = "\n".join(lines).encode(errors="surrogateescape")
        asked = await self._exec.connect_get_namespaced_pod_exec(
            pod,
            self.namespace,
            container=CONTAINER,
            command=[_SHELL, "-c", _BOOT],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        async with asked as socket:
            running = Exec(socket)
            await running.send(b"%d\n%b" % (len(script), script))
            yield running

    def explained(self, error: Exception, doing: str) -> SweError:
        """Return an error of the clients as one sentence. See `errors.explained`."""
        return explained(error, doing, host=self.host, namespace=self.namespace)

    async def _custom(self, method: str, plural: str, **kwargs: Any) -> Any:
        return await self.call(
            getattr(self._objects, method),
            group=CLAIM_API_GROUP,
            version=CLAIM_API_VERSION,
            namespace=self.namespace,
            plural=plural,
            _request_timeout=REQUEST_TIMEOUT,
            **kwargs,
        )


@asynccontextmanager
async def connected(settings: K8sConfig) -> AsyncIterator[Cluster]:
    """Connect to the cluster of the settings. No request is made yet.

    Raises:
        ConfigError: There is no usable kubeconfig.
    """
    configuration = client.Configuration()
    async with background_task_group() as tasks:
        try:
            namespace, loader = await _load(settings, configuration)
        except Exception as error:  # a file of any content, which several libraries read
            known = isinstance(error, config.ConfigException | OSError)
            wrong = config.ConfigException(said_by(error) if known else "its content is not one")
            raise explained(wrong, "use Kubernetes sandboxes", host="", namespace="") from error
        if loader is not None:
            tasks.start_soon(config.kube_config.refresh_token, loader, configuration)
        for token in configuration.api_key.values():
            redact(token.removeprefix("Bearer "), temporary=True)
        # Each command that runs holds a connection.
        configuration.connection_pool_maxsize = 0
        cluster = Cluster(configuration, settings.namespace or namespace)
        try:
            yield cluster
        finally:
            with anyio.CancelScope(shield=True):
                await cluster.aclose()


async def _load(settings: K8sConfig, configuration: client.Configuration) -> tuple[str, Any]:
    """Load credentials. Return the namespace that they name, and the loader that renews them, if any does."""
    account = anyio.Path(_SERVICE_ACCOUNT)
    if settings.context is None and "KUBERNETES_SERVICE_HOST" in os.environ and await account.exists():
        config.load_incluster_config(configuration)  # which reads the token anew by itself
        return (await account.read_text()).strip(), None
    file = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")  # noqa: ASYNC240 (no I/O)
    if not any(map(os.path.exists, file.split(os.pathsep))):  # the library would only log it
        raise config.ConfigException(f"there is no file {file!r}")
    contexts, current = config.list_kube_config_contexts(file)
    name = settings.context or current["name"]
    found = next((one["context"] for one in contexts if one["name"] == name), None)
    if found is None:
        named = ", ".join(sorted(str(one["name"]) for one in contexts))
        raise config.ConfigException(f"it has no context {name!r}, but {named}")
    loader = await config.load_kube_config(file, context=name, client_configuration=configuration)
    return found.get("namespace") or "default", loader


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    if error is not None:
        logger.debug("attempt %d failed: %s", state.attempt_number, said_by(error))
