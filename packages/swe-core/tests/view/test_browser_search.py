"""Search in a real browser: on a server, and in a static copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from swe_core.view import searching
from swe_core.view.site import Site
from swe_core.view.static_site import write_site

pytestmark = pytest.mark.slow


def test_search_begins_with_a_key(page: Page, shown: Callable[[Site], str], training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/group/g0/")
    page.keyboard.press("/")
    page.keyboard.type("parse_offset")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search/?q=parse_offset")
    expect(page.locator("mark").first).to_have_text("parse_offset")
    page.locator("#search-form [name=in]").select_option("patch")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**&in=patch**")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**#patch")


def test_static_copy_is_searched(
    page: Page, training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHARD", 2_000)
    write_site(Site([training], live=False), tmp_path / "site")
    assert (tmp_path / "site" / "search" / "3.js").is_file()
    page.goto((tmp_path / "site" / "run" / "train" / "index.html").as_uri())
    page.keyboard.press("/")
    page.locator("header [name=q]").fill("PARSE_offset")
    page.keyboard.press("Enter")
    expect(page.locator(".hits > li")).to_have_count(16)
    expect(page.locator("#said")).to_have_text("16 rollouts have it.")
    expect(page.locator("mark").first).to_have_text("parse_offset")
    page.locator("#search-form [name=in]").select_option("patch")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#said")).to_contain_text("14 rollouts have it.")
    page.locator(".hits a").first.click()
    page.wait_for_url("**/index.html?q=PARSE_offset#patch")
    expect(page.locator("#patch")).to_be_in_viewport()
