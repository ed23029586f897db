"""The page of chains in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from swe_core.rollout.run_directory import FOLDERS, TURNS_FILE
from swe_core.view.site import Site
from swe_testing.sample_runs import sample_training

Shown = Callable[[Site], str]
COMPACTION, DRIFT, TITLE = (f"moto-7365-g0-{attempt}" for attempt in range(3))
BRANCH = "moto-7300-g1-1"


def open_chains(page: Page, url: str, rollout: str, query: str = "") -> None:
    page.goto(f"{url}/run/train/rollout/{rollout}/chains/{query}")
    expect(page.locator("#chains-about")).not_to_be_empty()


def test_first_drifted_token_is_two_clicks_from_the_run(shown: Shown, page: Page, training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    page.locator(f"a[href*='{DRIFT}']").first.click()
    page.get_by_role("link", name="Chains").click()
    row = page.locator("#chains-forks tbody tr")
    expect(row).to_contain_text("turn 2 after turn 1")
    expect(row).to_contain_text("retokenised: the same text came out as other ids")
    expect(row).to_contain_text("position 123: tool_call became t")
    expect(row).to_contain_text("no message changed: the same messages became other token ids")


def test_fork_opens_the_comparison(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), COMPACTION)
    page.get_by_role("link", name="turn 2 after turn 1").click()
    page.wait_for_url("**/chains/?turn=2&with=1")
    section = page.locator("#chains-shown")
    expect(section.locator("h2")).to_have_text("Turn 1 and turn 2: the first drifted token")
    expect(section).to_contain_text("Turn 2 is a fork (rewritten): the client changed its history")
    expect(section.locator("mark")).to_have_text(["Fix", "Summary"])
    expect(section.locator("del")).to_contain_text("Fix moto-7365")
    expect(section.locator("ins")).to_contain_text("Summary so far")
    page.reload()
    expect(section.locator("mark")).to_have_text(["Fix", "Summary"])
    page.go_back()
    expect(section).to_be_empty()


def test_differing_token_leads_to_the_row(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), COMPACTION)
    page.get_by_role("link", name="position 19").click()
    page.wait_for_url("**/tokens/?row=1&at=19")
    expect(page.locator(".token-shown")).to_have_text("Summary")


def test_click_shows_a_turn_and_shift_click_compares(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), DRIFT)
    page.locator("[data-turn='1'] rect").click()
    section = page.locator("#chains-shown")
    expect(section.locator("h2")).to_have_text("Turn 1")
    expect(section).to_contain_text("The request repeats 2 messages and adds:")
    expect(section.locator("summary").nth(1)).to_contain_text("message 3, tool")
    page.locator("[data-turn='0'] rect").click(modifiers=["Shift"])
    expect(section.locator("h2")).to_have_text("Turn 0 and turn 1: no token differs")
    expect(section).to_contain_text("it extends it")
    page.wait_for_url("**/chains/?turn=1&with=0")


def test_button_compares_without_shift(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), DRIFT, "?turn=1")
    page.get_by_role("button", name="compare with another turn").click()
    page.locator("[data-turn='4'] rect").click()
    expect(page.locator("#chains-shown h2")).to_have_text("Turn 1 and turn 4: the first drifted token")


def test_repeated_call_has_the_same_prompt(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), BRANCH, "?turn=2&with=3")
    section = page.locator("#chains-shown")
    expect(section).to_contain_text("Both have the same prompt of ")
    expect(section).to_contain_text("None: the request is the same, and the replies differ.")


def test_lanes_are_rows_and_dropped_calls(shown: Shown, page: Page, training: Path) -> None:
    url = shown(Site([training]))
    open_chains(page, url, TITLE)
    expect(page.locator(".lane-name")).to_have_count(2)
    expect(page.locator(".lane-name").nth(1)).to_contain_text("dropped call")
    expect(page.locator(".lane-turn.dropped title")).to_have_text(
        "turn 0: 4 tokens sampled, title, auxiliary (title)"
    )
    expect(page.locator("#chains-forks")).to_be_hidden()
    expect(page.locator("#chains-about")).to_contain_text(" trainable + 4 dropped (title).")
    open_chains(page, url, DRIFT)
    expect(page.locator(".lane-fork")).to_have_count(1)
    expect(page.locator(".lane-cause")).to_have_text("retokenised")


def test_time_is_another_axis(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), DRIFT)
    page.locator("#chains-x").select_option("time")
    expect(page.locator(".lane-time")).to_have_count(5)
    page.wait_for_url("**/chains/?x=time")


def test_keys_walk_the_turns(shown: Shown, page: Page, training: Path) -> None:
    open_chains(page, shown(Site([training])), TITLE)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#chains-shown h2")).to_have_text("Turn 1")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/tokens/")


def test_hostile_message_is_text_and_long_ones_are_cut(shown: Shown, page: Page, tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    file = made.path / FOLDERS / DRIFT / TURNS_FILE
    bad = b"<img src=x onerror=alert(1)>" + rb"\u202e\u0000\u001b[31m" + b"z" * 10_000_000
    file.write_bytes(file.read_bytes().replace(b"You are a coding agent", bad, 1))
    open_chains(page, shown(Site([made.path])), DRIFT, "?turn=0")
    message = page.locator(".chains-message").first
    expect(message.locator("summary")).to_have_text(re.compile(r"message 0, system: 10,000,\d+ characters"))
    message.locator("summary").click()
    expect(message.locator("pre")).to_contain_text("<img src=x onerror=alert(1)><U+202E>␀␛[31mzzz")
    expect(message.locator("pre")).to_contain_text("more characters")
    assert page.locator("#chains-shown img").count() == 0
