"""Jobs: the Jobs API, with jobs that really execute."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import orjson
from aiohttp import web
from anyio.abc import Process

from swe_testing.boxes import SOCKET, Boxes, Command, Mount, NoBox
from swe_testing.hf.accounts import USER, USER_ID, Accounts, Refused
from swe_testing.hf.faults import Faults
from swe_testing.hf.hardware import HARDWARE
from swe_testing.hf.hub import Hub
from swe_testing.hf.volumes import Volume, volumes_of

Stage = Literal["SCHEDULING", "RUNNING", "COMPLETED", "ERROR", "CANCELED"]
_KEEP_ALIVE = 30.0
_LAST_WORDS = 2.0
PING = 15.0
"""Seconds between two pings of a silent command."""
_DIED = "Job failed with exit code: 137. Reason: Error."


@dataclass(slots=True, eq=False)
class Job:
    """One job.

    Args:
        id: 24 hexadecimal digits.
        namespace: Its owner.
        spec: The client's request.
        directory: Private to this job.
        origin: Of the server, for the URLs of its ports.
        clock: The service's.
        volumes: Repositories of the Hub that it mounts.
    """

    id: str
    namespace: str
    spec: dict[str, Any]
    directory: Path
    origin: str
    clock: Callable[[], datetime]
    volumes: Sequence[Volume] = ()
    stage: Stage = "SCHEDULING"
    message: str | None = None
    created: str = field(init=False)
    started: str | None = None
    finished: str | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ending: tuple[Stage, str | None] | None = None

    def __post_init__(self) -> None:
        self.created = self._now()

    def _now(self) -> str:
        return self.clock().isoformat().replace("+00:00", "Z")

    @property
    def socket(self) -> Path:
        """Return the socket of its sandbox server."""
        return self.directory / "shared" / SOCKET

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self.stage not in ("SCHEDULING", "RUNNING")

    @property
    def secrets(self) -> dict[str, str]:
        """Return its secrets, which the API never shows."""
        return {name: str(value) for name, value in (self.spec.get("secrets") or {}).items()}

    @property
    def environment(self) -> dict[str, str]:
        """Return its environment without the secrets."""
        return {name: str(value) for name, value in (self.spec.get("environment") or {}).items()}

    def say(self, line: str) -> None:
        """Add a line to its log."""
        self.log.append((self._now(), line))
        self._wake()

    def become(self, stage: Stage, message: str | None = None) -> None:
        """Enter a stage."""
        self.stage, self.message = stage, message
        if stage == "RUNNING":
            self.started = self._now()
        else:
            self.finished = self._now()
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def json(self) -> dict[str, Any]:
        """Return the job as the API shows it."""
        ports = (self.spec.get("expose") or {}).get("ports") or []
        status: dict[str, Any] = {"stage": self.stage, "message": self.message}
        if ports:
            status["exposeUrls"] = [f"{self.origin}/jobs/{self.id}--{port}.local" for port in ports]
        owner = {"id": USER_ID, "name": self.namespace, "type": "user" if self.namespace == USER else "org"}
        return {
            "id": self.id,
            "createdAt": self.created,
            "startedAt": self.started,
            "finishedAt": self.finished,
            "dockerImage": self.spec.get("dockerImage"),
            "spaceId": self.spec.get("spaceId"),
            "command": self.spec.get("command"),
            "arguments": self.spec.get("arguments"),
            "environment": self.environment,
            "secrets": dict.fromkeys(self.secrets, ""),
            "flavor": self.spec.get("flavor"),
            "labels": self.spec.get("labels"),
            "volumes": self.spec.get("volumes"),
            "status": status,
            "owner": owner,
            "initiator": {"type": "user", "id": USER_ID, "name": USER},
        }

    def command(self, idle_timeout: float | None) -> Command:
        """Return the command of its box; ours replaces a sandbox's start script, a download."""
        hidden = self.secrets
        token = hidden.pop("SBX_TOKEN", None)
        env = {**self.environment, **hidden}
        if token is None:
            argv = [*(self.spec.get("command") or ()), *(self.spec.get("arguments") or ())]
            return Command(argv, env)
        if idle_timeout is None and "SBX_IDLE_TIMEOUT" in env:
            idle_timeout = float(env["SBX_IDLE_TIMEOUT"])
        capacity = int(env["SBX_CAPACITY"]) if env.get("SBX_HOST_MODE") == "1" else None
        env = {name: value for name, value in env.items() if not name.startswith("SBX_")}
        server = {
            "token": token,
            "idle_timeout": idle_timeout,
            "capacity": capacity,
            "ping": PING,
        }
        return Command((), env, server)


class Jobs:
    """The Jobs API. Each job executes in a box: bubblewrap, or Docker where its image is Docker's.

    Attributes:
        jobs: Id → every job that was ever created here.
        images: Names of images that run in bubblewrap, with this machine's programs; add to it.
    """

    def __init__(self, accounts: Accounts, faults: Faults, hub: Hub) -> None:
        self._accounts = accounts
        self._faults = faults
        self._hub = hub
        self._boxes = Boxes()
        self.jobs: dict[str, Job] = {}
        self.images = self._boxes.images
        self.home = Path()

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/api/jobs/hardware", self._hardware, name="jobs.hardware"),
            web.post("/api/jobs/{namespace}", self._create, name="jobs.create"),
            web.get("/api/jobs/{namespace}", self._list, name="jobs.list"),
            web.get("/api/jobs/{namespace}/{id}", self._inspect, name="jobs.inspect"),
            web.post("/api/jobs/{namespace}/{id}/cancel", self._cancel, name="jobs.cancel"),
            web.get("/api/jobs/{namespace}/{id}/logs", self._logs, name="jobs.logs"),
            web.put("/api/jobs/{namespace}/{id}/labels", self._labels, name="jobs.labels"),
        ]

    def running(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs.values() if not job.ended]

    async def kill(self, id: str, message: str = _DIED) -> None:
        """Kill a job, as the out-of-memory killer does, and wait for its end."""
        await self._end(self.jobs[id], "ERROR", message)

    async def aclose(self) -> None:
        """End every job."""
        for job in self.running():
            await self._end(job, "CANCELED", None)

    # ------------------------------------------------------------ routes

    async def _hardware(self, request: web.Request) -> web.Response:
        return web.json_response(list(HARDWARE.values()))

    async def _create(self, request: web.Request) -> web.Response:
        self._accounts.require(request, "job.write")
        namespace = request.match_info["namespace"]
        self._accounts.require_namespace(namespace)
        spec = await request.json()
        flavor = spec.get("flavor")
        if flavor not in HARDWARE:
            raise Refused(400, f"Invalid flavor {flavor!r}: expected one of {'|'.join(HARDWARE)}")
        if not spec.get("dockerImage") and not spec.get("spaceId"):
            raise Refused(400, "Either dockerImage or spaceId must be given")
        if not spec.get("command"):
            raise Refused(400, "Invalid command: it must not be empty")
        volumes = volumes_of(request, self._hub, spec)
        if self._faults.quota is not None and len(self.running()) >= self._faults.quota:
            raise Refused(402, "Your plan's limit of concurrent jobs, or your credit, is used up")
        id = secrets.token_hex(12)
        origin = str(request.url.origin())
        job = Job(id, namespace, spec, self.home / id, origin, self._faults.now, volumes)
        self.jobs[id] = job
        job.task = asyncio.create_task(self._run_to_end(job), name=f"job {id}")
        return web.json_response(job.json())

    async def _list(self, request: web.Request) -> web.Response:
        self._accounts.require(request, "job.read")
        namespace = request.match_info["namespace"]
        self._accounts.require_namespace(namespace)
        stages = request.query.getall("stage", [])
        labels = [label.partition("=")[::2] for label in request.query.getall("label", [])]
        found = [
            job.json()
            for job in reversed(self.jobs.values())
            if job.namespace == namespace
            and (not stages or job.stage in stages)
            and all((job.spec.get("labels") or {}).get(name) == value for name, value in labels)
        ]
        return web.json_response(found)

    async def _inspect(self, request: web.Request) -> web.Response:
        return web.json_response(self._job(request, "job.read").json())

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self._job(request, "job.write")
        await asyncio.shield(self._end(job, "CANCELED", None))
        return web.json_response(job.json())

    async def _labels(self, request: web.Request) -> web.Response:
        job = self._job(request, "job.write")
        job.spec["labels"] = (await request.json())["labels"]
        return web.json_response(job.json())

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        job = self._job(request, "job.read")
        tail = int(request.query.get("tail", 0))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = max(0, len(job.log) - tail) if tail else 0
        while True:
            changed = job.changed
            for when, line in job.log[sent:]:
                event = orjson.dumps({"timestamp": when, "data": line})
                await response.write(b"event: log\ndata: " + event + b"\n\n")
                sent += 1
            if sent < len(job.log):
                continue
            if job.ended:
                return response
            try:
                await asyncio.wait_for(changed.wait(), _KEEP_ALIVE)
            except TimeoutError:
                await response.write(b": keep-alive\n\n")

    def _job(self, request: web.Request, scope: str) -> Job:
        self._accounts.require(request, scope)
        namespace = request.match_info["namespace"]
        self._accounts.require_namespace(namespace)
        job = self.jobs.get(request.match_info["id"])
        if job is None or job.namespace != namespace:
            raise Refused(404, "Job not found")
        return job

    # ------------------------------------------------------------ a job's life

    async def _run_to_end(self, job: Job) -> None:
        try:
            with job.life:
                await self._run(job)
        except NoBox as error:
            job.ending = ("ERROR", str(error))
        finally:
            stage, message = job.ending or ("ERROR", "Internal error")
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(job.directory, ignore_errors=True))
            job.become(stage, message)

    async def _run(self, job: Job) -> None:
        faults = self._faults
        death = faults.deaths.pop(0) if faults.deaths else None
        await anyio.sleep(faults.start_delay)
        image = job.spec.get("dockerImage") or f"hf.co/spaces/{job.spec['spaceId']}"
        command = job.command(faults.idle_timeout)
        name = f"swe-hf-{job.id}"
        mounts = await anyio.to_thread.run_sync(_written, job)
        async with self._boxes.open(name, image, job.directory, command, mounts) as process:
            job.become("RUNNING")
            job.say(f"===== Job started at {job.started} =====")
            with anyio.move_on_after(death) as lifetime:
                with anyio.move_on_after(job.spec.get("timeoutSeconds")) as allowed:
                    code = await _follow(job, process)
            if lifetime.cancelled_caught:
                job.ending = ("ERROR", _DIED)
            elif allowed.cancelled_caught:
                job.ending = ("ERROR", "Job timeout")
            else:
                failed = f"Job failed with exit code: {code}. Reason: Error."
                job.ending = job.ending or (("ERROR", failed) if code else ("COMPLETED", None))

    async def _end(self, job: Job, stage: Stage, message: str | None) -> None:
        if job.ended or job.task is None:
            return
        job.ending = job.ending or (stage, message)
        job.life.cancel()  # not the task, which would not wait for its thread
        await asyncio.wait([job.task])


def _written(job: Job) -> list[Mount]:
    """Write its volumes to directories of this machine."""
    directory = job.directory / "volumes"
    return [volume.written(directory / str(number)) for number, volume in enumerate(job.volumes)]


async def _follow(job: Job, process: Process) -> int:
    """Collect its output, and return its exit code."""
    async for line in _lines(process):
        job.say(line)
    with anyio.move_on_after(_LAST_WORDS):
        return await process.wait()
    process.kill()
    return await process.wait()


async def _lines(process: Process) -> AsyncIterator[str]:
    buffered = b""
    if process.stdout is None:
        return
    async for piece in process.stdout:
        *lines, buffered = (buffered + piece).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if buffered:
        yield buffered.decode(errors="replace")
