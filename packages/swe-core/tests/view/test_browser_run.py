"""The page of a run in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from swe_core.view.site import Site

pytestmark = pytest.mark.slow


def test_filter_hides_rows_and_lives_in_the_url(
    page: Page, shown: Callable[[Site], str], training: Path
) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    expect(page.locator(".row:visible")).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("dask")
    expect(page.locator(".row:visible")).to_have_count(1)
    assert page.url.endswith("?text=dask")
    page.reload()
    expect(page.locator(".row:visible")).to_have_count(1)


def test_keys_walk_the_items(page: Page, shown: Callable[[Site], str], training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".here")).to_have_text("g0")
    page.keyboard.press("Enter")
    page.wait_for_url("**/group/g0/")
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_url("**:*/")
