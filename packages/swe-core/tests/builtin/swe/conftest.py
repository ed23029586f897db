"""Tests of the grader `swe`."""

import pytest

from ...repositories import provider, repo, sandbox

__all__ = ["provider", "repo", "sandbox"]  # fixtures

pytest.register_assert_rewrite(f"{__package__}.suites")
