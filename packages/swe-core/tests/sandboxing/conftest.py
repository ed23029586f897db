"""Tests of a repository inside a sandbox."""

from ..repositories import provider, repo, sandbox

__all__ = ["provider", "repo", "sandbox"]  # fixtures
