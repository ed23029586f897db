"""Search in transcripts and patches."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from swe_core.api.agent import AgentEvent
from swe_core.view import searching
from swe_core.view.searching import PARTS, search, write_index
from swe_core.view.site import NotShown, Site
from swe_testing.records import make_rollout, make_run, make_turn

from .html import html, words


@pytest.fixture
def site(tmp_path: Path) -> Site:
    for name in ("one", "two"):
        run = make_run(tmp_path / name)
        for number in range(3):
            folder = run.folder(f"t-{number}")
            if number < 2:
                arguments = '{"command": "grep \\"needle\\" ."}'
                call = {"id": "a", "function": {"name": "bash", "arguments": arguments}}
                text = f"Find {name} {number}.\nIt is a NEEDLE in hay: Ünïcode"
                reply = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
                folder.add_turn(make_turn(0, messages=[{"role": "user", "content": text}], reply=reply))
            folder.add_event(AgentEvent(kind="text", text="needle and said only by the agent"))
            folder.put_patch(b"diff --git a/x b/x\n@@ -1 +1 @@\n+a needle \xff\n")
            folder.close()
            if number:
                run.append(make_rollout("t", number))
    return Site([tmp_path])


def test_search_finds_places_in_any_case(site: Site) -> None:
    results = search(site, "Needle", PARTS, None)
    assert [(one.run, one.rollout_id) for one in results.found] == [
        (run, rollout) for run in ("one", "two") for rollout in ("t-1", "t-2", "t-0")
    ]
    first, events = results.found[0], results.found[1]
    hits = [("turn-0", "turn 0, user"), ("turn-0", "turn 0, calls bash"), ("patch", "patch")]
    assert [(hit.anchor, hit.what) for hit in first.hits] == hits
    assert (first.hits[0].before, first.hits[0].match) == ("Find one 1. ⏎ It is a ", "NEEDLE")
    assert [hit.anchor for hit in events.hits] == ["event-0", "patch"]
    assert (results.searched, results.left, results.unreadable) == (6, 0, 0)
    found = search(site, "needle", ["patch"], "two").found
    assert {one.run for one in found} == {"two"}
    assert {hit.anchor for one in found for hit in one.hits} == {"patch"}
    with pytest.raises(NotShown):
        search(site, "needle", PARTS, "none")


def test_special_characters_are_found(site: Site) -> None:
    # Arguments are found as the page has them, not the file.
    queries = {"ünÏcode": 4, '"needle"': 4, "command: grep": 4, "1.\nit": 2, "nothing": 0, "only by": 6}
    assert {query: len(search(site, query, PARTS, None).found) for query in queries} == queries


def test_search_goes_on_where_it_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search(site, "needle", PARTS, None, seconds=0)
    assert (first.searched, first.left, first.place) == (1, 5, 1)
    second = search(site, "needle", PARTS, None, first.place)
    assert second.found[0].rollout_id == "t-2"
    assert second.searched == 5
    monkeypatch.setattr(searching, "MAX_ROLLOUTS", 2)
    assert search(site, "needle", PARTS, None).place == 2
    monkeypatch.undo()
    file = site.runs["one"].path / "rollouts" / "t-1" / "turns.jsonl"
    file.write_bytes(b'{"needle": 1}\n')
    results = search(site, "needle", PARTS, None)  # a damaged rollout is counted
    assert results.unreadable == 1
    assert len(results.found) == 5


def test_page_has_links_to_the_places(site: Site) -> None:
    page = html(site, "search", q="needle")
    assert 'href="../run/one/rollout/t-1/?q=needle#turn-0"' in page
    assert "<mark>NEEDLE</mark>" in page
    assert "6 rollouts have it, of 6 searched rollouts." in words(page)
    assert 'value="&lt;b&gt;"' in html(site, "search", q="<b>")
    for query in ({}, {"q": " "}, {"from": "x"}, {"q": "", "in": "odd"}):
        assert "Upper and lower case are the same." in html(site, "search", **query)
    for place in ("-1", "1e9", "99999999999999999999"):
        assert "searched rollout" in html(site, "search", q="needle", **{"from": place})


def test_index_has_all_texts_within_its_limits(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_index(site, tmp_path)
    assert (tmp_path / "shards.js").read_text() == "searchShards(1, 0);\n"
    text = (tmp_path / "0.js").read_bytes()
    texts = orjson.loads(text.removeprefix(b"searchShard(").removesuffix(b");\n"))
    link = "../run/one/rollout/t-1/index.html#patch"
    assert [link, "one", "t-1", "patch", "patch"] in [one[:5] for one in texts]
    monkeypatch.setattr(searching, "SHARD", 1)
    monkeypatch.setattr(searching, "MAX_SHARDS", 2)
    write_index(site, tmp_path)
    assert (tmp_path / "shards.js").read_text() == "searchShards(2, 4);\n"
