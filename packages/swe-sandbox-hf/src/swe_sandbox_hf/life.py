"""The check whether the job of a sandbox still runs."""

from __future__ import annotations

import re
from functools import partial

from swe_core.errors import SandboxBroken, SandboxDied
from swe_core.sandboxing.followed.life import Life
from swe_sandbox_hf.client import TERMINAL, TRANSPORT, Client, is_transient

_BY_ITSELF = re.compile(r"\bexit(ed)?( with)? (code|status)\b|\bout of memory\b|oom[- ]?kill", re.IGNORECASE)
"""What the service says of a job that ended by itself, and not by a user or a failing host."""


def life(client: Client, sandbox: str, job: str, namespace: str, *, shared: bool = False) -> Life:
    """Return the check of a job.

    Args:
        sandbox: The sandbox's id, for errors.
        job: The job's id.
        namespace: The job's namespace.
        shared: Whether other sandboxes share the job, whose code may be what ended it.
    """
    return Life(partial(_look, client, sandbox, job, namespace, shared))


async def _look(client: Client, sandbox: str, id: str, namespace: str, shared: bool) -> SandboxDied | None:
    try:
        job = await client.job(id, namespace)
    except TRANSPORT as error:
        if not is_transient(error):
            raise client.explained(error, f"check the sandbox {sandbox!r}") from error
        return None
    if job is not None and job.status.stage not in TERMINAL:
        return None
    stage = "gone" if job is None else f"{job.status.stage}"
    message = (job.status.message if job is not None else None) or "no reason given"
    words = await client.last_words(id, namespace)
    last = f"; its log ends with: {words}" if words else ""
    inside = stage == "ERROR" and _BY_ITSELF.search(message) is not None and not shared
    kind = SandboxBroken if inside else SandboxDied
    return kind(f"the sandbox {sandbox!r} died: its job is {stage} ({client.line(message)}){last}")
