"""HfProvider: opens, destroys and reaps Hugging Face Sandboxes."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
import httpx
from huggingface_hub import JobInfo, Volume
from huggingface_hub import Sandbox as HubSandbox

from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import ImageNotFound, PolicyRefused, SandboxError, SweError
from swe_core.sandboxing.background import background_task_group
from swe_core.sandboxing.followed.archives import Archives
from swe_core.sandboxing.relay.transport import http_client
from swe_core.system.process_owner import current_owner, is_orphaned, process_state
from swe_sandbox_hf.assets import AssetsRepo, Mounted
from swe_sandbox_hf.client import ATTEMPTS, TERMINAL, Client, is_transient, status_of
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.hardware import Flavor, check, flavors_of, known
from swe_sandbox_hf.labels import UNIQUE, labels_of, owner_of
from swe_sandbox_hf.opening import Opening
from swe_sandbox_hf.pool import Pools
from swe_sandbox_hf.sandbox import HfSandbox

logger = logging.getLogger(__name__)

_NOTES = (
    "Code in a Hugging Face Sandbox reaches the internet, whatever the network policy: the service cannot "
    "prevent it, and sandbox.hf.internet accepts it.",
    "A Hugging Face Sandbox has all of its flavor's processors and memory and as many processes and as much "
    "disk as its machine gives: memory_mb and cpus are compared with the flavor and not enforced, pids and "
    "disk_mb are not limited.",
    "In a Hugging Face Sandbox commands run as the image's user, without capabilities where the image has "
    "setpriv(1): where it has none, root inside can change the agent's own files under /opt/swe.",
)
_POOL_NOTE = (
    "Pooled Hugging Face Sandboxes share a machine and one trust boundary with all others of their pool."
)
_ABSENT = re.compile(r"pull|manifest|image|not found", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Service:
    """The connection to the service.

    Args:
        client: The service's client.
        namespace: The namespace of the jobs.
        flavors: Name → hardware.
    """

    client: Client
    namespace: str
    flavors: dict[str, Flavor]


class HfProvider:
    """One Hugging Face Sandbox per sandbox. It connects to the service at the first use."""

    def __init__(self, config: HfConfig) -> None:
        self._config = config
        self._connecting = anyio.Lock()
        self._connected: Service | None = None
        self._archives = Archives()
        self._assets = None if config.assets_repo is None else AssetsRepo(config.assets_repo)
        self._places = anyio.Semaphore(config.max_concurrent)
        self._pools = Pools(config)
        self._open = 0
        self._http: httpx.AsyncClient | None = None

    async def _service(self) -> Service:
        """Return the service, after one request each for the account and the flavors.

        Raises:
            SandboxError: The token is missing or rejected, or the service does not answer.
            ConfigError: The configured flavor does not exist.
        """
        async with self._connecting:
            if self._connected is None:
                client = Client()
                try:
                    namespace = self._config.namespace or (await client.call(client.api.whoami))["name"]
                    flavors = flavors_of(await client.call(client.api.list_jobs_hardware))
                except Exception as error:  # the client raises errors of several libraries
                    raise client.explained(error, "use Hugging Face Sandboxes") from error
                known(self._config.flavor, flavors)
                self._connected = Service(client, namespace, flavors)
            return self._connected

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`."""
        image = self._image(spec)
        service = await self._service()
        self.check_supported(spec)  # again, now with the flavors
        async with self._places, self._shared() as http, AsyncExitStack() as stack:
            # Before anything costs money.
            mounted = Mounted()
            if self._assets is not None:
                mounted = await self._assets.mounted(service.client, spec.assets)
            archives = self._archives.of(spec.model_copy(update={"assets": ()}) if mounted.volumes else spec)
            with ExitStack() as files:
                made = await anyio.to_thread.run_sync(files.enter_context, archives)
                try:
                    hub, job = await self._create(stack, service, spec, image, mounted.volumes)
                except SweError:
                    if self._assets is not None:  # its volume may be the reason
                        self._assets.forget(mounted)
                    raise
                tasks = await stack.enter_async_context(background_task_group())
                sandbox = HfSandbox(
                    *(service.client, hub, job, service.namespace, self._config.flavor, spec),
                    *(self._config.pool, tasks, http),
                )
                tasks.start_soon(sandbox.keep_alive, self._config.idle_timeout / 3)
                await sandbox.fill({**made, **mounted.contents})
            yield sandbox

    def _image(self, spec: SandboxSpec) -> str:
        if spec.image is None:
            raise SandboxError(
                "the hf sandbox needs an image and the task names none: give the task an 'image', or use "
                "another sandbox"
            )
        self.check_supported(spec)
        return spec.image

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`. The flavor is checked once the service is connected."""
        if spec.network != "full" and not self._config.internet:
            raise PolicyRefused(
                f"Hugging Face Sandboxes cannot keep code inside from the internet, and network "
                f"{spec.network!r} asks for that: set sandbox.hf.internet = true to accept it, or use "
                "another sandbox"
            )
        if self._config.pool and spec.network == "llm":
            raise PolicyRefused(
                "nothing can listen in pooled Hugging Face Sandboxes, and network 'llm' is for agents, whose "
                "LLM calls go to a server inside: leave out sandbox.hf.pool, or set resources.network to "
                "'none' for an agent that calls no model"
            )
        if self._connected is not None:
            check(spec, self._config.flavor, self._connected.flavors)

    @asynccontextmanager
    async def _shared(self) -> AsyncIterator[httpx.AsyncClient]:
        """Provide the HTTP client of all relays, which is open while any sandbox is."""
        if self._http is None:
            self._http = http_client()
        self._open += 1
        try:
            yield self._http
        finally:
            self._open -= 1
            if not self._open:
                http, self._http = self._http, None
                with anyio.CancelScope(shield=True):
                    await http.aclose()

    async def _create(
        self,
        stack: AsyncExitStack,
        service: Service,
        spec: SandboxSpec,
        image: str,
        volumes: Sequence[Volume],
    ) -> tuple[HubSandbox, str]:
        """Create a sandbox that `stack` destroys. Return it and its job's id."""
        client, config = service.client, self._config
        if config.pool:
            return await stack.enter_async_context(self._pools.sandbox(client, service.namespace, image))
        name = secrets.token_hex(8)
        labels = labels_of(spec.labels, current_owner(), name)

        def create() -> HubSandbox:
            return HubSandbox.create(
                image,
                flavor=config.flavor,
                idle_timeout=config.idle_timeout,
                namespace=service.namespace,
                labels=labels,
                start_timeout=config.start_timeout,
                volumes=[*volumes],
            )

        async def cancel() -> None:
            await cancel_labelled(service, {UNIQUE: name})

        failures = 0
        while True:
            try:
                hub = await Opening(client, create, cancel).run()
                break
            except Exception as error:  # the client raises errors of several libraries
                failures += 1
                if failures >= ATTEMPTS or not is_transient(error):
                    raise _refused(client, error, image) from error
            await anyio.sleep(0.2 * 2 ** min(failures, 5))

        async def destroy() -> None:
            with anyio.CancelScope(shield=True):
                await cancel_job(service, hub.id)
                await client.unhurried(hub.close)

        stack.push_async_callback(destroy)
        client.redact(hub.proxy_headers["X-Sandbox-Token"], temporary=True)
        return hub, hub.id

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        return (*_NOTES, _POOL_NOTE) if self._config.pool else _NOTES

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        _, found = await self._jobs()
        return [_entry(job, owner) for job, owner in found]

    async def reap(self) -> int:
        """See `SandboxProvider.reap`. As a run begins with it, it also creates the data set for assets."""
        service, found = await self._jobs()
        abandoned = [job.id for job, owner in found if is_orphaned(owner)]
        async with anyio.create_task_group() as removals:
            for job in abandoned:
                removals.start_soon(cancel_job, service, job)
        if self._assets is not None:
            await self._assets.prepare(service.client)
        return len(abandoned)

    async def _jobs(self) -> tuple[Service, Sequence[tuple[JobInfo, str]]]:
        """Return the service, and swe-core's running and scheduled jobs with their owners."""
        service = await self._service()
        try:
            jobs = await _list(service, None)
        except Exception as error:  # the client raises errors of several libraries
            raise service.client.explained(error, "list the sandboxes") from error
        owned = ((job, owner_of(job)) for job in jobs)
        return service, [(job, owner) for job, owner in owned if owner is not None]


async def cancel_job(service: Service, job: str) -> None:
    """Cancel a job if it exists. A failure is only logged, as the next run can reap the job."""
    client = service.client
    try:
        await client.call(client.api.cancel_job, job_id=job, namespace=service.namespace)
    except Exception as error:  # the client raises errors of several libraries
        if status_of(error) != 404:
            logger.warning("the sandbox %s is left for the next run to reap: %s", job, client.reason(error))


async def cancel_labelled(service: Service, labels: dict[str, str]) -> None:
    """Cancel the jobs with these labels. A failure is only logged."""
    try:
        jobs = await _list(service, labels)
    except Exception as error:  # the client raises errors of several libraries
        logger.warning("cannot look for a sandbox to cancel: %s", service.client.reason(error))
        return
    for job in jobs:
        await cancel_job(service, job.id)


async def _list(service: Service, labels: dict[str, str] | None) -> list[JobInfo]:
    client = service.client

    def fetch() -> list[JobInfo]:
        found = client.api.list_jobs(
            namespace=service.namespace, status=["RUNNING", "SCHEDULING"], labels=labels
        )
        return [job for job in found if job.status.stage not in TERMINAL]

    result: list[JobInfo] = await client.call(fetch)
    return result


def _refused(client: Client, error: Exception, image: str) -> SandboxError:
    """Return the error for a sandbox that could not be created."""
    explained = client.explained(error, f"open a sandbox of the image {image!r}")
    if "terminated during startup" in str(error) and _ABSENT.search(str(error).partition("message:")[2]):
        return ImageNotFound(str(explained))
    return explained


def _entry(job: JobInfo, owner: str) -> SandboxEntry:
    return SandboxEntry(
        id=job.id,
        owner=process_state(owner),
        image=job.docker_image or job.space_id,
        flavor=None if job.flavor is None else str(job.flavor),
        created=job.created_at,
        details={"stage": str(job.status.stage), "url": job.url},
    )
