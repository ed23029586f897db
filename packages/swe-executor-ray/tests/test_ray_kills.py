"""Actors, nodes and drivers that are killed at any instant: nothing is lost, repeated or left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from secrets import randbelow

import pytest

from .conftest import Run, ended, wait_for

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("SWE_TEST_KILLS", "3"))
OF_A_RUN = 8
TASKS, ATTEMPTS = 8, 3
VICTIMS = ("actor", "raylet", "driver")


def finished_on_nodes(run: Run) -> dict[str, str]:
    """When each rollout began that is on a node's disk, by id."""
    found = {}
    for path in run.cluster.finished:
        with suppress(FileNotFoundError), tarfile.open(path) as archive:  # the driver has it by now
            record = archive.extractfile("record.json")
            assert record is not None
            found[path.stem] = json.load(record)["started_at"]
    return found


def instant(run: Run, random: Random) -> tuple[str, Callable[[], object]]:
    """What to wait for before a kill."""
    more, before = random.randint(1, 3), run.finished
    return random.choice([
        ("an actor runs", run.cluster.actors),
        ("agents run", lambda: run.cluster.agents),
        ("a node has a finished rollout", lambda: run.cluster.finished),
        (f"{more} more are finished", lambda: run.finished >= before + more),
        (f"{more} more are finished", lambda: run.finished >= before + more),
    ])  # fmt: skip


def kill(victim: str, run: Run, process: subprocess.Popen[str], random: Random) -> None:
    """Kill a part of a run."""
    cluster = run.cluster
    if victim == "actor" and (actors := cluster.actors()):
        os.kill(random.choice(actors), signal.SIGKILL)
    elif victim == "raylet":
        cluster.remove(random.choice(cluster.raylets))
        cluster.add(2)
    elif victim == "driver":
        process.kill()


def test_killed_actors_nodes_and_drivers(
    make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """SWE_TEST_KILLS is the number of kills, SWE_TEST_SEED says which."""
    seed = int(os.environ.get("SWE_TEST_SEED", randbelow(10**6)))
    random, counted = Random(seed), Counter[str]()
    with capsys.disabled():
        print(f"\nkills: seed {seed} (SWE_TEST_SEED)")
    options = ("--attempts", str(ATTEMPTS), "--concurrency", "6", "--max-errors", "0")
    for first in range(0, KILLS, OF_A_RUN):
        run = make_run(*options, name=str(first), tasks=TASKS)
        process = run.start()
        kept, before = dict[str, str](), b""
        for number in range(first, min(first + OF_A_RUN, KILLS)):
            what, happened = instant(run, random)
            wait_for(lambda h=happened, p=process: h() or p.poll() is not None)
            time.sleep(random.choice([0, random.uniform(0, 0.05), random.uniform(0, 1)]))
            assert run.whole.startswith(before), "a finished rollout was lost or run again"
            before, kept = run.whole, kept | finished_on_nodes(run)
            victim = VICTIMS[number] if number < len(VICTIMS) else random.choice(VICTIMS)
            kill(victim, run, process, random)
            counted[victim] += 1
            with capsys.disabled():
                seen = f"{run.finished} finished, {len(kept)} were seen on nodes"
                print(f"{number + 1}: {what}, {victim}; {seen}")
            if process.poll() is not None or victim == "driver":
                said = ended(process)
                assert process.returncode in (0, -signal.SIGKILL), said
                process = run.start()
        said = ended(process)
        assert process.returncode == 0, said
        assert "Traceback" not in said, said
        run.run()  # another start, which removes what is left of killed actors
        assert run.whole.startswith(before), "a finished rollout was lost or run again"
        run.is_complete(ATTEMPTS)
        rollouts = [json.loads(line) for line in run.whole.splitlines()]
        again = [one["id"] for one in rollouts if kept.get(one["id"], one["started_at"]) != one["started_at"]]
        assert again == [], "a finished rollout of a node was run again"
    with capsys.disabled():
        print(f"killed: {dict(counted)}")
