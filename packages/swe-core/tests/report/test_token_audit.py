"""`swe-core report`: what became of the sampled tokens, proved from the turns on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.engine import Usage
from swe_core.api.records import Ledger
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_rollout, make_run, make_turn

from ..token_turns import make_sampled
from .helpers import lines_of, reported


def add_rollout(run: RunDirectory, name: str, ledger: Ledger | None, **fields: Any) -> None:
    run.append(make_rollout(name, id=name, turns=3, ledger=ledger, **{"usage": Usage(), **fields}))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Two rollouts with tokens, one of them without a verdict: 1,000 + 20 + 3 tokens, and 5."""
    run = make_run(tmp_path / "run", 2)
    first = make_sampled(range(4), range(1000))
    more = [make_sampled(range(2), range(count), first) for count in (20, 3)]
    calls = {"one": [first, *more], "two": [make_sampled([0], range(5))]}
    for name, turns in calls.items():
        book, folder = TokenLog(), run.folder(name)
        for index, call in enumerate(turns):
            folder.add_turn(make_turn(index, tokens=book.add(index, call)))
        folder.close()
        if name == "one":
            add_rollout(run, name, book.ledger(), ended_by="completion_tokens")
        else:
            add_rollout(run, name, book.ledger("error"), outcome="error", reward=None)
    return run


def test_text_report_has_the_ledger(run: RunDirectory) -> None:
    lines = lines_of(run)
    assert lines[0] == "rollout outcome reward turns tokens in out chains patch seconds"
    assert lines[1] == "one resolved 1 3 0 0 2 0 B 1.0"
    for line in (
        "one: the agent's run was ended by its budget of completion tokens",
        "Tokens: 1,028 sampled = 1,023 trainable + 5 dropped (5 error); balanced, 100.0 % accounted for",
        "Chains: 3, of which 1 fork",
        "1 branch: another turn had extended that history already, say before a retry",
        "Prompts: 2 full, 2 bridge",
    ):
        assert line in lines


def test_json_report_has_the_ledger(run: RunDirectory) -> None:
    summary = json.loads(reported(run, "--json").output)
    ledger = summary["ledger"]
    assert (ledger["sampled"], ledger["trainable"], ledger["dropped"]) == (1028, 1023, {"error": 5})
    assert (ledger["forks"], ledger["rendered"]) == ({"branch": 1}, {"full": 2, "bridge": 2})
    assert (ledger["balanced"], ledger["missing"], ledger["problems"]) == (True, 0, [])
    one, two = summary["rollouts"]
    assert (one["ended_by"], one["ledger"]["trainable"]) == ("completion_tokens", 1023)
    assert two["ledger"]["dropped"] == {"error": 5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gone", "one: its ledger is not what its turns on disk say: sampled 1023 instead of 0"),
        ("torn", "sampled 1023 instead of 1020, trainable 1023 instead of 1020, chains 2 instead of 1"),
        ("damaged", "turns.jsonl' is not a recorded call"),
        ("lost", "sampled 1023 instead of 1003"),
        ("base", "turn 1 continues turn 0, which must come before it"),
        ("logprob", "turn 2 has 3 sampled ids, 2 logprobs and 3 versions"),
    ],
)  # fmt: skip
def test_turns_that_contradict_the_ledger_fail_the_report(run: RunDirectory, change: str, words: str) -> None:
    file = run.path / "rollouts" / "one" / "turns.jsonl"
    one, two, three = file.read_bytes().splitlines(keepends=True)
    last = json.loads(three)
    last["tokens"]["logprobs"].pop()
    changed = {
        "gone": b"", "torn": (one + two + three)[:-1], "damaged": one + b"{}\n" + three, "lost": one + three,
        "base": two + three, "logprob": one + two + json.dumps(last).encode() + b"\n",
    }  # fmt: skip
    file.write_bytes(changed[change])
    done = reported(run)
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())
    assert "NOT BALANCED" in done.output
    ledger = json.loads(reported(run, "--json").output)["ledger"]
    assert (ledger["balanced"], words in ledger["problems"][0]) == (False, True)


def test_tokens_without_a_ledger_fail_the_report(run: RunDirectory) -> None:
    lines = (run.path / "rollouts.jsonl").read_text().splitlines()
    broken = {**json.loads(lines[1]), "ledger": None}
    (run.path / "rollouts.jsonl").write_text(f"{lines[0]}\n{json.dumps(broken)}\n")
    done = reported(run)
    assert done.exit_code == 1
    assert "two: its ledger is not what its turns on disk say: sampled 0 instead of 5" in done.output
    assert "1,028 sampled ≠ 1,023 trainable + 0 dropped; NOT BALANCED, 99.5 % accounted for" in done.output


def test_report_without_tokens_has_no_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    add_rollout(run, "one", None)
    assert "Tokens" not in reported(run).output
    assert json.loads(reported(run, "--json").output)["ledger"] is None
