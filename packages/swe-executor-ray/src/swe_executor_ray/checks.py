"""Checks of what the executor needs."""

from __future__ import annotations

from importlib.metadata import version

from swe_core.api.checks import Check, Finding


def look() -> Finding:
    """Check that Ray can be imported."""
    try:
        import ray  # noqa: F401 (a build for another processor or C library fails only here)
    except ImportError as error:
        return Finding(
            "missing", f"Ray cannot be imported: {error}", "Install it: pip install 'ray>=2.50,<3'."
        )
    return Finding("ok", f"Ray {version('ray')}")


CHECKS = (Check("Ray", "--executor ray", look),)
