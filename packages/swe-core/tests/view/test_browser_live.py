"""Pages that follow a run while it goes on, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from swe_core.view.site import Site

pytestmark = pytest.mark.slow


def test_chart_is_drawn_from_its_data(page: Page, shown: Callable[[Site], str], training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    figure = page.locator("figure", has=page.get_by_role("heading", name="loss", exact=True))
    drawn = figure.locator("path.line").get_attribute("d") or ""
    places = [tuple(map(float, point.split())) for point in drawn.removeprefix("M").split("L")]
    assert len(places) == 40
    assert places[0][1] < places[1][1] < places[-1][1]  # the loss 0.1 / n falls, and y points down
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0])
    figure.locator("svg").hover()
    expect(figure.locator(".read")).to_contain_text(":")
