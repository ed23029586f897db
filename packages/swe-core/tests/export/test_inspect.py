"""Logs of Inspect, read back by Inspect."""

from __future__ import annotations

from pathlib import Path

from inspect_ai.log import EvalLog, read_eval_log, read_eval_log_sample_summaries
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool

from swe_core.api.agent import AgentEvent
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.files import locked

from ..hub.runs import add, error, new_run, rollout
from .conftest import Export


def read(folder: Path) -> EvalLog:
    (file,) = folder.glob("*.eval")
    return read_eval_log(str(file))


def test_sample_is_a_rollout(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0"))
    log = read(exported(run, "inspect"))
    assert (log.eval.task, log.eval.model, log.eval.solver) == ("demo", "owner/model", "mini")
    assert log.eval.packages == {"swe-core": "0.1.0"}
    assert log.samples is not None
    (sample,) = log.samples
    assert (sample.id, sample.epoch, sample.input) == ("a", 1, "look")
    assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    called, answered = sample.messages[1:3]
    assert isinstance(called, ChatMessageAssistant)
    assert called.tool_calls is not None
    assert (called.tool_calls[0].function, called.tool_calls[0].arguments) == ("bash", {"command": "ls"})
    assert isinstance(answered, ChatMessageTool)
    assert (answered.text, answered.function) == ("a.py", "bash")
    assert sample.output.completion == "Done."
    assert sample.scores is not None
    score = sample.scores["resolved"]
    assert (score.value, score.answer) == (1.0, "diff\n")
    assert score.metadata == {
        **{"reward": 1.0, "unshaped_reward": 1.0},
        **{"fail_to_pass": {"t::a": "PASSED"}, "pass_to_pass": {"t::b": "PASSED"}},
    }
    assert sample.model_usage["owner/model"].total_tokens == 10
    assert (sample.total_time, sample.error) == (2.5, None)


def test_score_is_the_verdict_whatever_the_reward(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0", reward=0.25, unshaped_reward=1.0), tokens=False)
    add(run, rollout("a-1", outcome="unresolved", reward=0.5), tokens=False)
    log = read(exported(run, "inspect"))
    scores = [sample.scores["resolved"] for sample in log.samples or [] if sample.scores]
    assert [(score.value, (score.metadata or {})["reward"]) for score in scores] == [(1.0, 0.25), (0.0, 0.5)]


def test_attempts_are_epochs_and_errors_have_no_score(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0"))
    add(run, rollout("a-1", outcome="unresolved", reward=0.0, ended_by="wall"))
    add(run, error("b-0", "the sandbox is gone"))
    add(run, rollout("b-1", outcome="cancelled", cancelled_as="stale", reward=None, grade=None))
    folder = exported(run, "inspect")
    log = read(folder)
    assert log.status == "success"
    assert log.samples is not None
    samples = {(one.id, one.epoch): one for one in log.samples}
    assert {key: one.error and one.error.message for key, one in samples.items()} == {
        ("a", 1): None,
        ("a", 2): None,
        ("b", 1): "SandboxDied: the sandbox is gone",
        ("b", 2): "cancelled: stale",
    }
    assert {key for key, one in samples.items() if one.scores is None} == {("b", 1), ("b", 2)}
    limit = samples["a", 2].limit
    assert limit is not None
    assert limit.type == "time"
    assert log.results is not None
    (score,) = log.results.scores
    assert (score.scored_samples, score.unscored_samples) == (2, 2)
    assert {name: one.value for name, one in score.metrics.items()} == {
        "accuracy": 0.5,
        "pass@1": 0.5,
        "pass@2": 1.0,
    }
    (file,) = folder.glob("*.eval")
    summaries = read_eval_log_sample_summaries(str(file))
    assert {(one.id, one.epoch) for one in summaries if one.completed} == samples.keys()
    assert read_eval_log(str(file), header_only=True).eval.config.epochs == 2


def test_attempts_of_several_groups_have_epochs_of_their_own(run: RunDirectory, exported: Export) -> None:
    for name in ("a-g0-0", "a-g0-1", "a-g1-0"):
        add(run, rollout(name).model_copy(update={"task_id": "a"}))
    log = read(exported(run, "inspect"))
    assert log.samples is not None
    assert [one.epoch for one in log.samples] == [1, 2, 3]
    assert [one.metadata["group"] for one in log.samples] == ["a-g0", "a-g0", "a-g1"]


def test_black_box_rollout_has_its_transcript(run: RunDirectory, exported: Export) -> None:
    folder = run.folder("a-0")
    folder.add_event(AgentEvent(kind="reasoning", text="hm"))
    folder.add_event(AgentEvent(kind="tool_call", text="ls", tool="bash"))
    folder.close()
    run.append(rollout("a-0"))
    log = read(exported(run, "inspect"))
    assert log.samples is not None
    first, second = log.samples[0].messages
    assert isinstance(first.content, list)
    assert first.content[0].type == "reasoning"
    assert isinstance(second, ChatMessageAssistant)
    assert second.tool_calls is not None
    assert second.tool_calls[0].parse_error == "no JSON object: ls"


def test_status_is_that_of_the_run(tmp_path: Path, exported: Export) -> None:
    run = new_run(tmp_path / "run", planned=3)
    add(run, rollout("a-0"))
    assert read(exported(run, "inspect")).status == "cancelled"  # interrupted
    with locked(run.path):
        assert read(exported(run, "inspect")).status == "started"


def test_each_run_is_a_log(tmp_path: Path, exported: Export) -> None:
    one, two = new_run(tmp_path / "one"), new_run(tmp_path / "two")
    add(one, rollout("a-0"))
    add(two, rollout("a-0"))
    assert len(list(exported(one, "inspect", two.path).glob("*.eval"))) == 2
