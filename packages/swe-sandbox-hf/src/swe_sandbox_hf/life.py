"""Life: the check whether the job of a sandbox still runs."""

from __future__ import annotations

import anyio

from swe_core.errors import SandboxDied
from swe_sandbox_hf.client import TERMINAL, TRANSPORT, Client, is_transient


class Life:
    """Checks on demand whether a job runs, and remembers its death.

    Args:
        sandbox: The sandbox's id, for errors.
        job: The job's id.
        namespace: The job's namespace.
    """

    def __init__(self, client: Client, sandbox: str, job: str, namespace: str) -> None:
        self._client = client
        self._sandbox = sandbox
        self._job = job
        self._namespace = namespace
        self._looking = anyio.Lock()
        self._looked = 0.0
        self._died: SandboxDied | None = None

    async def check(self) -> None:
        """Check that the job still runs. Concurrent callers share one request.

        Raises:
            SandboxDied: The job has ended.
            SandboxError: The service refuses the request.
        """
        if self._died is None:
            began = anyio.current_time()
            async with self._looking:
                if self._died is None and began >= self._looked:
                    await self._look()
                    self._looked = anyio.current_time()
        if self._died is not None:
            raise self._died

    async def _look(self) -> None:
        try:
            job = await self._client.job(self._job, self._namespace)
        except TRANSPORT as error:
            if not is_transient(error):
                raise self._client.explained(error, f"check the sandbox {self._sandbox!r}") from error
            return
        if job is not None and job.status.stage not in TERMINAL:
            return
        stage = "gone" if job is None else f"{job.status.stage}"
        message = (job.status.message if job is not None else None) or "no reason given"
        words = await self._client.last_words(self._job, self._namespace)
        last = f"; its log ends with: {words}" if words else ""
        self._died = SandboxDied(
            f"the sandbox {self._sandbox!r} died: its job is {stage} ({self._client.line(message)}){last}"
        )
