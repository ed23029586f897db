"""The page of a rollout: what is on it, for finished, lost, running and hostile ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swe_core.api.agent import AgentEvent
from swe_core.api.grader import Grade, Suspicion, Tampering
from swe_core.api.records import Failure, Retried
from swe_core.system.files import locked
from swe_core.view.routes import all_paths
from swe_core.view.site import NotShown, Site
from swe_testing.records import make_rollout, make_run, make_turn

from .html import html, words

EVIL = "</pre><script>alert(1)</script>\x1b[31m\u202e\x00"


def test_page_has_head_tests_patch_and_transcript(training: Path) -> None:
    page = html(Site([training]), "run", "train", "rollout", "moto-7365-g0-1")
    text = words(page)
    assert "moto-7365-g0-1 unresolved" in text
    assert "fail to pass 1 of 2" in text
    assert "tests/test_offset.py::test_minutes at tests/test_offset.py:14" in text
    assert "E AssertionError: assert 120 == 150" in text
    place = re.search(r'href="#(log-\d+)"', page)
    assert place is not None
    assert f'id="{place[1]}"' in page
    assert "src/offset.py" in text
    assert all(f'id="turn-{number}"' in page for number in range(5))
    assert "starts a new training row: retokenised" in text
    assert "bash sed -n 0,9p src/offset.py" in text
    assert 'href="../../../../run/train/rollout/moto-7365-g0-1/ledger/"' in page
    lost = words(html(Site([training]), "run", "train", "rollout", "moto-7365-g0-3"))
    assert "not trained: undelivered" in lost


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = run.folder("t-0")
    call = {"id": "a", "type": "function", "function": {"name": EVIL, "arguments": f'{{"{EVIL}": 1}}'}}
    reply = {"role": "assistant", "content": EVIL, "tool_calls": [call], "reasoning": EVIL}
    asked = [{"role": EVIL, "content": EVIL}]
    folder.add_turn(make_turn(0, messages=asked, reply=reply, error=EVIL, auxiliary=EVIL))
    folder.add_event(AgentEvent(kind="tool_call", text=EVIL, tool=EVIL))
    folder.add_output(EVIL.encode() + b"\xff\n" + b"x" * 10_000_000)
    folder.put_patch(f"diff --git a/{EVIL} b/{EVIL}\n@@ -1 +1 @@\n+{EVIL}\n".encode() + b"\xfe")
    folder.put("test.log", EVIL.encode() * 10 + b"\xff")
    folder.close()
    grade = Grade(
        resolved=False, reason=EVIL, fail_to_pass={EVIL: "FAILED"}, unchecked=EVIL,
        tampering=(Tampering(kind="tests", path=EVIL, done=EVIL),),
        suspicious=(Suspicion(kind=EVIL, name=EVIL, path=EVIL, line=1),),
    )  # fmt: skip
    run.append(make_rollout(outcome="unresolved", grade=grade))
    page = html(Site([run.path]), "run", "run", "rollout", "t-0")
    assert "<script>alert" not in page
    assert not set("\x1b\u202e\x00") & set(page)
    assert page.count("&lt;U+202E&gt;") >= 12
    assert len(page) < 300_000


def test_agent_without_turns_shows_its_own_transcript(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = run.folder("t-0")
    for kind, text in (("text", "I look."), ("tool_call", '{"command": "ls"}'), ("tool_result", "x.py")):
        folder.add_event(AgentEvent.model_validate({"kind": kind, "text": text, "tool": "bash"}))
    folder.close()
    run.append(make_rollout())
    page = html(Site([run.path]), "run", "run", "rollout", "t-0")
    assert 'id="event-2"' in page
    assert "calls bash ls" in words(page)
    assert "as the agent reported them" not in page


def test_lost_try_is_linked_and_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = run.folder("t-0")
    folder.add_turn(make_turn(0, reply={"role": "assistant", "content": "the lost one"}))
    folder.archive_attempt("retried-1")
    folder.add_turn(make_turn(0, reply={"role": "assistant", "content": "the other one"}))
    folder.close()
    died = Failure(boundary="sandbox", type="E", message="it died")
    lost = Retried(failure=died, folder="retried-1", seconds=3)
    run.append(make_rollout(retried=(lost,)))
    site = Site([run.path])
    page = html(site, "run", "run", "rollout", "t-0")
    assert "../../../../run/run/rollout/t-0/try/retried-1/" in page
    assert "the other one" in page
    assert "the lost one" not in page
    again = html(site, "run", "run", "rollout", "t-0", "try", "retried-1")
    assert "the lost one" in again
    assert "sandbox: it died" in words(again)
    assert ("run", "run", "rollout", "t-0", "try", "retried-1") in list(all_paths(site))
    with pytest.raises(NotShown, match="has no try"):
        html(site, "run", "run", "rollout", "t-0", "try", "..")


def test_running_rollout_follows_only_what_is_new(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", planned=2)
    folder = run.folder("t-0")
    folder.add_turn(make_turn(0, reply={"role": "assistant", "content": "first"}))
    site = Site([run.path])
    with locked(run.path):
        page = html(site, "run", "run", "rollout", "t-0")
        assert "It runs. This page follows it: 1 turn so far" in words(page)
        assert 'id="follow" data-follow="' in page
        assert '<main id="live">' in page  # which is never exchanged as a whole
        assert '["t-0","running",0]' in html(site, "run", "run")
    page = html(site, "run", "run", "rollout", "t-0")
    assert "It has begun and is not finished" in words(page)
    assert "data-follow" not in page
    folder.close()
