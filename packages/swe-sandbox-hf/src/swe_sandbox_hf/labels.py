"""Labels of swe-core's jobs, which name the owner in the characters that labels allow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from huggingface_hub import JobInfo

from swe_core.system.process_owner import LABEL

UNIQUE = "swe-core.sandbox"
"""Label with a unique name of each job, which finds a job whose id never arrived."""
POOL = "hf-sandbox-pool"
"""The client's label of a pool's jobs. They have no other labels, so the pool's name contains the owner."""
_POOLED = "swe-core_"
_LONGEST = 63
_RESERVED = re.compile(r"hf-sandbox.*|name")


def encoded(owner: str) -> str:
    """Return an owner (`swe_core.system.process_owner`) as a label value, with underscores for slashes."""
    return owner.replace("/", "_")


def pool_name(owner: str, name: str) -> str:
    """Return the name of a pool of `owner`."""
    return f"{_POOLED}{name}_{encoded(owner)}"


def owner_of(job: JobInfo) -> str | None:
    """Return the owner of a job, or None if swe-core did not start the job."""
    labels: Mapping[str, str] = job.labels or {}
    value = labels.get(LABEL)
    if value is None and labels.get(POOL, "").startswith(_POOLED):
        value = labels[POOL].removeprefix(_POOLED).partition("_")[2]
    # Only the first field, the host, may contain underscores.
    return "/".join(value.rsplit("_", 4)) if value else None


def labels_of(given: Mapping[str, str], owner: str, name: str) -> dict[str, str]:
    """Return a job's labels: the run's, in allowed characters, with `owner` and the unique `name`."""
    shown = {
        _plain(key): _plain(value) for key, value in given.items() if not _RESERVED.fullmatch(_plain(key))
    }
    return {**shown, LABEL: encoded(owner), UNIQUE: name}


def _plain(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)[:_LONGEST]
