"""The labels of jobs, which name their owner in the characters that labels may have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from huggingface_hub import JobInfo

from swe_core.system.process_owner import LABEL

UNIQUE = "swe-core.sandbox"
"""Label with a unique name, which identifies a job whose id was lost with the answer."""
POOL = "hf-sandbox-pool"
"""The library's label of a pool's jobs. They can have no other labels, so the pool's name has the owner."""
_POOLED = "swe-core_"
_LONGEST = 63
_RESERVED = re.compile(r"hf-sandbox.*|name")


def encoded(owner: str) -> str:
    """Return an owner (`swe_core.system.process_owner`) as the value of a label, with `_` for `/`."""
    return owner.replace("/", "_")


def pool_name(owner: str, name: str) -> str:
    """Return the name of a pool of `owner`."""
    return f"{_POOLED}{name}_{encoded(owner)}"


def owner_of(job: JobInfo) -> str | None:
    """Return the owner of a job; None for a job that swe-core did not start."""
    labels: Mapping[str, str] = job.labels or {}
    value = labels.get(LABEL)
    if value is None and labels.get(POOL, "").startswith(_POOLED):
        value = labels[POOL].removeprefix(_POOLED).partition("_")[2]
    # Only the host, the first field, may contain underscores.
    return "/".join(value.rsplit("_", 4)) if value else None


def labels_of(given: Mapping[str, str], owner: str, name: str) -> dict[str, str]:
    """Return the labels of a job: those of the run, in valid characters, its owner and its unique name."""
    shown = {
        _plain(key): _plain(value) for key, value in given.items() if not _RESERVED.fullmatch(_plain(key))
    }
    return {**shown, LABEL: encoded(owner), UNIQUE: name}


def _plain(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)[:_LONGEST]
