"""The packages are tested here as they are where they are copied to. The suite of a sandbox is breadth."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    if "TestDirectory" in item.nodeid:
        item.add_marker("slow")
