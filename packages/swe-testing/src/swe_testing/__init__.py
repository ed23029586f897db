"""Conformance suites to inherit from: public API for plugin authors.

from swe_testing.sandbox import SandboxConformance
"""

import pytest

pytest.register_assert_rewrite("swe_testing.sandbox")
