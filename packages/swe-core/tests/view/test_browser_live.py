"""Pages that follow a run while it goes on, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from swe_core.system.files import locked
from swe_core.view.site import Site
from swe_testing.sample_runs import WordTokenizer, add_sample, sample_training


def test_run_page_follows_a_live_run(page: Page, shown: Callable[[Site], str], tmp_path: Path) -> None:
    """A started rollout and a finished one appear, and the filter stays."""
    run = sample_training(tmp_path / "run")
    with locked(run.path):
        page.goto(f"{shown(Site([run.path]))}/run/run/?text=late")
        expect(page.locator("h1 .running")).to_have_text("running")
        expect(page.locator(".row")).to_have_count(0)
        (run.path / "rollouts" / "late-g9-0").mkdir()
        expect(page.locator(".cell.running")).to_have_count(1)
        (run.path / "rollouts" / "late-g9-0").rmdir()
        add_sample(run, WordTokenizer(), "late-g9-0", "late", 0, "resolved")
        expect(page.locator(".cell.resolved")).to_have_count(1)
        assert page.locator("[data-filter=text]").input_value() == "late"
    expect(page.locator("h1")).to_contain_text("ended")


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
