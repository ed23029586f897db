"""The limit of this process's open files."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> None:
    """Raise the soft descriptor limit to the hard one: many rollouts need more than the usual 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
