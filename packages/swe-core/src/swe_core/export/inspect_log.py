"""Runs as logs of Inspect, one `.eval` file a run: a task is a sample, its attempts are epochs.

The models are Inspect's own. The file is written here: `write_eval_log` takes all samples at once, and a run
may have more than fit into memory. It is a ZIP archive of JSON files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import orjson
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalSampleLimit,
    EvalScore,
    EvalSpec,
    EvalStats,
    EvalStatus,
)
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall
from pydantic import BaseModel

from swe_core.api.messages import Message
from swe_core.api.records import Budget, Rollout
from swe_core.export.conversations import Conversation, arguments_of, conversations, told
from swe_core.export.results import Results
from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.export.writer import Writer
from swe_core.system.files import is_locked

SCORE = "resolved"
_LIMITS: Mapping[Budget, Any] = {
    "turns": "turn", "completion_tokens": "token", "context": "context", "wall": "time",
}  # fmt: skip
"""Our budget → Inspect's limit."""
_STOPS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}


class InspectWriter(Writer):
    """Writes a log per run."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        self._log: _Log | None = None

    def add(self, rollout: ExportedRollout) -> int:
        if self._log is None or self._log.run is not rollout.run:
            self._close_log()
            self._log = _Log(self.folder, rollout.run)
        self._log.add(rollout)
        return 1

    def close(self) -> None:
        self._close_log()

    def abort(self) -> None:
        if self._log is not None:
            self._log.abort()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()


class _Log:
    """The log of one run: samples one by one, then what summarises them."""

    def __init__(self, folder: Path, run: ExportedRun) -> None:
        self.run = run
        self._file = ZipFile(folder / f"{run.name}.eval", "w", ZIP_DEFLATED)
        self._summaries: list[bytes] = []
        self._epochs: defaultdict[str, set[int]] = defaultdict(set)
        self._results = Results()
        self._usage: dict[str, ModelUsage] = {}
        self._ended = run.facts.created_at

    def add(self, rollout: ExportedRollout) -> None:
        record = rollout.record
        epoch = self._epoch(record)
        sample = _sample(rollout, epoch)
        whole, summary = _json(sample), _json(sample.summary())
        ended = max(self._ended, record.started_at + timedelta(seconds=record.seconds))
        self._epochs[record.task_id].add(epoch)
        self._file.writestr(f"samples/{sample.id}_epoch_{sample.epoch}.json", whole)
        self._summaries.append(summary)
        self._results.add(record)
        for model, usage in sample.model_usage.items():
            self._usage[model] = self._usage.get(model, ModelUsage()) + usage
        self._ended = ended

    def close(self) -> None:
        header = EvalLog(
            status=_status(self.run),
            eval=self._spec(),
            results=self._scored(),
            stats=EvalStats(
                started_at=self.run.facts.created_at.isoformat(),
                completed_at=self._ended.isoformat(),
                model_usage=self._usage,
            ),
        )
        self._put(
            "_journal/start.json", {"version": header.version, "eval": header.eval, "plan": header.plan}
        )
        self._file.writestr("summaries.json", b"[" + b",".join(self._summaries) + b"]")
        self._put("header.json", header)
        self._file.close()

    def abort(self) -> None:
        self._file.close()

    def _epoch(self, record: Rollout) -> int:
        """Return the sample's epoch: in a training attempts of several groups have the same number."""
        taken = self._epochs.get(record.task_id, ())
        epoch = record.attempt + 1
        while epoch in taken:
            epoch += 1
        return epoch

    def _put(self, name: str, value: Any) -> None:
        self._file.writestr(name, _json(value))

    def _spec(self) -> EvalSpec:
        run, facts = self.run, self.run.facts
        tasks = list(self._results.tasks)
        return EvalSpec(
            eval_id=run.name,
            run_id=run.name,
            created=facts.created_at.isoformat(),
            task=facts.tasks or "swe-core",
            task_id=run.name,
            dataset=EvalDataset(name=facts.tasks or None, samples=len(tasks), sample_ids=tasks),
            model=next(iter(run.models), "none/none"),
            solver=next(iter(run.agents), None),
            config=EvalConfig(epochs=max(map(len, self._epochs.values()), default=1)),
            packages=facts.versions,
            metadata={
                "notes": list(facts.notes),
                "models": list(run.models),
                "agents": list(run.agents),
                "sandboxes": list(run.sandboxes),
            },
        )

    def _scored(self) -> EvalResults:
        results = self._results
        metrics: dict[str, EvalMetric] = {}
        if results.rate is not None:
            metrics["accuracy"] = EvalMetric(name="accuracy", value=results.rate)
        for one in results.passes():
            name = f"pass@{one.k}"
            interval = {"low": one.low, "high": one.high, "tasks": one.tasks}
            metrics[name] = EvalMetric(name=name, value=one.value, metadata=interval)
        score = EvalScore(
            name=SCORE,
            scorer=SCORE,
            scored_samples=results.verdicts,
            unscored_samples=results.total - results.verdicts,
            metrics=metrics,
        )
        return EvalResults(total_samples=results.total, completed_samples=results.verdicts, scores=[score])


def _sample(rollout: ExportedRollout, epoch: int) -> EvalSample:
    record = rollout.record
    found = conversations(rollout.turns)
    transcript = None if found else told(rollout.events)
    last = found[-1] if found else transcript or Conversation(())
    usage = ModelUsage(
        input_tokens=record.usage.prompt_tokens,
        output_tokens=record.usage.completion_tokens,
        total_tokens=record.usage.prompt_tokens + record.usage.completion_tokens,
    )
    started = record.started_at
    messages = _messages(last, record.model)
    return EvalSample(
        id=record.task_id,
        epoch=epoch,
        input=next((one["content"] for one in last.messages if one["role"] == "user"), ""),
        target="",
        messages=messages,
        output=_output(messages, last, record.model),
        scores=_scores(rollout),
        metadata={
            "rollout_id": record.id,
            "attempt": record.attempt,
            "group": rollout.group,
            "agent": record.agent,
            "sandbox": record.sandbox,
            "engine": record.engine,
            "outcome": record.outcome,
            "advantage": rollout.advantage,
            "other_conversations": len(found) - 1 if found else 0,
            "ledger": record.ledger and record.ledger.model_dump(mode="json"),
            "phases": record.phases.model_dump(mode="json"),
        },
        model_usage={record.model: usage} if usage.total_tokens else {},
        started_at=started.isoformat(),
        completed_at=(started + timedelta(seconds=record.seconds)).isoformat(),
        total_time=record.seconds,
        uuid=f"{rollout.run.name}/{record.id}",
        error=_error(record),
        limit=_limit(rollout),
        turn_count=record.turns,
    )


def _scores(rollout: ExportedRollout) -> dict[str, Score] | None:
    record = rollout.record
    if record.reward is None:
        return None
    grade = record.grade
    tests = {} if grade is None else {"fail_to_pass": grade.fail_to_pass, "pass_to_pass": grade.pass_to_pass}
    reason = None if grade is None else grade.reason or None
    more = {"reward": record.reward, "unshaped_reward": record.unshaped_reward, **tests}
    solved = float(record.outcome == "resolved")  # the reward may be another number
    return {SCORE: Score(value=solved, answer=rollout.patch, explanation=reason, metadata=more)}


def _error(record: Rollout) -> EvalError | None:
    if record.failure is not None:
        message = f"{record.failure.type}: {record.failure.message}"
    elif record.outcome == "cancelled":
        message = f"cancelled: {record.cancelled_as}"
    else:
        return None
    return EvalError(message=message, traceback=message, traceback_ansi=message)


def _limit(rollout: ExportedRollout) -> EvalSampleLimit | None:
    budget = rollout.record.ended_by
    if budget is None:
        return None
    value = rollout.run.directory.info.settings.get("budget", {}).get(budget)
    return EvalSampleLimit(type=_LIMITS[budget], limit=value or 0, reason=f"the budget {budget} was spent")


def _messages(conversation: Conversation, model: str) -> list[ChatMessage]:
    names: dict[str, str] = {}
    return [_message(one, model, names) for one in conversation.messages]


def _message(message: Message, model: str, names: dict[str, str]) -> ChatMessage:
    """Return a message as Inspect's. `names` maps the ids of earlier calls to functions."""
    text: str = message["content"]
    if message["role"] == "system":
        return ChatMessageSystem(content=text)
    if message["role"] == "user":
        return ChatMessageUser(content=text)
    if message["role"] == "tool":
        call = message.get("tool_call_id")
        return ChatMessageTool(content=text, tool_call_id=call, function=names.get(call or ""))
    reasoning = message.get("reasoning_content")
    content: str | list[Content] = text
    if reasoning:
        content = [ContentReasoning(reasoning=reasoning), ContentText(text=text)]
    calls = [_call(one) for one in message.get("tool_calls", ())]
    names.update((one.id, one.function) for one in calls)
    return ChatMessageAssistant(content=content, tool_calls=calls or None, model=model, source="generate")


def _call(call: Mapping[str, Any]) -> ToolCall:
    arguments = arguments_of(call)
    return ToolCall(
        id=call["id"],
        function=call["function"]["name"],
        arguments=arguments or {},
        parse_error=None if arguments is not None else f"no JSON object: {call['function']['arguments']}",
    )


def _output(messages: Sequence[ChatMessage], last: Conversation, model: str) -> ModelOutput:
    if not messages or not isinstance(messages[-1], ChatMessageAssistant):
        return ModelOutput(model=model)
    turn = last.replies.get(len(messages) - 1)
    stop: Any = _STOPS.get(turn.finish_reason or "", "unknown") if turn is not None else "unknown"
    return ModelOutput(model=model, choices=[ChatCompletionChoice(message=messages[-1], stop_reason=stop)])


def _status(run: ExportedRun) -> EvalStatus:
    if is_locked(run.path):
        return "started"
    planned = run.directory.info.planned
    return "success" if planned is None or run.finished >= planned else "cancelled"


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_dumped)


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else str(value)
