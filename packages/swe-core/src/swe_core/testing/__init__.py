"""Conformance suites to inherit from: public API for plugin authors.

from swe_core.testing.sandbox import SandboxConformance
"""

import pytest

pytest.register_assert_rewrite("swe_core.testing.sandbox")
