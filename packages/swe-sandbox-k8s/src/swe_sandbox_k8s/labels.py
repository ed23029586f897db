"""Names, labels and annotations of what swe-core creates in a cluster, which name its owner."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

from swe_core.system.process_owner import LABEL

TEMPLATE = "swe-core.template"
"""Label of the pods of a template, with its name."""
_LONGEST = 63


def new_name() -> str:
    """Return a new name for an object of swe-core."""
    return f"swe-{secrets.token_hex(8)}"


def owner_labels(owner: str) -> dict[str, str]:
    """Return the label by which an owner's objects are found. Values are too short for the owner itself."""
    return {LABEL: hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()}


def labels_of(given: Mapping[str, str], owner: str) -> dict[str, str]:
    """Return a claim's labels: the run's, in allowed characters, and the owner's."""
    shown = {_plain(key): _plain(value) for key, value in given.items()}
    return {**{key: value for key, value in shown.items() if key}, **owner_labels(owner)}


def annotations_of(owner: str) -> dict[str, str]:
    """Return the annotation that names the owner."""
    return {LABEL: owner}


def owner_of(thing: Mapping[str, Any]) -> str | None:
    """Return the owner of a claim, template or warm pool, or None if swe-core did not create it.

    The client cannot annotate a claim, only its pod.
    """
    for annotated in (thing["metadata"], thing["spec"].get("additionalPodMetadata") or {}):
        owner = (annotated.get("annotations") or {}).get(LABEL)
        if owner is not None:
            return str(owner)
    return None


def _plain(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)[:_LONGEST].strip("-._")
