"""Five questions that a researcher has, each answered from the page of a run in at most four actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from swe_core.view.site import Site


class Reader:
    """Reads a run, and counts what it does: a click, or a key."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.actions = 0
        page.goto(url)

    def click(self, place: Locator) -> None:
        self.actions += 1
        place.click()

    def press(self, key: str) -> None:
        self.actions += 1
        self.page.keyboard.press(key)

    def attempt(self, rollout_id: str) -> None:
        """Open an attempt from the grid."""
        self.click(self.page.locator(f".cell[title^='{rollout_id}:']"))

    def tab(self, name: str) -> None:
        """Open another page of the rollout."""
        self.click(self.page.locator(".tabs").get_by_role("link", name=name))

    def read(self, place: str, text: str) -> None:
        """See `text` at a place, without an action."""
        expect(self.page.locator(place).first).to_be_visible()
        expect(self.page.locator(place).first).to_contain_text(text)
        assert self.actions <= 4


@pytest.fixture
def reader(page: Page, shown: Callable[[Site], str], training: Path) -> Reader:
    return Reader(page, f"{shown(Site([training]))}/run/train/")


def test_which_is_the_first_drifted_token(reader: Reader) -> None:
    reader.attempt("moto-7365-g0-1")
    reader.tab("Chains")
    reader.read("#chains-forks tbody tr", "retokenised")
    reader.read("#chains-forks tbody tr", "position 123")  # where a word is spelt otherwise
    reader.read("#chains-forks tbody tr", "no message changed")
    assert reader.actions == 2


def test_why_is_this_advantage_zero(reader: Reader) -> None:
    reader.click(reader.page.get_by_role("link", name="g1", exact=True))
    reader.read(".note", "All 4 rewards are equal (0.0)")
    reader.read(".note", "every advantage is 0")
    assert reader.actions == 1


def test_which_test_flipped_between_two_attempts(reader: Reader) -> None:
    reader.click(reader.page.get_by_role("link", name="g0", exact=True))
    reader.read("#flips", "test_minutes")
    assert reader.actions == 1


def test_how_stale_was_this_row(reader: Reader) -> None:
    reader.attempt("moto-7365-g0-1")
    reader.tab("Tokens")
    reader.read("#token-about", "staleness 1 policy update")
    assert reader.actions == 2


def test_where_did_the_slowest_minute_go(reader: Reader) -> None:
    reader.click(reader.page.locator(".lanes a").first)
    reader.read("#timing", "less than a minute")
    assert reader.actions == 1
