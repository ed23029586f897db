"""Pages in a real browser: folded parts, keys, filters, charts, search, and a rollout that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Page, expect

from swe_core.api.records import Turn
from swe_core.system.files import locked
from swe_core.view import searching
from swe_core.view.site import Site
from swe_core.view.static_site import write_site
from swe_testing.records import make_rollout, make_run, make_turn

RUNNING = "run/run/rollout/t-0/"
Shown = Callable[[Site], str]


def turn(index: int, **fields: Any) -> Turn:
    call = {"id": f"call-{index}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    reply = {"role": "assistant", "content": f"reply {index}", "tool_calls": [call]}
    messages = [{"role": "user", "content": "Fix it." * 400}]
    if index:
        messages = [{"role": "tool", "tool_call_id": f"call-{index - 1}", "content": f"result {index - 1}"}]
    return make_turn(index, kept=2 * index, messages=messages, reply=reply, **fields)


def test_running_rollout_grows_in_place(page: Page, shown: Shown, tmp_path: Path) -> None:
    """New turns and results appear. What is open, selected and in sight stays."""
    run = make_run(tmp_path / "run", planned=1)
    folder = run.folder("t-0")
    for index in range(4):
        folder.add_turn(turn(index))
    with locked(run.path):
        page.goto(f"{shown(Site([run.path]))}/{RUNNING}")
        expect(page.locator("#now")).to_contain_text("4 turns so far")
        page.evaluate("for (const one of document.querySelectorAll('.call')) one.open = true")
        page.evaluate("scrollTo(0, 200); document.querySelector('#turn-1').dataset.mine = 'kept'")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#turn-1 .reply'))")
        expect(page.locator("#turn-3 .call")).to_contain_text("no result")
        folder.add_turn(turn(4))
        folder.add_turn(turn(5))
        expect(page.locator(".turn")).to_have_count(6)
        expect(page.locator("#turn-3 .call[open]")).to_contain_text("result 3")
        expect(page.locator("#turn-1[data-mine=kept] .call[open]")).to_have_count(1)
        assert page.evaluate("getSelection().toString()") == "reply 1"
        assert page.evaluate("scrollY") == 200
        expect(page.locator("#now")).to_contain_text("6 turns so far")
        page.locator("#newer").click()
        expect(page.locator("#turn-5")).to_be_in_viewport()
        folder.put_patch(b"diff --git a/x b/x\n@@ -1 +1 @@\n+a\n")
        folder.close()
        run.append(make_rollout("t", 0, "resolved", turns=6))
        expect(page.locator("h1 .resolved")).to_have_text("resolved")
        expect(page.locator("#patch .added")).to_have_text("+a")
        expect(page.locator("#turn-1[data-mine=kept]")).to_have_count(1)
        expect(page.locator("[data-follow]")).to_have_count(0)


@pytest.mark.slow
def test_rollouts_are_walked_by_links_and_keys(page: Page, shown: Shown, training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/rollout/moto-7365-g0-1/")
    expect(page.locator("#test-log pre")).to_be_hidden()
    page.get_by_role("link", name="in the test log").first.click()
    expect(page.locator("#test-log .failing").first).to_be_in_viewport()
    page.get_by_role("link", name="attempt 2").click()
    page.wait_for_url("**/moto-7365-g0-2/")
    for letter, url in zip("logr", ("ledger/", "moto-7365-g0-2/", "group/g0/", "run/train/"), strict=True):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**/{url}")


@pytest.mark.slow
def test_place_of_a_search_is_unfolded_and_marked(page: Page, shown: Shown, training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    page.locator("header [name=q]").fill("SED -n 10,19P")
    page.keyboard.press("Enter")
    page.locator(".hits .snippet a").first.click()
    expect(page.locator(".turn:target .call[open]")).to_contain_text("sed -n 10,19p")
    assert page.evaluate("CSS.highlights.get('found').size") == 2  # in the call's title and its arguments


@pytest.mark.slow
def test_two_runs_are_compared_from_the_list(
    page: Page, shown: Shown, training: Path, tmp_path: Path
) -> None:
    lines = [orjson.loads(line) for line in (training / "rollouts.jsonl").read_bytes().splitlines()]
    other = make_run(tmp_path / "other")
    for line in lines[:4]:
        line |= {"outcome": "unresolved", "reward": 0.0}
    (other.path / "rollouts.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    page.goto(shown(Site([training, other.path])))
    page.locator("#compare [name=first]").select_option("train")
    page.locator("#compare [name=second]").select_option("other")
    page.locator("#compare button").click()
    page.wait_for_url("**/compare/train/other/")
    expect(page.locator(".difference")).to_contain_text("points lower")
    page.goto(page.url.replace("compare/train/other", "run/other"))
    page.locator("[data-open]").select_option("train")
    page.wait_for_url("**/compare/train/other/")


@pytest.mark.slow
def test_run_has_charts_and_a_filter_that_lives_in_the_url(page: Page, shown: Shown, training: Path) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/")
    figure = page.locator("figure", has=page.get_by_role("heading", name="loss", exact=True))
    drawn = figure.locator("path.line").get_attribute("d") or ""
    places = [tuple(map(float, point.split())) for point in drawn.removeprefix("M").split("L")]
    assert len(places) == 40
    assert places[0][1] < places[1][1] < places[-1][1]  # the loss 0.1 / n falls, and y points down
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0])
    figure.locator("svg").hover()
    expect(figure.locator(".read")).to_contain_text(":")
    expect(page.locator(".row:visible")).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("dask")
    expect(page.locator(".row:visible")).to_have_count(1)
    assert page.url.endswith("?text=dask")
    page.reload()
    expect(page.locator(".row:visible")).to_have_count(1)


@pytest.mark.slow
def test_search_begins_with_a_key(page: Page, shown: Shown, training: Path) -> None:
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


@pytest.mark.slow
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
