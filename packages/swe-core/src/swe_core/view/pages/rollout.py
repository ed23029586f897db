"""The page of a rollout: transcript, patch, tests, the agent's output, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swe_core.api.records import Retried
from swe_core.report.facts import why
from swe_core.report.finished import RolloutHead
from swe_core.rollout.run_directory import FOLDERS, PATCH_FILE, TRANSCRIPT_FILE, TURNS_FILE
from swe_core.view.diff import OPEN_LINES, patch_at
from swe_core.view.excerpts import Excerpts, tail_of
from swe_core.view.graded import graded_tests
from swe_core.view.render import Page
from swe_core.view.site import NotShown, ShownRun, Site
from swe_core.view.timing import timing_of
from swe_core.view.transcript import read_events, shown_events, shown_turns

AGENT_LOG = "agent.log"
MAX_OUTPUT = 60_000
"""Bytes shown of the agent's output: its end."""
MAX_EVENTS = 600
"""Events that are shown of an agent's own transcript."""
_LIVE_FILES = (TURNS_FILE, TRANSCRIPT_FILE, AGENT_LOG, PATCH_FILE)


def page(site: Site, query: Mapping[str, str], name: str, rollout_id: str) -> Page:
    """Return the page of a rollout."""
    run = site.run(name)
    head = run.head(rollout_id)
    folder = run.path / FOLDERS / rollout_id
    version = "" if head is not None or run.state() != "running" else _version(folder)
    return Page("rollout.html", partial(_values, run, rollout_id, head, folder, None, version), version)


def page_of_try(site: Site, query: Mapping[str, str], name: str, rollout_id: str, folder: str) -> Page:
    """Return the page of a try that a failing sandbox ended, so that the rollout ran again."""
    run = site.run(name)
    head = run.head(rollout_id)
    tries = run.heads.record(head).retried if head is not None else ()
    lost = next((one for one in tries if one.folder == folder), None)
    if lost is None:
        raise NotShown(f"The rollout {rollout_id!r} has no try {folder!r}.")
    path = run.path / FOLDERS / rollout_id / folder
    return Page("rollout.html", partial(_values, run, rollout_id, head, path, lost, ""))


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the run and the id of each rollout."""
    for run in map(site.run, site.runs):
        for head in run.heads.all():
            yield run.name, head.id
        for rollout_id in run.unfinished():
            yield run.name, rollout_id


def paths_of_tries(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the run, the id and the folder of each try that was lost."""
    for run in map(site.run, site.runs):
        for head in run.heads.all():
            if head.retried:
                for one in run.heads.record(head).retried:
                    if one.folder is not None:
                        yield run.name, head.id, one.folder


def _values(
    run: ShownRun, rollout_id: str, head: RolloutHead | None, folder: Path, lost: Retried | None, version: str
) -> dict[str, Any]:
    record = run.heads.record(head) if head is not None else None
    turns = run.directory.turns(rollout_id, "" if lost is None else folder.name)
    excerpts = Excerpts()
    events, unread = read_events(folder / TRANSCRIPT_FILE, run.path)
    shown = shown_turns(turns, record.started_at if record and lost is None else None, excerpts)
    width, folded = (300, 3_000) if turns else (4_000, 40_000)  # beside turns, it repeats them
    grade = record.grade if record is not None and lost is None else None
    tests, log = graded_tests(grade, folder, run.path) if grade is not None else ([], None)
    group = head.group if head is not None else None
    before, after = _neighbours(run, head)
    return {
        "title": rollout_id,
        "run": run,
        "id": rollout_id,
        "head": head,
        "record": record,
        "lost": lost,
        "why": why(record) if record is not None and lost is None else "",
        "group": group,
        "before": before,
        "after": after,
        "here": "rollout",
        "folder": folder,
        "turns": shown,
        "events": shown_events(events[:MAX_EVENTS], excerpts, width, folded),
        "more_events": max(0, len(events) - MAX_EVENTS),
        "unread": unread,
        "patch": patch_at(folder / PATCH_FILE, run.path),
        "open_lines": OPEN_LINES,
        "grade": grade,
        "tests": tests,
        "test_log": log,
        "output": tail_of(folder / AGENT_LOG, run.path, MAX_OUTPUT),
        "timing": timing_of(record if lost is None else None, turns),
        "has_tokens": any(turn.tokens is not None for turn in turns),
    }


def _neighbours(run: ShownRun, head: RolloutHead | None) -> tuple[RolloutHead | None, RolloutHead | None]:
    """Return the attempts of its group before and after a rollout."""
    if head is None:
        return None, None
    group: Sequence[RolloutHead] = sorted(run.groups()[head.group], key=lambda one: (one.attempt, one.id))
    at = next(place for place, one in enumerate(group) if one.id == head.id)
    return group[at - 1] if at else None, group[at + 1] if at + 1 < len(group) else None


def _version(folder: Path) -> str:
    """Return what changes whenever a file of a running rollout does."""
    return ":".join(str(_size(folder / name)) for name in _LIVE_FILES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
