"""What one LLM call costs in the proxy between agent and engine: ours, and other people's.

    python benchmarks/interception.py [--runs N] [--no-peers] [--side S]... [--share F]

Counted is the processor time (user and system, all threads) of the proxy's process per request. Every proxy
is a process of its own on one core. An engine that has its answers ready and gives back exactly the ids that
it was sent is a second process, the client is this one, and both stay off the proxy's core where there is
another. The proxies take turns:

    swe-core, relay     the engine `openai`: chat completions in, chat completions out
    swe-core, ids       the engine `vllm`: tokenises what is new, sends ids, keeps ids and logprobs
    verifiers, relay    the same as our relay, and records a trace
    verifiers, train    tokenises and keeps ids as ours does: the fair peer of `ids`
    OpenEnv capture     keeps ids and logprobs (its level "tokens"); the engine renders and tokenises each
                        prompt whole, which is not counted, and sends it back
    litellm             a relay
    ids, DIALECT        `ids`, asked in another dialect than chat completions: Responses, Messages, Google; in
                        the cells of unrelated requests and of the session

All record what they record in a run: ours appends every turn to the rollout's folder. The requests are those
of an agent with one tool: unrelated ones of 2 KB; a session that grows by a reply and a tool result of 2 KB a
turn for 40 turns; one that grows to 74k tokens in 100 turns; unrelated ones on eight connections at once.

Streamed cells ask for streams. The engine sends an event a token, as vLLM does unasked, or one for 8 tokens
("interval 8"), as with its `--stream-interval 8`, all at once; replies have some 60 tokens, or 4,000. In the
paced cell eight connections are answered at once, a token each 20 ms, so that the proxy reads few events at a
time. There the longest delay is measured too, from when a token is sampled until its text is at the client.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _cells import CELLS, CONNECTIONS, KILOBYTES, SESSION_TURNS
from _client import Answer, Client, DialectClient, MockEngine
from _common import Report, Target, give_up, median, ratio, shown
from _dialects import DIALECTS
from _peers import LITELLM, OPENENV, VERIFIERS
from _proxies import HERE, Proxy, litellm, openenv, process, swe_core, verifiers
from _workload import (
    LONG_TURNS,
    MAX_MODEL_LEN,
    MODEL,
    long_result,
    longer_replies,
    replies,
    unrelated,
    write_tokenizer,
)
from rich.table import Table

from swe_core.errors import SweError, sentence

IDLE = 1000
REQUESTS, PARALLEL_REQUESTS, STREAMED_REQUESTS, LONG_REQUESTS = 200, 800, 100, 3
RATE, DELAY, MEMORY = "requests_per_s", "delay_ms", "idle_mb"
DELAYED = "longest delay, paced"
RELAY, IDS = "swe_core_relay", "swe_core_ids"
OF_DIALECTS = ("unrelated", "session", "streamed", "streamed_session")
"""Cells in which dialects are compared with chat completions."""
OTHERS = {f"{IDS}_{name}": name for name in DIALECTS if name != "chat"}
MOST_OF_CHAT = 1.3
LIMITS = {
    "unrelated": (RELAY, 1.0),
    "session": (IDS, 3.0),
    "long": (IDS, 8.0),
    "streamed": (IDS, 3.0),
    "streamed_session": (IDS, 4.0),
    "streamed_8": (IDS, 2.0),
    "streamed_session_8": (IDS, 3.0),
    "streamed_long": (IDS, 25.0),
}
TITLES = {
    RELAY: "swe-core, relay",
    IDS: "swe-core, ids",
    "verifiers_relay": "verifiers, relay",
    "verifiers_train": "verifiers, train",
    "openenv": "OpenEnv capture",
    "litellm": "litellm",
    **{side: f"ids, {name}" for side, name in OTHERS.items()},
}


@dataclass
class Side:
    """One proxy and what was measured of it: milliseconds of processor time per request, by cell; requests a
    second; milliseconds of the longest delay of each round; MB."""

    start: Callable[[], AbstractContextManager[Proxy]]
    dialect: str = "chat"
    proxy: Proxy | None = None
    problem: str | None = None
    cpu: dict[str, list[float]] = field(default_factory=lambda: {cell: [] for cell in CELLS})
    rate: list[float] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)
    idle: float | None = None
    tokens: int = 0

    def spend(self, cell: str, requests: int, work: Callable[[], object]) -> None:
        """Do `work`, which makes `requests` requests, and keep what it cost the proxy."""
        proxy = self._running()
        before, started = proxy.measured.cpu(), time.perf_counter()
        work()
        wall, used = time.perf_counter() - started, proxy.measured.cpu() - before
        self.cpu[cell].append(1000 * used / requests)
        if cell == "parallel":
            self.rate.append(requests / wall)

    def clients(self, count: int) -> list[Client]:
        """Agents of as many new rollouts."""
        opened = self._running().open(count)
        if self.dialect == "chat":
            return [Client(url, key) for url, key in opened]
        return [DialectClient(url, key, DIALECTS[self.dialect]) for url, key in opened]

    def hold_idle(self, count: int) -> None:
        """Register `count` rollouts that ask nothing, and keep by how much memory grows."""
        proxy = self._running()
        proxy.open(0)
        before = proxy.measured.memory()
        proxy.open(count)
        self.idle = proxy.measured.memory() - before

    def _running(self) -> Proxy:
        if self.proxy is None:
            raise SweError("it is not started")
        return self.proxy


@dataclass(frozen=True)
class Sizes:
    """How much is asked of each proxy in a round."""

    unrelated: int
    streamed: int
    long_replies: int
    session_turns: int
    long_turns: int
    long_characters: int
    parallel: int
    idle: int


def measure(side: Side, mock: MockEngine, sizes: Sizes, name: str, seed: int) -> None:
    """One cell of one side, once.

    Raises:
        SweError: A request failed.
    """
    cell = CELLS[name]
    if side.dialect != "chat" and name not in OF_DIALECTS:
        return
    mock.set(cell.replies, cell.interval, cell.pace)
    if cell.requests == "parallel":
        answers = ask_at_once(side, name, 1 if cell.pace else sizes.parallel // CONNECTIONS, seed)
        if cell.pace:
            sampled = mock.sampled()
            side.delay.append(max(answer.longest_delay(sampled) for answer in answers))
        return
    (client,) = side.clients(1)
    if cell.requests == "unrelated":
        count = sizes.streamed if cell.streamed else sizes.unrelated
        count = sizes.long_replies if cell.replies == "long" else count
        prepared = list(unrelated(count, KILOBYTES, seed, cell.streamed))
        side.spend(name, count, lambda: client.ask_all(prepared))
        return
    turns = sizes.session_turns if cell.requests == "session" else sizes.long_turns
    size = KILOBYTES if cell.requests == "session" else sizes.long_characters

    def converse() -> None:
        side.tokens = client.converse(turns, size, seed, cell.streamed)

    side.spend(name, turns, converse)


def ask_at_once(side: Side, name: str, each: int, seed: int) -> list[Answer]:
    """The answers to `each` requests on each of the connections."""
    answers: list[Answer] = []
    seeds = range(seed * CONNECTIONS, (seed + 1) * CONNECTIONS)
    bodies = [list(unrelated(each, KILOBYTES, one, CELLS[name].streamed)) for one in seeds]
    clients = side.clients(CONNECTIONS)

    def ask() -> None:
        for came in pool.map(Client.ask_all, clients, bodies):
            answers.extend(came)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        side.spend(name, each * CONNECTIONS, ask)
    return answers


def peers(report: Report, mock: str, tokenizer: Path, scratch: Path, core: set[int]) -> dict[str, Side]:
    """The peers that can be installed here."""
    sides: dict[str, Side] = {}
    for peer in (VERIFIERS, OPENENV, LITELLM):
        try:
            peer.install()
        except SweError as error:
            report.notes.append(f"{peer.name} is skipped: {sentence(error)}")
            continue
        python = peer.python
        if peer is LITELLM:
            sides["litellm"] = Side(lambda python=python: litellm(python, mock, scratch, core))
        elif peer is OPENENV:
            sides["openenv"] = Side(lambda python=python: openenv(python, mock, core))
        else:
            for mode in ("relay", "train"):
                sides[f"verifiers_{mode}"] = Side(
                    lambda python=python, mode=mode: verifiers(python, mode, mock, tokenizer, core)
                )
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="rounds; default: 3")
    parser.add_argument("--no-peers", action="store_true", help="measure ours only, install nothing")
    parser.add_argument("--side", action="append", choices=TITLES, help="default: all")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the requests, turns and rollouts; default: 1"
    )
    options = parser.parse_args()

    report = Report("interception", options.runs)
    every = sorted(os.sched_getaffinity(0))
    core, others = {every[-1]}, set(every[:-1]) or set(every)
    os.sched_setaffinity(0, others)
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        tokenizer, config, characters = prepare(folder)
        mock = MockEngine(stack.enter_context(engine(config, others)))
        sides = {
            side: Side(lambda name=name: swe_core(name, mock.url, tokenizer, folder / name, core))
            for side, name in ((RELAY, "openai"), (IDS, "vllm"))
        }
        sides |= {
            side: Side(
                lambda side=side: swe_core("vllm", mock.url, tokenizer, folder / side, core), dialect=name
            )
            for side, name in OTHERS.items()
        }
        if not options.no_peers:
            sides |= peers(report, mock.url, tokenizer, folder, core)
        sides = {name: side for name, side in sides.items() if not options.side or name in options.side}
        run(sides, mock, scaled(options.share, characters), options.runs, stack)
    report.notes += [
        f"{TITLES[name]} is skipped: {side.problem}"
        for name, side in sides.items()
        if side.problem is not None
    ]
    if not any(side.cpu["unrelated"] for side in sides.values()):
        give_up("; ".join(report.notes) or "there is nothing to measure")
    fill(report, sides)
    report.show(table(report, sides))


def prepare(folder: Path) -> tuple[Path, Path, int]:
    """The tokenizer, the mock engine's answers, and a tool result's characters in the long session."""
    path, config = folder / "tokenizer", folder / "replies.json"
    tokenizer = write_tokenizer(path)
    answers = replies(tokenizer)
    given = {"short": answers, **longer_replies(tokenizer)}
    settings = {"model": MODEL, "max_model_len": MAX_MODEL_LEN, "tokenizer": str(path / "tokenizer.json")}
    config.write_text(json.dumps({**settings, "replies": given}))
    return path, config, long_result(tokenizer, answers)


@contextmanager
def engine(config: Path, cores: set[int]) -> Iterator[str]:
    """The mock engine's URL."""
    with process([sys.executable, str(HERE / "_mock_engine.py"), str(config)], cores) as mock:
        yield f"http://127.0.0.1:{int(mock.read())}"


def scaled(share: float, long_characters: int) -> Sizes:
    """All sizes times `share`, at least one each."""

    def some(count: int) -> int:
        return max(1, round(count * share))

    return Sizes(
        unrelated=some(REQUESTS),
        streamed=some(STREAMED_REQUESTS),
        long_replies=some(LONG_REQUESTS),
        session_turns=some(SESSION_TURNS),
        long_turns=some(LONG_TURNS),
        long_characters=long_characters,
        parallel=CONNECTIONS * some(PARALLEL_REQUESTS // CONNECTIONS),
        idle=some(IDLE),
    )


def run(
    sides: dict[str, Side],
    mock: MockEngine,
    sizes: Sizes,
    rounds: int,
    stack: ExitStack,
    cells: Iterable[str] = CELLS,
) -> None:
    """Start all sides and measure them in turns; the first problem of a side ends it."""

    def each(work: Callable[[Side], None]) -> None:
        for side in sides.values():
            if side.problem is None:
                try:
                    work(side)
                except SweError as error:
                    side.problem = sentence(error)

    def start(side: Side) -> None:
        side.proxy = stack.enter_context(side.start())
        (client,) = side.clients(1)
        for streamed in (False, True):  # connections, caches, tokenizers
            client.ask_all(unrelated(10, KILOBYTES, 0, streamed))

    def hold(side: Side) -> None:
        side.hold_idle(sizes.idle)

    each(start)
    each(hold)
    for number in range(1, rounds + 1):
        for cell in cells:
            each(lambda side, cell=cell, number=number: measure(side, mock, sizes, cell, number))


def fill(report: Report, sides: dict[str, Side]) -> None:
    """Medians, ratios and targets of what was measured."""
    nothing = Side(start=ExitStack)
    known = {name: sides.get(name, nothing) for name in TITLES}
    medians = {cell: {name: median(side.cpu[cell]) for name, side in known.items()} for cell in CELLS}
    rates = {name: median(side.rate) for name, side in known.items()}
    delays = {name: median(side.delay) for name, side in known.items()}
    report.medians = {f"{cell}_ms": figures for cell, figures in medians.items()}
    report.medians |= {RATE: rates, DELAY: delays, MEMORY: {name: side.idle for name, side in known.items()}}
    for cell, figures in medians.items():
        for peer in ("verifiers_relay", "litellm"):
            report.ratios[f"{cell}_{peer}_to_relay"] = ratio(figures[peer], figures[RELAY])
        for peer in ("verifiers_train", "openenv"):
            report.ratios[f"{cell}_{peer}_to_ids"] = ratio(figures[peer], figures[IDS])
        if cell in OF_DIALECTS:
            for side in OTHERS:
                report.ratios[f"{cell}_{side}_to_ids"] = ratio(figures[side], figures[IDS])
    report.targets = [
        Target(f"{TITLES[name]}: {CELLS[cell].title}", medians[cell][name], limit, "ms")
        for cell, (name, limit) in LIMITS.items()
    ]
    report.targets += [
        Target(
            f"{TITLES[side]}: {CELLS[cell].title}, to chat",
            report.ratios[f"{cell}_{side}_to_ids"],
            MOST_OF_CHAT,
            "x",
        )
        for side in OTHERS
        for cell in OF_DIALECTS
    ]
    report.targets.append(Target(f"{TITLES[IDS]}: {DELAYED}", delays[IDS], 50, "ms"))
    what = f"{TITLES[RELAY]}: {CELLS['parallel'].title}"
    report.targets.append(Target(what, rates[RELAY], 500, "/s", at_least=True))
    report.targets += [
        Target(f"{TITLES[name]}: {IDLE} idle rollouts", known[name].idle, 200, "MB") for name in (RELAY, IDS)
    ]


def table(report: Report, sides: dict[str, Side]) -> Table:
    """All sides, one a column."""
    shown_table = Table(title=f"Processor time of the proxy per request, medians of {report.runs} rounds")
    shown_table.add_column("")
    for name in sides:
        shown_table.add_column(TITLES[name].replace(" ", "\n"), justify="right")
    units = {f"{name}_ms": (cell.title, "ms") for name, cell in CELLS.items()}
    units |= {
        DELAY: (DELAYED, "ms"),
        RATE: (f"requests/s, {CONNECTIONS} at once", "/s"),
        MEMORY: (f"{IDLE} idle rollouts", "MB"),
    }
    for key, (title, unit) in units.items():
        figures: Any = report.medians[key]
        shown_table.add_row(title, *(shown(figures[name], unit) for name in sides))
    return shown_table


if __name__ == "__main__":
    main()
