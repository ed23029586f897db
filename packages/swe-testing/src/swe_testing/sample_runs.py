"""Run directories with exact tokens, made without an agent or a model: for tests of what reads them.

The text of each call and its ids belong together, as an engine that owns its tokens writes them.
"""

from __future__ import annotations

import gzip
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from swe_core.api.agent import AgentEvent
from swe_core.api.engine import ForkCause, Sampled, Usage
from swe_core.api.grader import Grade
from swe_core.api.records import Failure, Outcome, Phases, Rollout, SandboxTime, Turn
from swe_core.api.request_diff import RequestDiff
from swe_core.api.task import TestStatus
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.rollout.training_records import GROUPS_FILE, TRAINED_FILE, VOCABULARY_FILE
from swe_core.system.redaction import Redactor
from swe_core.tokens.token_log import TokenLog

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
Shape = Literal["plain", "compaction", "drift", "branch", "title", "undelivered"]
"""What is special about a rollout: the agent compacts its history; its template renders a turn otherwise; it
repeats a call; it asks for a title beside its work; a reply never arrives."""

_PIECES = re.compile(r"<\|\w+\|>| ?[A-Za-z_]+|\s|[^\sA-Za-z_]")
_WORDS = (
    *("the", "parser", "returns", "a", "wrong", "offset", "when", "time", "zones", "differ", "so", "we"),
    "read",
    *("test", "and", "fix", "parse_offset", "then", "run", "pytest", "again", "look", "at", "failing"),
    "before",
    *("next", "change", "of", "naïve", "code", "日本", "🙂"),
)


class WordTokenizer:
    """A tokenizer of words, whose vocabulary grows with what it encodes. Other characters are UTF-8 bytes."""

    def __init__(self) -> None:
        self._ids = {bytes([byte]).decode("latin-1"): byte for byte in range(256)}
        self._tokens = [bytes([byte]) for byte in range(256)]
        for name in SPECIAL:
            self._add(name)
        self.special = {self._ids[name]: name for name in SPECIAL}

    def _add(self, text: str) -> int:
        self._ids[text] = len(self._tokens)
        self._tokens.append(text.encode())
        return self._ids[text]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = []
        for piece in _PIECES.findall(text):
            if piece.isascii():
                ids.append(self._ids[piece] if piece in self._ids else self._add(piece))
            else:
                ids += piece.encode()
        return ids

    def spelt(self, ids: Sequence[int]) -> list[int]:
        """Return other ids of the same text: a long word in its first half is spelt in bytes."""
        long = [at for at, id_ in enumerate(ids) if len(self._tokens[id_]) > 5 and id_ not in self.special]
        at = long[len(long) // 3]
        return [*ids[:at], *self._tokens[ids[at]], *ids[at + 1 :]]

    def write(self, run: Path) -> None:
        """Write `vocab.json.gz` into a run directory."""
        value = {
            "tokenizer": "words",
            "tokens": [token.decode("latin-1") for token in self._tokens],
            "special": {str(id_): name for id_, name in self.special.items()},
        }
        (run / VOCABULARY_FILE).write_bytes(gzip.compress(orjson.dumps(value)))


@dataclass(slots=True)
class _Calls:
    """The calls of one rollout while it is made."""

    words: WordTokenizer
    random: random.Random
    version: int
    log: TokenLog = field(default_factory=TokenLog)
    diff: RequestDiff = field(default_factory=RequestDiff)
    turns: list[Turn] = field(default_factory=list)
    at: datetime = START

    def call(
        self,
        messages: list[dict[str, Any]],
        reply: dict[str, Any],
        before: Sampled | None,
        cause: ForkCause | None = None,
        dropped: str | None = None,
        auxiliary: str | None = None,
        otherwise: bool = False,
    ) -> Sampled:
        """Answer a request. Its prompt continues that of `before`, or is whole if there is a `cause`.

        Args:
            otherwise: Whether a word of the prompt comes out as other ids of the same text.
        """
        new = messages if before is None or cause else messages[-1:]
        text = "".join(f"<|im_start|>{one['role']}\n{spoken(one)}<|im_end|>\n" for one in new)
        end = "" if new is messages else "\n"  # of the line of the reply before
        prompt = self.words.encode(f"{end}{text}<|im_start|>assistant\n")
        if otherwise:
            prompt = self.words.spelt(prompt)
        ids = self.words.encode(f"{spoken(reply)}<|im_end|>")
        logprobs = [-abs(self.random.expovariate(2.5)) for _ in ids]
        for place in self.random.sample(range(len(ids)), max(1, len(ids) // 40)):
            logprobs[place] = -self.random.uniform(4, 11)
        switch = self.random.randrange(len(ids)) if self.random.random() < 0.2 else len(ids)
        sampled = Sampled(
            None if cause else before,
            np.array(prompt, np.int32),
            np.array(ids, np.int32),
            np.array(logprobs, np.float32),
            np.array([self.version + (place >= switch) for place in range(len(ids))], np.int32),
            rendered="full" if before is None or cause else "bridge",
            cause=cause if before is not None else "start",
        )
        usage = Usage(prompt_tokens=_length(sampled) - len(ids), completion_tokens=len(ids))
        index = len(self.turns)
        tokens = self.log.add(index, sampled, dropped or auxiliary)
        seconds = len(ids) / 60 + self.random.uniform(0.1, 0.6)
        body = {"model": "sample", "messages": messages, "temperature": 1.0}
        turn = Turn.from_request(
            self.diff,
            index,
            body,
            started_at=self.at,
            seconds=seconds,
            reply=reply,
            finish_reason="tool_calls" if reply.get("tool_calls") else "stop",
            usage=usage,
            tokens=tokens,
            auxiliary=auxiliary,
        )
        self.turns.append(turn)
        self.at += timedelta(seconds=seconds + self.random.uniform(0.1, 2.5))
        return sampled


def _length(sampled: Sampled | None) -> int:
    """Return the number of ids of a turn and of all before it."""
    return (
        0
        if sampled is None
        else (len(sampled.prompt_ids) + len(sampled.completion_ids) + _length(sampled.extends))
    )


def spoken(reply: Mapping[str, Any]) -> str:
    """Return the text that a reply has among the ids."""
    calls = "".join(
        f"\n<tool_call>{call['function']['name']} {call['function']['arguments']}</tool_call>"
        for call in reply.get("tool_calls", ())
    )
    return f"{reply['content']}{calls}"


def add_sample(
    run: RunDirectory,
    words: WordTokenizer,
    name: str,
    task: str,
    attempt: int,
    outcome: Outcome,
    *,
    shape: Shape = "plain",
    turns: int = 5,
    size: int = 30,
    version: int = 0,
    minute: int = 0,
    cancelled_as: str | None = None,
) -> Rollout:
    """Finish a rollout.

    Args:
        turns: LLM calls, at least 3.
        size: Words of a reply and of a tool's result.
        version: Policy version that begins to sample.
        minute: Start, minutes after the run's.
    """
    chance = random.Random(name)
    begun = START + timedelta(minutes=minute)
    calls = _Calls(words, chance, version, at=begun + timedelta(seconds=3))
    folder = run.folder(name)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent. Use the tool bash."},
        {"role": "user", "content": f"Fix {task}: {_text(chance, size)}"},
    ]
    before: Sampled | None = None
    if shape == "title":
        asked = [{"role": "user", "content": "Write a title for this task."}]
        calls.call(asked, {"role": "assistant", "content": "Fix the offset"}, None, auxiliary="title")
    for number in range(turns):
        reply = _reply(chance, number, turns, size)
        middle = number == turns // 2
        if middle and shape == "compaction":
            summary = f"Summary so far: {_text(chance, size)}"
            messages = [messages[0], {"role": "user", "content": summary}]
            before = calls.call(messages, reply, before, cause="rewritten")
        elif middle and shape == "drift":
            before = calls.call(messages, reply, before, cause="retokenised", otherwise=True)
        elif middle and shape == "branch":
            calls.call(messages, _reply(chance, number, turns, size), before, dropped="aborted")
            before = calls.call(messages, reply, before)
        else:
            before = calls.call(messages, reply, before)
        folder.add_event(AgentEvent(kind="text", text=str(reply["content"])))
        messages = [*messages, reply]
        for call in reply.get("tool_calls", ()):
            result = f"exit 0\n{_text(chance, size)}\n"
            folder.add_event(AgentEvent(kind="tool_call", text=call["function"]["arguments"], tool="bash"))
            folder.add_event(AgentEvent(kind="tool_result", text=result, tool="bash"))
            messages = [*messages, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    for turn in calls.turns:
        folder.add_turn(turn)
    if shape == "undelivered":
        folder.add_undelivered(calls.log.drop_undelivered([len(calls.turns) - 1]))
    reward = {"resolved": 1.0, "unresolved": 0.0}.get(outcome)
    seconds = (calls.at - begun).total_seconds()
    grade = _grade(outcome == "resolved", chance) if reward is not None else None
    failure = None
    if outcome == "error":
        failure = Failure(
            boundary="sandbox", type="SandboxDied", message="the sandbox died: it had no memory left"
        )
    if grade is not None:
        folder.put("grade.json", grade.model_dump_json(indent=2).encode())
        folder.put("test.log", _log(grade))
        folder.put_patch(_patch(chance))
    folder.add_output(b"\x1b[32magent started\x1b[0m\nagent ended\n")
    folder.close()
    record = Rollout(
        id=name, task_id=task, attempt=attempt, agent="mini", sandbox="box", engine="vllm", model="sample",
        outcome=outcome, cancelled_as=cancelled_as, reward=reward, failure=failure, grade=grade,
        turns=len(calls.turns),
        usage=Usage(
            prompt_tokens=sum(turn.usage.prompt_tokens for turn in calls.turns),
            completion_tokens=sum(turn.usage.completion_tokens for turn in calls.turns),
        ),
        ledger=calls.log.ledger(None if reward is not None else cancelled_as or outcome),
        patch_bytes=len(run.patch(name) or b""),
        agent_exit_code=0,
        phases=Phases(open=1.2, prepare=1.8, agent=seconds, export=0.3, grade=4.5 if grade else None),
        sandboxes=(SandboxTime(purpose="agent", flavor=None, sandboxes=1, seconds=seconds + 3),),
        started_at=begun, seconds=seconds + 8.0,
    )  # fmt: skip
    run.append(record)
    return record


def sample_training(path: Path) -> RunDirectory:
    """Make a training of four groups: mixed rewards with every `Shape`, all unresolved, an error and a stale
    attempt, all resolved.
    """
    run = _new(path, planned=None)
    words = WordTokenizer()
    plan: Sequence[tuple[str, Sequence[tuple[Outcome, Shape, str | None]]]] = (
        ("moto-7365", [("resolved", "compaction", None), ("unresolved", "drift", None),
                       ("resolved", "title", None), ("unresolved", "undelivered", None)]),
        ("moto-7300", [("unresolved", "plain", None), ("unresolved", "branch", None),
                       ("unresolved", "plain", None), ("unresolved", "plain", None)]),
        ("pydantic-8511", [("resolved", "plain", None), ("error", "plain", None),
                           ("cancelled", "plain", "stale"), ("unresolved", "plain", None)]),
        ("dask-10212", [("resolved", "plain", None), ("resolved", "plain", None),
                        ("resolved", "compaction", None), ("resolved", "plain", None)]),
    )  # fmt: skip
    groups, rows, step = [], [], 0
    for group, (task, attempts) in enumerate(plan):
        records = [
            add_sample(
                run, words, f"{task}-g{group}-{attempt}", task, attempt, outcome, shape=shape,
                version=group, minute=4 * group + attempt, cancelled_as=why, turns=4 + attempt,
            )
            for attempt, (outcome, shape, why) in enumerate(attempts)
        ]  # fmt: skip
        closed, trained = _close(run, group, task, records, step + 1, group + 1)
        groups.append(closed)
        rows += trained
        step += bool(trained)
    _write_lines(path / GROUPS_FILE, groups)
    _write_lines(path / TRAINED_FILE, rows)
    values = [
        {"reward": 0.3 + 0.02 * number, "loss": 0.1 / (number + 1), "kl": 0.001 * number}
        for number in range(40)
    ]
    _write_lines(
        path / "metrics.jsonl",
        [
            {"step": number + 1, "time": START + timedelta(minutes=number), "values": one}
            for number, one in enumerate(values)
        ],
    )
    words.write(path)
    return run


def sample_long(path: Path, turns: int = 100, tokens: int = 75_000) -> RunDirectory:
    """Make a run with one rollout, `long-0`, of so many turns and about so many tokens."""
    run = _new(path, planned=1)
    words = WordTokenizer()
    add_sample(
        run, words, "long-0", "long", 0, "resolved", turns=turns, size=max(1, int(tokens / turns / 2.85))
    )
    words.write(path)
    return run


def sample_many(path: Path, tasks: int = 2_500, attempts: int = 4) -> RunDirectory:
    """Make a run of so many rollouts, all but the first few without files of their own."""
    run = _new(path, planned=tasks * attempts)
    words = WordTokenizer()
    first = add_sample(run, words, "task-0-0", "task-0", 0, "resolved")
    chance = random.Random(0)
    lines = []
    for number in range(1, tasks * attempts):
        task, attempt = f"task-{number // attempts}", number % attempts
        outcome = chance.choices(("resolved", "unresolved", "error"), (40, 55, 5))[0]
        update: dict[str, Any] = {
            "id": f"{task}-{attempt}", "task_id": task, "attempt": attempt, "outcome": outcome,
            "reward": {"resolved": 1.0, "unresolved": 0.0}.get(outcome), "seconds": chance.uniform(20, 900),
            "started_at": START + timedelta(seconds=number), "grade": _grade(outcome == "resolved", chance),
        }  # fmt: skip
        if outcome == "error":
            message = "the sandbox died: it had no memory left"
            update |= {
                "grade": None,
                "failure": Failure(boundary="sandbox", type="SandboxDied", message=message),
            }
        lines.append(first.model_copy(update=update).model_dump(mode="json"))
    with (path / "rollouts.jsonl").open("ab") as file:
        file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    words.write(path)
    return run


def _close(
    run: RunDirectory, group: int, task: str, records: Sequence[Rollout], step: int, version: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the lines of a group that closes: its own, and those of its trained rows."""
    rewards = [record.reward for record in records if record.reward is not None]
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    skipped = "no_spread" if not deviation else None
    advantages = [
        None if record.reward is None or skipped else (record.reward - mean) / (deviation + 1e-8)
        for record in records
    ]
    members = [
        {"rollout_id": record.id, "reward": record.reward, "advantage": advantage}
        for record, advantage in zip(records, advantages, strict=True)
    ]
    rows = []
    chance = random.Random(group)
    for record, advantage in zip(records, advantages, strict=True):
        if advantage is None:
            continue
        for row, chain in enumerate(run.chains(record.id)):
            sampled = chain.old_log_probs[chain.completion_mask]
            if not len(sampled):
                continue
            own = [float(value) + chance.gauss(0, 0.08) for value in sampled]
            ratios = [math.exp(mine - theirs) for mine, theirs in zip(own, sampled.tolist(), strict=True)]
            rows.append(
                {
                    "step": step, "version": version, "rollout_id": record.id, "row": row,
                    "advantage": advantage, "weight": 1.0, "tokens": len(own),
                    "logprobs": [round(min(value, 0.0), 5) for value in own],
                    "clipped": sum(not 0.8 <= ratio <= 1.2 for ratio in ratios),
                }
            )  # fmt: skip
    return {"group": group, "task_id": task, "members": members, "skipped": skipped}, rows


def _new(path: Path, planned: int | None) -> RunDirectory:
    settings = {"run": {"tasks": "sample.jsonl", "agent": "mini", "model": "sample"}}
    info = new_run_info({"swe-core": "0.1.0"}, settings, planned, ["Sample data: no agent or model was run."])
    return RunDirectory.create(path, info.model_copy(update={"created_at": START}), Redactor())


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def _text(chance: random.Random, size: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(size))


def _reply(chance: random.Random, number: int, turns: int, size: int) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": _text(chance, size)}
    if number < turns - 1:
        arguments = orjson.dumps(
            {"command": f"sed -n {number * 10},{number * 10 + 9}p src/offset.py"}
        ).decode()
        function = {"name": "bash", "arguments": arguments}
        reply["tool_calls"] = [{"id": f"call-{number}", "type": "function", "function": function}]
    return reply


def _grade(resolved: bool, chance: random.Random) -> Grade:
    failing: TestStatus = "FAILED" if not resolved else "PASSED"
    return Grade(
        resolved=resolved,
        reason=""
        if resolved
        else "1 of 2 FAIL_TO_PASS tests do not pass: 'tests/test_offset.py::test_minutes' FAILED",
        fail_to_pass={
            "tests/test_offset.py::test_hours": "PASSED",
            "tests/test_offset.py::test_minutes": failing,
        },
        pass_to_pass={
            "tests/test_parse.py::test_date": "PASSED"
            if resolved
            else chance.choices(("PASSED", "FAILED"))[0]
        },
        test_exit_code=int(not resolved),
        test_seconds=3.4,
        channel="reporter",
        applied_with="git apply",
    )


def _log(grade: Grade) -> bytes:
    if grade.resolved:
        return b"3 passed in 3.40s\n"
    return b"""=================================== FAILURES ===================================
_________________________________ test_minutes _________________________________

    def test_minutes():
>       assert parse("2024-04-01T11:30+02:30").offset == 150
E       AssertionError: assert 120 == 150
E        +  where 120 = Time(11, 30, offset=120).offset

tests/test_offset.py:14: AssertionError
=========================== short test summary info ============================
FAILED tests/test_offset.py::test_minutes - AssertionError: assert 120 == 150
1 failed, 2 passed in 3.40s
"""


def _patch(chance: random.Random) -> bytes:
    return f"""diff --git a/src/offset.py b/src/offset.py
index 3f1c2aa..8d0e1bb 100644
--- a/src/offset.py
+++ b/src/offset.py
@@ -10,5 +10,6 @@ def parse_offset(text):
     hours, minutes = text[1:3], text[-2:]
-    return int(hours) * 60
+    sign = -1 if text[0] == "-" else 1
+    return sign * (int(hours) * 60 + int(minutes))  # {chance.choice(_WORDS)}


""".encode()
