"""The packages are tested here as they are where they are copied to; the suite of a sandbox in essentials."""

import pytest

from swe_testing.sandbox import ESSENTIAL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if "TestDirectory" not in item.nodeid or item.name in ESSENTIAL]
    for item in items:
        if "TestDirectory" in item.nodeid:
            item.add_marker("slow")
