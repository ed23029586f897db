"""What Hugging Face Sandboxes cost that no route leads back from: time, calls of the API, memory.

    python benchmarks/hf_relay.py [--runs N] [--round-trip MS]... [--requests N] [--minute S] [--sandboxes N]

The service is the project's local one: its sandboxes are made by bubblewrap on this machine, so what is
measured is the program and not the service. Each way between client and service takes half of a round trip.
The client is the real `huggingface_hub`, the agent the real Pi.

- First request: from the rollout's start, so with creating the sandbox and uploading Pi, to Pi's first LLM
  request at the host. The first rollout of a run also packs Pi; it stands beside the others.
- Relay: what an LLM request takes inside a sandbox longer than on the host, where the same program asks the
  same endpoint. Answers are given at once: whole, and streamed for a second. The local service takes time of
  its own, so a round trip is what one call takes through it to a server inside that does nothing.
- Calls: those of one rollout's open sandbox in which an agent makes a streamed LLM request every 3 seconds.
- Memory: the peak of `swe-core run` itself with all its sandboxes open at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
from _common import IMAGE, SWE_CORE, Report, Target, give_up, median, run, shown
from _local_hf import LocalHF
from aiohttp import web
from many import TASKS, watched
from rich.table import Table

from swe_core.api.records import Turn
from swe_core.api.sandbox import Sandbox, SandboxSpec
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.errors import SweError, sentence
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.event_loop import run as run_in_loop
from swe_testing.loopback import LoopbackServer

TASK = "demo__memofn-1"
REPLY = {"task_id": TASK, "replies": [{"message": {"role": "assistant", "content": "Nothing to do."}}]}
HF = ("--sandbox", "hf", "--set", "sandbox.hf.internet=true")
EVERY = 3.0
"""Seconds from one streamed request to the next."""
STREAM = 1.0
PIECES = 20
OVERHEAD_MS, CALLS, MEMORY_MB = 5.0, 60, 300.0
_LOOK = 0.25

_AGENT = """
import http.client, json, sys, time
host, port, path, count, every = sys.argv[1:]
port, count, every = int(port), int(count), float(every)
connection, taken, begin = http.client.HTTPConnection(host, port), [], time.monotonic()
for number in range(count):
    time.sleep(max(0.0, begin + number * every - time.monotonic()))
    started = time.perf_counter()
    connection.request("POST", path, b"x" * 2048, {"Content-Type": "application/json"})
    connection.getresponse().read()
    taken.append(time.perf_counter() - started)
time.sleep(max(0.0, begin + count * every - time.monotonic()))
print(json.dumps(taken))
"""

_PORT = 8765
_SERVER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {_PORT}), Handler).serve_forever()
"""


class Endpoint(LoopbackServer):
    """Answers 1 KB at `/whole`, and at `/streamed` in pieces. These come at set times from its head on:
    pauses one after the other would add up how late each is: more where the loop has other work, too.
    """

    def routes(self) -> Iterable[web.RouteDef]:
        return [web.post("/whole", self._whole), web.post("/streamed", self._streamed)]

    async def _whole(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"x" * 1024)

    async def _streamed(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        begin = time.monotonic()  # a loop's own clock may have steps of a millisecond
        for number in range(1, PIECES + 1):
            await response.write(b"x" * 50)
            await anyio.sleep(max(0.0, begin + number * STREAM / PIECES - time.monotonic()))
        return response


@dataclass
class Figures:
    """What was measured with one injected round trip; seconds."""

    injected: float
    call: list[float] = field(default_factory=list)
    packing: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    streamed: list[float] = field(default_factory=list)
    opening: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    minutes: float = 0.0

    @property
    def per_minute(self) -> float | None:
        """Calls per rollout minute."""
        return round(self.calls.total() / self.minutes, 1) if self.minutes else None


def first_requests(figures: Figures, runs: int, recording: Path) -> None:
    """Rollouts of Pi, one after the other.

    Raises:
        SweError: One of them made no request.
    """
    args = ["--agent", "pi", *HF, "--task", TASK, "--recording", str(recording)]
    with run([*args, "--attempts", str(runs + 1)]) as records:
        for rollout in sorted(records.rollouts(), key=lambda one: one.started_at):
            turns = records.path / "rollouts" / rollout.id / "turns.jsonl"
            if not turns.exists():
                raise SweError(rollout.failure.message if rollout.failure else "no LLM request arrived")
            first = Turn.model_validate_json(turns.read_bytes().splitlines()[0])
            seconds = (first.started_at - rollout.started_at).total_seconds()
            (figures.first if figures.packing else figures.packing).append(seconds)


async def relayed(hf: LocalHF, figures: Figures, requests: int, seconds: float) -> None:
    """Requests through the relay of one sandbox, and the calls that they cost."""
    from swe_sandbox_hf.config import HfConfig
    from swe_sandbox_hf.provider import HfProvider

    hf.calls()
    async with Endpoint() as endpoint:
        provider = HfProvider(HfConfig(internet=True))
        async with provider.open(SandboxSpec(image=IMAGE, network="llm")) as sandbox:
            async with sandbox.reach(endpoint.origin) as url:
                figures.opening = hf.calls()
                figures.call = await bare_calls(sandbox, requests)
                direct = await on_host(endpoint.origin, "/whole", requests)
                figures.whole = minus(await inside(sandbox, url, "/whole", requests), median(direct))
                count = max(1, round(seconds / EVERY))
                direct = await on_host(endpoint.origin, "/streamed", min(count, 5))
                hf.calls()
                taken = await inside(sandbox, url, "/streamed", count, EVERY)
                figures.calls, figures.minutes = hf.calls(), count * EVERY / 60
                figures.streamed = minus(taken, median(direct))


async def bare_calls(sandbox: Sandbox, count: int) -> list[float]:
    """What calls take from this host to a server inside."""
    from huggingface_hub import Sandbox as HubSandbox

    server = await sandbox.start(["python3", "-c", _SERVER])
    hub = await anyio.to_thread.run_sync(HubSandbox.connect, sandbox.id)
    url, headers = hub.proxy_url_for(_PORT, scheme="http://"), hub.proxy_headers
    hub.close()
    taken = []
    async with httpx.AsyncClient(timeout=60) as client:
        while (await client.get(url, headers=headers)).status_code != 200:
            continue
        for _ in range(count):
            started = time.perf_counter()
            await client.get(url, headers=headers)
            taken.append(time.perf_counter() - started)
    await server.kill()
    return taken


async def on_host(url: str, path: str, count: int) -> list[float]:
    """What the requests take without a sandbox."""
    argv = [sys.executable, "-c", _AGENT, *_address(url), path, str(count), "0"]
    done = await anyio.run_process(argv)
    taken: list[float] = json.loads(done.stdout)
    return taken


async def inside(sandbox: Sandbox, url: str, path: str, count: int, every: float = 0.0) -> list[float]:
    """What the requests take inside a sandbox.

    Raises:
        SweError: They failed.
    """
    done = await sandbox.exec(["python3", "-c", _AGENT, *_address(url), path, str(count), str(every)])
    if done.exit_code:
        raise SweError(f"the requests inside failed: {done.stderr.decode(errors='replace')[-300:]}")
    taken: list[float] = json.loads(done.stdout)
    return taken


def minus(taken: list[float], direct: float | None) -> list[float]:
    """What each took longer; the first of all opens the connection."""
    return [seconds - (direct or 0.0) for seconds in taken[1:]]


def _address(url: str) -> tuple[str, str]:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return host, port


@dataclass(frozen=True)
class Crowd:
    """Many sandboxes of one process.

    Args:
        memory: The process's peak, MB.
        at_once: The most sandboxes that were seen running.
        verdicts: Rollouts that were graded.
        wall: Seconds.
    """

    memory: float
    at_once: int
    verdicts: int
    wall: float


def crowd(hf: LocalHF, sandboxes: int) -> Crowd:
    """`swe-core run` with so many rollouts of `mini` at once."""
    attempts = -(-sandboxes // len(TASKS))
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        out = Path(scratch, "run")
        argv = [SWE_CORE, "run", "--agent", "mini", *HF, "--out", str(out), "--attempts", str(attempts)]
        argv += ["--concurrency", str(sandboxes), "--set", f"sandbox.hf.max_concurrent={2 * sandboxes}"]
        argv += [word for task in TASKS for word in ("--task", task)]
        started, memory, at_once = time.perf_counter(), 0.0, 0
        quiet = subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet) as process:
            while process.poll() is None:
                memory, _ = watched(process.pid) or (memory, 0.0)
                at_once = max(at_once, hf.running())
                time.sleep(_LOOK)
        if not (out / "run.json").exists():
            raise SweError("swe-core run wrote no run directory")
        verdicts = sum(rollout.reward is not None for rollout in RunDirectory.open(out).rollouts())
        return Crowd(memory, at_once, verdicts, time.perf_counter() - started)


def measure(hf: LocalHF, figures: Figures, options: argparse.Namespace, recording: Path) -> None:
    """Everything with one injected round trip."""
    hf.calls(latency=figures.injected / 2)
    if options.runs:
        first_requests(figures, options.runs, recording)
    run_in_loop(relayed, hf, figures, options.requests, options.minute)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="rollouts of Pi per round trip; default: 5")
    parser.add_argument("--round-trip", type=float, action="append", help="milliseconds; default: 20, 200")
    parser.add_argument("--requests", type=int, default=60, help="whole answers; default: 60")
    parser.add_argument(
        "--minute", type=float, default=60.0, help="seconds that calls are counted; default: 60"
    )
    parser.add_argument("--sandboxes", type=int, default=64, help="at once, for memory; 0: none; default: 64")
    options = parser.parse_args()
    if (obstacle := why_not(find_bwrap())) is not None:
        give_up(obstacle)

    report = Report("hf_relay", options.runs)
    found = [Figures(milliseconds / 1000) for milliseconds in options.round_trip or (20.0, 200.0)]
    many: Crowd | None = None
    with tempfile.TemporaryDirectory() as scratch, LocalHF() as hf:
        os.environ.update(hf.environment)
        recording = Path(scratch, "reply.jsonl")
        recording.write_text(json.dumps(REPLY) + "\n")
        for figures in found:
            try:
                measure(hf, figures, options, recording)
            except SweError as error:
                report.notes.append(f"at {1000 * figures.injected:g} ms: {sentence(error)}")
        hf.calls(latency=0.0)
        if options.sandboxes:
            try:
                many = crowd(hf, options.sandboxes)
            except SweError as error:
                report.notes.append(f"memory is skipped: {sentence(error)}")
    if not any(figures.whole for figures in found) and many is None:
        give_up("; ".join(report.notes) or "there is nothing to measure")
    show(report, found, many, options)


def show(report: Report, found: list[Figures], many: Crowd | None, options: argparse.Namespace) -> None:
    """The table, the targets, the line of JSON."""
    table = Table(title=f"Hugging Face Sandboxes, local service, medians ({options.runs} rollouts of Pi)")
    columns = ("injected", "a call", "first of a run", "create → request", "whole", "streamed", "calls/min")
    for column in columns:
        table.add_column(column, justify="right")
    for figures in found:
        milliseconds = 1000 * figures.injected
        name = f"{milliseconds:g}_ms"
        call, whole, streamed = (
            None if (seconds := median(taken)) is None else round(1000 * seconds, 2)
            for taken in (figures.call, figures.whole, figures.streamed)
        )
        first = median(figures.first)
        taken = (figures.call, figures.whole, figures.streamed)
        fastest = [round(1000 * min(times), 2) for times in taken if times]
        report.medians[name] = {
            "call_ms": call,
            "first_of_a_run": median(figures.packing),
            "first_request": first,
            "whole_overhead_ms": whole,
            "streamed_overhead_ms": streamed,
            "fastest_ms": fastest,
            "calls_to_open": figures.opening.total() or None,
            "calls_per_minute": figures.per_minute,
        }
        table.add_row(
            f"{milliseconds:g} ms",
            shown(call, "ms"),
            shown(median(figures.packing)),
            shown(first),
            shown(whole, "ms"),
            shown(streamed, "ms"),
            shown(figures.per_minute, ""),
        )
        if fastest:
            what = f"at {milliseconds:g} ms the fastest call, whole and streamed answer"
            report.notes.append(f"{what} took {fastest} ms")
        what, limit = f"{milliseconds:g} ms", (milliseconds if call is None else call) + OVERHEAD_MS
        report.targets += [
            Target(f"{what}: relay, whole answer, against a call + {OVERHEAD_MS:g} ms", whole, limit, "ms"),
            Target(f"{what}: relay, streamed answer, the same", streamed, limit, "ms"),
            Target(f"{what}: calls per rollout minute", figures.per_minute, CALLS, ""),
        ]
    if many is not None:
        report.medians["sandboxes"] = {"at_once": many.at_once, "memory_mb": many.memory, "wall": many.wall}
        report.notes.append(
            f"{many.at_once} sandboxes ran at once; {many.verdicts} rollouts were graded in {many.wall:.0f} s"
        )
    memory = None if many is None else round(many.memory, 1)
    report.targets.append(Target(f"peak memory, {options.sandboxes} rollouts", memory, MEMORY_MB, "MB"))
    report.show(table)


if __name__ == "__main__":
    main()
