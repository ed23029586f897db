"""The labels of our jobs: whose they are, in the characters that labels may have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from huggingface_hub import JobInfo

from swe_core.system.process_owner import LABEL

UNIQUE = "swe-core.sandbox"
"""A name of ours for each job, by which one is found whose id never reached us."""
POOL = "hf-sandbox-pool"
"""The client's label of a pool's jobs, which can have none of ours: their pool is named after the owner."""
_POOLED = "swe-core_"
_LONGEST = 63
_RESERVED = re.compile(r"hf-sandbox.*|name")


def encoded(owner: str) -> str:
    """An owner (`swe_core.system.process_owner`) as the value of a label: its slashes become underscores."""
    return owner.replace("/", "_")


def pool_name(owner: str, name: str) -> str:
    """The name of a pool of `owner`."""
    return f"{_POOLED}{name}_{encoded(owner)}"


def owner_of(job: JobInfo) -> str | None:
    """The owner of a job; None where it is none of ours."""
    labels: Mapping[str, str] = job.labels or {}
    value = labels.get(LABEL)
    if value is None and labels.get(POOL, "").startswith(_POOLED):
        value = labels[POOL].removeprefix(_POOLED).partition("_")[2]
    # Only the host, the first field, may have underscores of its own.
    return "/".join(value.rsplit("_", 4)) if value else None


def labels_of(given: Mapping[str, str], owner: str, name: str) -> dict[str, str]:
    """What a job is labelled with: what the run gives, as far as labels may say it, and what we need."""
    shown = {
        _plain(key): _plain(value) for key, value in given.items() if not _RESERVED.fullmatch(_plain(key))
    }
    return {**shown, LABEL: encoded(owner), UNIQUE: name}


def _plain(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)[:_LONGEST]
