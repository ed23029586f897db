"""The page of a run in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from swe_core.view.site import Site
from swe_core.view.static_site import write_site


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


def test_outcome_filter_hides_attempts(page: Page, shown: Callable[[Site], str], training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/?outcome=error")
    expect(page.locator(".cell:visible")).to_have_count(1)


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


def test_static_copy_opens_from_a_folder(page: Page, training: Path, tmp_path: Path) -> None:
    write_site(Site([training], live=False), tmp_path / "site")
    page.goto((tmp_path / "site" / "index.html").as_uri())
    page.get_by_role("link", name="train").click()
    expect(page.locator(".row")).to_have_count(4)
    page.locator("[data-filter=text]").fill("dask")
    expect(page.locator(".row:visible")).to_have_count(1)
