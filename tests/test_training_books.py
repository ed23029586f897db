"""What a training says of itself: its files, its report and its journal agree, at its end and after a kill.
It ends where it should, and a resume remembers what it was told."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import read_trained
from swe_testing.serving.start import MODEL

from .conftest import Scripted, wait_for_the_end
from .test_training_input import GROUP, Command, Policy, options, serving
from .training import Training
from .warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]


@pytest.fixture
def command(tmp_path: Path, scratch: Path, warm_trainer: Warm) -> Any:
    found = Command(warm_trainer, tmp_path / "run", scratch, tmp_path / "stderr")
    yield found
    for process in found.started:
        if process.poll() is None:  # the test has failed
            process.kill()
            process.wait()


def served(scripted: Scripted, word: str = "done", **special: Any) -> Policy:
    return Policy([word], **{**scripted.keywords, "models": (MODEL,), **special})


def check_books(out: Path) -> dict[str, Any]:
    """Every place that says what was trained says the same. Returns the report's part."""
    run, done = RunDirectory.open(out), Training(0, "", "", out)
    report = done.report()
    account: dict[str, Any] = report["training"]
    tokens = account["tokens"]
    with_ledger = [rollout.ledger for rollout in run.rollouts() if rollout.ledger is not None]
    trainable = sum(ledger.trainable for ledger in with_ledger)
    dropped = sum((Counter(ledger.dropped) for ledger in with_ledger), Counter())
    left_out = Counter(tokens["dropped"])
    left_out.subtract(dropped)
    assert report["ledger"]["trainable"] == trainable
    assert tokens["sampled"] == sum(ledger.sampled for ledger in with_ledger)
    assert trainable == tokens["trained"] + tokens["waiting"] + left_out.total()
    assert tokens["unaccounted"] == 0
    rows = read_trained(out)
    assert tokens["trained"] == sum(row.tokens for row in rows)
    steps = {line["step"]: line["values"] for line in done.log() if "loss" in line["values"]}
    last = max(row.step for row in rows)
    assert account["steps"] == last
    logged = [steps[step]["batch/trained_tokens_per_step"] for step in range(1, last + 1)]
    assert tokens["trained"] == sum(logged)
    journal = [row for row in done.rows().values() if row.step is not None]
    assert Counter(row.step for row in journal) == Counter(row.step for row in rows)
    if (out / "training.json").exists():
        assert json.loads((out / "training.json").read_text()) == account
    return account


def test_books_agree_after_a_kill_and_after_lost_steps(
    command: Command, tiny_model: Path, scripted: Scripted
) -> None:
    """The third step comes after the last checkpoint, so that its rows are trained twice."""
    server = served(scripted, faults=["ok"] * (4 * GROUP), then="hang")
    with serving(server) as url:
        process = command.start(*options(url, tiny_model, max_steps=5, save_steps=2))
        command.until(lambda: (command.out / "metrics.jsonl").exists() and command.steps()[-1:] == [3])
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for_the_end(command.scratch)  # the rollouts end by themselves, with their sandboxes
    assert not (command.out / "training.json").exists()
    killed = check_books(command.out)
    assert killed["steps"] == 3
    with serving(served(scripted)) as url:
        assert command.end(command.start("--resume", str(command.out), "--engine-url", url)) == 0
    assert command.steps() == [1, 2, 3, 3, 4, 5]
    ended = check_books(command.out)
    assert ended["steps"] == 5
    assert (command.out / "training.json").exists()


def test_epochs_end_with_the_last_group_and_a_resume_remembers_more(
    command: Command, tiny_model: Path, scripted: Scripted
) -> None:
    """Three groups of two rows, in steps of four: the last step has two, and no rollout is one too many."""
    more = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 2 * GROUP}
    with serving(served(scripted)) as url:
        assert command.end(command.start(*options(url, tiny_model, **more))) == 0, command.said
        assert [row.step for row in read_trained(command.out)] == [1] * 4 + [2] * 2
        assert check_books(command.out)["groups"] == 3
        assert len(RunDirectory.open(command.out).rollouts()) == 3 * GROUP
        resume = ["--resume", str(command.out)]
        raised = command.start(*resume, "--set", "worker.trl.grpo.num_train_epochs=4")
        assert command.end(raised) == 0, command.said
        assert check_books(command.out)["groups"] == 4
        info = RunDirectory.open(command.out).info
        (change,) = info.changes
        assert (change.setting, change.before, change.after) == ("worker.trl.grpo.num_train_epochs", 3, 4)
        assert info.settings["worker"]["trl"]["grpo"]["num_train_epochs"] == 4
        assert command.end(command.start(*resume)) == 0, command.said  # it remembers, so it is at its end
        assert check_books(command.out)["groups"] == 4
        said = command.refused(*resume, "--set", "worker.trl.grpo.seed=9", code=2)
        assert "the setting 'worker.trl.grpo.seed' was None when it was started and is 9 now" in said
        said = command.refused(*resume, "--set", "worker.trl.preset=toy", code=2)
        assert "the setting 'worker.trl.preset' was None when it was started and is 'toy' now" in said


def test_training_without_a_row_says_why(command: Command, tiny_model: Path, scripted: Scripted) -> None:
    """An agent that fails after a call would have its 0 trained."""
    fails = ("--set", "agent.scripted.mark=fails")
    with serving(served(scripted)) as url:
        said = command.refused(*options(url, tiny_model, max_steps=-1, num_train_epochs=2), *fails, code=1)
    assert said.startswith("nothing was trained: no group has a row for the trainer (skipped: 2 too_few_")


def test_console_has_a_line_for_each_step(command: Command, tiny_model: Path, scripted: Scripted) -> None:
    """What libraries say is in a file."""
    with serving(served(scripted)) as url:
        assert command.end(command.start(*options(url, tiny_model))) == 0, command.said
    lines = [line for line in command.said.splitlines() if " step " in line]
    form = (
        r"\d\d:\d\d:\d\d INFO step {step}/2  reward 0\.50  loss -?\d\.\d{{3}}  grad \d+\.\d\d  rollouts 2  "
        r"tokens [\d,]+  staleness [\d.-]+  ({seconds})waited \d+\.\d s  version {version}"
    )
    assert re.fullmatch(form.format(step=1, seconds="", version=2), lines[0])
    assert re.fullmatch(form.format(step=2, seconds=r"\d+\.\d s  ", version=3), lines[1])
    said = command.said
    for noise in ("{'", "%|", "Loading weights", "Warning:", "[transformers]"):
        assert noise not in said
    assert "transformers" in (command.out / "libraries.log").read_text()


def test_libraries_are_shown_on_request(command: Command, tiny_model: Path, scripted: Scripted) -> None:
    with serving(served(scripted)) as url:
        assert command.end(command.start(*options(url, tiny_model, "--verbose"))) == 0, command.said
    assert "[transformers]" in command.said
    assert not (command.out / "libraries.log").exists()
