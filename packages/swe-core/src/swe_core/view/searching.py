"""Search in transcripts and patches: a scan of the files, limited in time, and an index for static copies."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import orjson

from swe_core.api.event_lines import as_mapping
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import FOLDERS, PATCH_FILE, TRANSCRIPT_FILE, TURNS_FILE
from swe_core.system.files import open_below
from swe_core.system.printable import one_line, printable
from swe_core.view.render import Links
from swe_core.view.site import ShownRun, Site
from swe_core.view.transcript import calls_of, content_of, read_events, readable, reasoning_of

TRANSCRIPT, PATCH = "transcript", "patch"
PARTS = (TRANSCRIPT, PATCH)
"""What is searched."""
MAX_SECONDS = 1.0
"""How long one search may take."""
MAX_ROLLOUTS = 50
"""Rollouts that one page of results has."""
MAX_HITS = 3
"""Places of one rollout that are shown."""
MAX_FILE = 64_000_000
"""Bytes that are read of one file."""
MAX_QUERY = 200
INDEXED = 20_000
"""Characters of one text in the index of a static copy."""
SHARD = 1_000_000
"""Characters of one file of the index, and the number of such files."""
MAX_SHARDS = 64
_BEFORE, _AFTER = 60, 120
_PLAIN = re.compile(r' *(?:["\\:,]|[^ -~])+ *')
"""Splits a query into parts that stand in a file as they are. JSON writes other characters differently, and
the arguments of calls are shown with other punctuation."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that contains the query.

    Args:
        anchor: Of the place on the page of the rollout.
        what: The place, in words.
        before, match, after: The text there.
    """

    anchor: str
    what: str
    before: str
    match: str
    after: str


@dataclass(slots=True)
class Found:
    """The hits of one rollout, and how many more there are."""

    run: str
    rollout_id: str
    hits: list[Hit] = field(default_factory=list)
    more: int = 0


@dataclass(frozen=True, slots=True)
class Results:
    """What a search found.

    Args:
        searched: Rollouts that were read, from the first one of this search.
        left: Rollouts after them, which were not read.
        place: Number of the rollout at which a next search begins.
        unreadable: Rollouts whose files are damaged.
    """

    found: Sequence[Found]
    searched: int
    left: int
    place: int
    unreadable: int


def search(
    site: Site,
    query: str,
    parts: Collection[str],
    run: str | None,
    place: int = 0,
    seconds: float = MAX_SECONDS,
) -> Results:
    """Return where `query` occurs, in any case.

    Args:
        parts: Which of `PARTS` are searched.
        run: The run that is searched; None for all.
        place: Number of the rollout to begin with.
        seconds: Time after which it stops.

    Raises:
        NotShown: There is no such run.
        UsageError: Records of a run are damaged.
    """
    rollouts = list(_rollouts(site, run))
    end = time.monotonic() + seconds
    pattern = re.compile(re.escape(query), re.IGNORECASE)
    plain = max(_PLAIN.split(query), key=len).lower().encode()
    found: list[Found] = []
    searched = unreadable = 0
    for shown, rollout_id in islice(rollouts, place, None):
        if searched and (len(found) >= MAX_ROLLOUTS or time.monotonic() > end):
            break
        searched += 1
        one = Found(shown.name, rollout_id)
        try:
            for anchor, what, text in _texts(shown, rollout_id, parts, plain, pattern):
                for match in pattern.finditer(text):
                    if len(one.hits) < MAX_HITS:
                        one.hits.append(_hit(anchor, what, text, match))
                    else:
                        one.more += 1
        except UsageError:
            unreadable += 1
        if one.hits:
            found.append(one)
    left = max(0, len(rollouts) - place - searched)
    return Results(found, searched, left, place + searched, unreadable)


def write_index(site: Site, folder: Path) -> None:
    """Write the index of a static copy into the folder of its search page.

    `shards.js` calls `searchShards(files, left_out)`: the number of files, and of rollouts that are in none.
    Each file, `0.js` and so on, calls `searchShard(texts)`, where a text is a link to its place, a run, a
    rollout, the part, the place in words, and the text.

    Raises:
        OSError: It cannot be written.
        UsageError: Records of a run are damaged.
    """
    links = Links(1, "index.html")
    shards, size, left_out = 0, 0, 0
    texts: list[tuple[str, ...]] = []

    def write() -> None:
        nonlocal shards, size
        (folder / f"{shards}.js").write_bytes(b"searchShard(" + orjson.dumps(texts) + b");\n")
        texts.clear()
        shards, size = shards + 1, 0

    for run, rollout_id in _rollouts(site, None):
        if shards == MAX_SHARDS:
            left_out += 1
            continue
        page = links.page("run", run.name, "rollout", rollout_id)
        for anchor, what, text in _texts(run, rollout_id, PARTS, b"", None):
            text = printable(text[:INDEXED])
            part = PATCH if anchor == PATCH else TRANSCRIPT
            texts.append((f"{page}#{anchor}", run.name, printable(rollout_id), part, what, text))
            size += len(text)
        if size >= SHARD:
            write()
    if texts:
        write()
    (folder / "shards.js").write_text(f"searchShards({shards}, {left_out});\n")


def _rollouts(site: Site, run: str | None) -> Iterator[tuple[ShownRun, str]]:
    for shown in map(site.run, site.runs if run is None else (run,)):
        for head in shown.heads.all():
            yield shown, head.id
        for rollout_id in shown.unfinished():
            yield shown, rollout_id


def _texts(
    run: ShownRun, rollout_id: str, parts: Collection[str], plain: bytes, wanted: re.Pattern[str] | None
) -> Iterator[tuple[str, str, str]]:
    """Yield the texts of a rollout: anchor, place in words, text.

    The agent's own transcript repeats the turns, so it is read only where they have nothing.

    Args:
        plain: Lower-case bytes without which a file need not be parsed.
        wanted: What is searched for; None for all texts.
    """
    folder = run.path / FOLDERS / rollout_id
    if TRANSCRIPT in parts:
        any_turn = False
        if _has(folder / TURNS_FILE, run.path, plain):
            for text in _of_turns(run, rollout_id):
                any_turn = any_turn or wanted is None or wanted.search(text[2]) is not None
                yield text
        if not any_turn and _has(folder / TRANSCRIPT_FILE, run.path, plain):
            for number, event in enumerate(read_events(folder / TRANSCRIPT_FILE, run.path)[0]):
                said = readable(event.text) if event.kind == "tool_call" else event.text
                yield f"event-{number}", event.tool or event.kind, said
    if PATCH in parts and _has(folder / PATCH_FILE, run.path, plain):
        with open_below(folder / PATCH_FILE, run.path) as file:
            yield PATCH, "patch", file.read(MAX_FILE).decode(errors="replace")


def _of_turns(run: ShownRun, rollout_id: str) -> Iterator[tuple[str, str, str]]:
    for turn in run.directory.turns(rollout_id):
        anchor, name = f"turn-{turn.index}", f"turn {turn.index}"
        for message in turn.messages:
            if message.get("role") != "assistant":  # else the reply of an earlier turn
                yield anchor, f"{name}, {message.get('role')}", content_of(message)
        reply: Mapping[str, object] = as_mapping(turn.reply)
        for text in (reasoning_of(reply), content_of(reply)):
            if text:
                yield anchor, f"{name}, reply", text
        for tool, arguments, _ in calls_of(reply):
            yield anchor, f"{name}, calls {tool}", readable(arguments)


def _has(path: Path, run: Path, plain: bytes) -> bool:
    """Return whether a file exists and contains `plain` in any case."""
    try:
        with open_below(path, run) as file:
            return not plain or plain in file.read(MAX_FILE).lower()
    except OSError:
        return False


def _hit(anchor: str, what: str, text: str, match: re.Match[str]) -> Hit:
    start, end = match.span()
    return Hit(
        anchor,
        one_line(what, 80),
        f"{'…' if start > _BEFORE else ''}{_flat(text[max(0, start - _BEFORE) : start])}",
        _flat(match[0]),
        f"{_flat(text[end : end + _AFTER])}{'…' if len(text) > end + _AFTER else ''}",
    )


def _flat(text: str) -> str:
    """Return a text on one line, with a mark for each line break and the blanks around it."""
    return re.sub(r"\s*\n\s*", " ⏎ ", printable(text)).replace("\t", " ")
