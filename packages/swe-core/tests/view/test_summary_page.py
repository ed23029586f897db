"""`swe-core report --html`: one page of a run that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import Mock
from xml.etree.ElementTree import Element, TreeBuilder

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.engine import Usage
from swe_core.api.records import Failure, Phases, Retried, SandboxTime
from swe_core.cli.report import report
from swe_core.report.training_metrics import read_metrics
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_core.view.curves import MAX_METRICS, MAX_POINTS, rolling_mean, thin
from swe_core.view.summary_page import MAX_ROWS
from swe_testing.records import make_rollout

HOSTILE = "<script>alert(1)</script><img src=https://example.com/x onerror=alert(1)>\"'&amp;]]>-->"
HOSTILE_ID = HOSTILE.replace("/", "")  # an id is a part of a path
VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source"}


class Parser(HTMLParser):
    """Reads a page strictly: every element that is opened is closed, in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.builder, self.open = TreeBuilder(), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        self.builder.data(data)


def parsed(text: str) -> Element:
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser.builder.close()


def text_of(element: Element | None) -> str:
    assert element is not None
    return " ".join(" ".join(element.itertext()).split())


class Run:
    """A run directory that is filled as a test needs it."""

    def __init__(self, path: Path, planned: int | None = None, notes: tuple[str, ...] = ()) -> None:
        info = new_run_info({"swe-core": "0.1.0"}, {"run": {"tasks": "these"}}, planned, notes)
        self.directory = RunDirectory.create(path, info, Redactor())
        self.page = path.parent / "page.html"

    def rollouts(self, *rollouts: Mapping[str, Any]) -> None:
        lines = []
        for number, given_fields in enumerate(rollouts):
            start = self.directory.info.created_at + timedelta(seconds=number)
            fields: dict[str, Any] = {"seconds": 10.0, "started_at": start, **given_fields}
            rollout = make_rollout(fields.pop("task_id", f"task-{number}"), **fields)
            lines.append(rollout.model_dump_json() + "\n")
        (self.directory.path / "rollouts.jsonl").write_text("".join(lines))

    def metrics(self, *steps: tuple[int, Mapping[str, Any]], end: str = "") -> None:
        time = datetime.now(UTC).isoformat()
        lines = [json.dumps({"step": step, "time": time, "values": values}) + "\n" for step, values in steps]
        (self.directory.path / "metrics.jsonl").write_text("".join(lines) + end)

    def report(self, *options: str) -> Result:
        return CliRunner().invoke(report, [str(self.directory.path), "--html", str(self.page), *options])

    def read(self) -> Element:
        done = self.report()
        assert (done.exit_code, done.output) == (0, f"Page: {self.page}\n")
        return parsed(self.page.read_text())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def figure(page: Element, title: str) -> Element:
    (found,) = (one for one in page.iter("figure") if text_of(one.find("h3")) == title)
    return found


def drawn(figure: Element) -> dict[str, Any]:
    """Return what the script draws into a figure."""
    (script,) = figure.iterfind(".//script[@class='chart']")
    found: dict[str, Any] = json.loads(script.text or "")
    return found


def points(figure: Element, look: str = "line") -> tuple[list[float], list[float]]:
    """Return x and y of the only line with this look."""
    (line,) = (line for line in drawn(figure)["lines"] if line["look"] == look)
    return line["x"], line["y"]


def rows_of(page: Element) -> list[list[str]]:
    rows = page.iterfind(".//table[@id='rollouts']/tbody/tr")
    return [[text_of(cell) for cell in row] for row in rows]


def test_page_has_the_facts_of_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", planned=9, notes=("Not what any model can do.",))
    phases = Phases(open=1.0, agent=100.0, grade=2.5)
    known = {"purpose": "agent", "flavor": "cpu-<basic>", "sandboxes": 1, "seconds": 100.0}
    used = [SandboxTime(**known), SandboxTime(purpose="grade", flavor=None, sandboxes=2, seconds=10.0)]
    died = Failure(boundary="sandbox", type="SandboxDied", message="it is gone")
    usage = Usage(completion_tokens=70)
    lost = Retried(failure=died, folder="retried-1", seconds=5.0, usage=usage)
    run.rollouts(
        {"usage": Usage(prompt_tokens=120_000, completion_tokens=200), "turns": 3, "phases": phases,
         "sandboxes": used},
        {"outcome": "unresolved", "turns": 4, "ended_by": "turns", "phases": phases, "sandboxes": used[:1],
         "retried": [lost]},
        {"outcome": "unresolved"},
        {"outcome": "error", "failure": died},
        {"outcome": "error", "failure": died.model_copy(update={"message": "it is gone too"})},
        {"outcome": "cancelled", "cancelled_as": "stale"},
    )  # fmt: skip
    page = run.read()
    tiles = {text_of(tile.find("dt")): text_of(tile.find("dd")) for tile in next(page.iter("dl"))}
    assert tiles == {
        "Resolved rate": "33.3%",
        "pass@1 over 3 tasks": "33.3% 6.1% – 79.2%",
        "Finished": "6 of 9",
        **{"Tasks": "6", "Resolved": "1", "Unresolved": "2", "Error": "2", "Cancelled": "1", "Turns": "7"},
        **{"Prompt tokens": "120,000", "Completion tokens": "200", "Sandbox time": "4 min"},
    }
    text = text_of(page)
    for said in (
        "Agent a; sandbox s; engine e; model m.",
        "Note: Not what any model can do.",
        "unresolved 2 error 2 cancelled 1 … cancelled as stale 1",
        "agent 2 100.0 s 100.0 s 100.0 s 3 min",
        "s – 2 10.0 s s cpu-<basic> 2 3 min",
        "1 rollout run again after the sandbox failed: 1 try, 5.0 s and 70 completion tokens were lost.",
        "Errors by boundary (sandbox 2)",
        "sandbox SandboxDied 2 it is gone",
        "swe-core 0.1.0",
        '"tasks": "these"',
    ):
        assert said in text
    assert rows_of(page)[1:2] == [
        ["task-1", "0", "unresolved", "0", "4", "0", "0", "10.0",
         "the agent's run was ended by its budget of turns; run again after the sandbox failed (it is gone)"],
    ]  # fmt: skip
    assert "Overall mean: 20,000." in text_of(figure(page, "Prompt tokens"))


def test_curves_over_rollouts_match_the_data(run: Run) -> None:
    """In the order of time, and the rate of those with a verdict alone."""
    outcomes = ["resolved", "error", "unresolved", "unresolved", "resolved", "resolved", "resolved"]
    seconds = [10, 20, 30, 40, 50, 60, 70]
    rollouts = [
        {"outcome": outcome, "turns": number * number, "started_at": run.directory.info.created_at,
         "seconds": seconds[number]}
        for number, outcome in enumerate(outcomes)
    ]  # fmt: skip
    run.rollouts(*reversed(rollouts))
    page = run.read()
    turns = [number**2 for number in range(7)]
    assert points(figure(page, "Turns"), "dots") == (pytest.approx(seconds), turns)
    last_five = [fmean(turns[max(0, end - 5) : end]) for end in range(1, 8)]
    assert points(figure(page, "Turns")) == (pytest.approx(seconds), pytest.approx(last_five))
    rate = [1, 1 / 2, 1 / 3, 2 / 4, 3 / 5, 3 / 5]
    found = points(figure(page, "Resolved rate"))
    assert found == (pytest.approx([10, 30, 40, 50, 60, 70]), pytest.approx(rate))
    assert "Overall mean: 66.7%" in text_of(figure(page, "Resolved rate"))
    legend = [line["label"] for line in drawn(figure(page, "Outcomes"))["lines"]]
    assert legend == ["resolved", "unresolved", "error"]


def test_metrics_are_grouped_by_prefix_and_ordered(run: Run) -> None:
    names = ("zoo/b", "perf/step_s", "epoch", "perf/mfu", "rollout/resolved_rate", "loss", "zoo/a", "reward")
    run.metrics((1, dict.fromkeys(names, 1.0)))
    sections = {
        text_of(details.find("summary")): [text_of(one.find("h3")) for one in details.iter("figure")]
        for details in run.read().iterfind(".//details[@open]")
        if details.find(".//figure") is not None
    }
    assert list(sections.items()) == [
        ("Training", ["reward", "loss", "epoch"]),
        ("Rollouts while training", ["rollout/resolved_rate"]),
        ("Speed", ["perf/step_s", "perf/mfu"]),
        ("zoo", ["zoo/a", "zoo/b"]),
    ]


def test_long_curves_have_a_rolling_mean(run: Run) -> None:
    values = [math.sin(step) for step in range(300)]
    run.metrics(*((step, {"loss": value}) for step, value in enumerate(values)))
    chart = figure(run.read(), "loss")
    assert points(chart, "faint") == (list(range(300)), values)
    means = [fmean(values[max(0, end - 6) : end]) for end in range(1, 301)]
    assert points(chart)[1] == pytest.approx(means)
    assert "the bold line is the mean of the last 6" in text_of(chart)


@given(st.integers(0, 3000), st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_thin_keeps_ends_and_extremes(count: int, seed: int, window: int) -> None:
    chance = random.Random(seed)
    y = [chance.gauss(0, 1) / (chance.random() + 1e-6) for _ in range(count)]
    thin_x, thin_y = thin(range(count), y)
    assert len(thin_x) <= MAX_POINTS
    assert [y[int(place)] for place in thin_x] == thin_y
    assert thin_x == sorted(set(thin_x))
    if len(y) <= MAX_POINTS:
        assert len(thin_y) == len(y)
    else:
        assert (thin_x[0], thin_x[-1], min(thin_y), max(thin_y)) == (0, len(y) - 1, min(y), max(y))
    some = y[:100]
    means = [fmean(some[max(0, end - window) : end]) for end in range(1, len(some) + 1)]
    assert rolling_mean(some, window) == pytest.approx(means, abs=1e-6)


def test_page_has_no_external_reference_and_one_script(run: Run) -> None:
    """With hostile names of tasks, failures and metrics."""
    run.rollouts(
        {"task_id": HOSTILE_ID, "agent": HOSTILE, "sandbox": HOSTILE, "model": HOSTILE, "outcome": "error",
         "failure": Failure(boundary="agent", type=HOSTILE, message=HOSTILE)},
        {"outcome": "cancelled", "cancelled_as": HOSTILE},
    )  # fmt: skip
    run.metrics((1, {HOSTILE: 1.0, f"{HOSTILE}/x": 2.0, "reward": 1.0}), (2, {HOSTILE: 2.0}))
    page = run.read()
    elements = list(page.iter())
    assert not {"img", "link", "iframe", "object", "base"} & {one.tag for one in elements}
    (script,) = (one for one in page.iter("script") if "type" not in one.attrib)
    for element in elements:
        for name, value in element.attrib.items():
            assert not name.startswith("on"), element
            assert "//" not in value, element
            assert all(url.startswith("#") for url in re.findall(r"url\((.*?)\)", value))
    (sheet,) = page.iter("style")
    assert not re.search(r"//|url|@import", sheet.text or "")
    (policy,) = page.iterfind(".//meta[@http-equiv='Content-Security-Policy']")
    allowed = {
        kind: "sha256-" + base64.b64encode(hashlib.sha256((one.text or "").encode()).digest()).decode()
        for kind, one in (("style", sheet), ("script", script))
    }
    assert policy.attrib["content"] == (
        f"default-src 'none'; style-src '{allowed['style']}'; script-src '{allowed['script']}'"
    )
    row = rows_of(page)[0]
    assert row[0] == HOSTILE_ID
    assert row[-1] == f"agent: {HOSTILE}"
    assert drawn(figure(page, HOSTILE))["title"] == HOSTILE


def test_torn_and_damaged_metrics_lines_are_left_out(run: Run) -> None:
    """A torn last line is left out silently, damaged lines with a note."""
    run.metrics((1, {"reward": 1.0}), (2, {"reward": 2.0}), end='{"step": 3}\n[]\n{"step": 4, "time": "20')
    page = run.read()
    assert points(figure(page, "reward")) == ([1, 2], [1.0, 2.0])
    assert "2 damaged lines of metrics.jsonl are left out." in text_of(page)
    run.metrics((1, {"reward": 1.0}), end='{"step": 4, "time": "20')
    assert "damaged" not in text_of(run.read())
    run.metrics(end='{"step": 4, "time": "20')
    assert "damaged" not in text_of(run.read())


def test_non_finite_values_are_left_out(run: Run) -> None:
    nan = float("nan")
    values = [1.0, nan, 2.0, None, float("inf"), -float("inf"), 1e300, 3.0]
    run.metrics(*((step, {"loss": value, "kl": nan}) for step, value in enumerate(values)))
    page = run.read()
    loss = figure(page, "loss")
    assert points(loss) == ([0, 2, 7], [1.0, 2.0, 3.0])
    assert "not finite at 5 steps, first at step 1" in text_of(loss)
    assert text_of(figure(page, "kl")) == "kl not finite at 8 steps, first at step 0"
    assert figure(page, "kl").find(".//script") is None


def test_metrics_of_lost_steps_are_left_out(run: Run) -> None:
    """A run resumed from a checkpoint logs some steps again; the later lines count."""
    run.metrics(
        (1, {"loss": 1.0}), (2, {"loss": 2.0, "kl": 0.5}), (3, {"loss": 50.0}),
        (4, {"loss": 50.0, "kl": 9.0}), (3, {"loss": 3.0}), (3, {"loss": 4.0}),
    )  # fmt: skip
    metrics = read_metrics(run.directory.path)
    assert metrics is not None
    found = {one.name: (list(one.steps), list(one.values)) for one in metrics.metrics}
    assert found == {"loss": ([1, 2, 3], [1, 2, 4]), "kl": ([2], [0.5])}
    assert metrics.last_step == 3


@pytest.mark.slow
def test_page_of_a_big_run_is_bounded(run: Run) -> None:
    message = "x" * 5000
    failure = Failure(boundary="sandbox", type="SandboxDied", message=message)
    failed = {"outcome": "error", "failure": failure}
    run.rollouts(*(failed if number % 3 else {"turns": number} for number in range(5000)))
    names = [f"part/{number:03}" for number in range(MAX_METRICS + 7)]
    run.metrics(*((step, dict.fromkeys(names, step % 17 + 0.5)) for step in range(1000)))
    page = run.read()
    assert run.page.stat().st_size < 3_000_000
    shown = rows_of(page)
    assert len(shown) == MAX_ROWS
    assert {row[0] for row in shown} == {f"task-{number}" for number in range(5000 - MAX_ROWS, 5000)}
    assert f"The table has the 500 that finished last; {5000 - MAX_ROWS:,} are left out." in text_of(page)
    assert "7 further names are left out." in text_of(page)
    assert message not in text_of(page)
    assert len(points(figure(page, "part/000"), "faint")[0]) <= MAX_POINTS
    assert len(points(figure(page, "Turns"), "dots")[0]) <= MAX_POINTS
    assert "one in 13" in text_of(figure(page, "Turns"))


def test_page_is_replaced_atomically_or_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.page.write_text("before")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    done = run.report()
    assert "No space left on device" in str(done.exception)
    assert run.page.read_text() == "before"
    assert {path.name for path in run.page.parent.iterdir()} == {"page.html", "run"}
    monkeypatch.undo()
    for where in ("missing/page.html", "run", "/dev/null"):
        run.page = run.page.parent / where
        done = run.report()
        assert str(done.exception).startswith(f"the page cannot be written to {str(run.page)!r}")
