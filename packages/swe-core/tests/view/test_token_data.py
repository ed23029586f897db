"""The data of the pages of tokens and chains: the rows of a trainer, and a home for each sampled token."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swe_core.api.records import Failure, Retried
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import FOLDERS, ROLLOUTS_FILE, TURNS_FILE
from swe_core.view.message_data import message_data, shown_message
from swe_core.view.site import NotShown, ShownRun, Site
from swe_core.view.token_data import reason_sentence, token_data, tries_of
from swe_testing.records import make_run, make_turn
from swe_testing.sample_runs import WordTokenizer, add_sample, sample_training

from .html import html
from .odd_rollout import NAME, add_odd

COMPACTION, DRIFT, TITLE, UNDELIVERED = (f"moto-7365-g0-{attempt}" for attempt in range(4))
BRANCH = "moto-7300-g1-1"
ERROR, STALE = "pydantic-8511-g2-1", "pydantic-8511-g2-2"


@pytest.fixture(scope="module")
def run(training: Path) -> ShownRun:
    return Site([training]).run("train")


def data_of(run: ShownRun, rollout_id: str) -> dict[str, Any]:
    return token_data(run, rollout_id, tries_of(run, rollout_id, run.head(rollout_id)))


def whole(data: dict[str, Any], place: int) -> list[int]:
    """The ids of a turn's prompt and reply, as the page puts them together."""
    turn = data["turns"][place]
    before = turn["base"] if turn["base"] is not None else turn["of"]
    ids = [] if before is None else whole(data, before)
    if turn["base"] is None:
        ids = ids[: turn["shared"]]
    return [*ids, *turn["prompt"], *turn["reply"]]


def own(data: dict[str, Any], place: int) -> tuple[list[int], list[int]]:
    """The prompt and the reply that a turn adds to a row."""
    turn = data["turns"][place]
    known = len(whole(data, turn["base"])) if turn["base"] is not None else 0
    ids = whole(data, place)[known:]
    return ids[: len(ids) - len(turn["reply"])], turn["reply"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> ShownRun:
    made = make_run(tmp_path_factory.mktemp("runs") / "odd")
    add_odd(made, WordTokenizer())
    return Site([made.path]).run("odd")


@pytest.mark.parametrize("name", ["run", "odd"])
def test_rows_are_those_of_a_trainer(name: str, request: pytest.FixtureRequest) -> None:
    """And each sampled token is trained or dropped once."""
    run: ShownRun = request.getfixturevalue(name)
    for head in run.heads.all():
        data, chains = data_of(run, head.id), run.directory.chains(head.id)
        rows = [row for row in data["rows"] if row["cause"] is not None]
        assert [row["key"] for row in rows] == [str(number) for number in range(len(chains))]
        for row, chain in zip(rows, chains, strict=True):
            assert row["cause"] == chain.cause
            assert whole(data, row["parts"][-1][0]) == chain.input_ids.tolist()
            mask, logprobs, versions = [], [], []
            for place, trained in row["parts"]:
                prompt, reply = own(data, place)
                turn = data["turns"][place]
                sampled = [version for version, length in turn["versions"] for _ in range(length)]
                known = [trained and not np.isnan(logprob) for logprob in turn["logprobs"]]
                found = zip(known, turn["logprobs"].tolist(), sampled, strict=True)
                for is_known, logprob, version in [(False, 0.0, -1)] * len(prompt) + list(found):
                    mask.append(is_known)
                    logprobs.append(logprob if is_known else 0.0)
                    versions.append(version if is_known else -1)
                assert len(reply) == len(known)
            assert mask == chain.completion_mask.tolist()
            assert np.allclose(logprobs, chain.old_log_probs, atol=1e-4)
            assert versions == chain.versions.tolist()
        trained: Counter[int] = Counter(
            place for row in data["rows"] for place, is_trained in row["parts"] if is_trained
        )
        shown = {place for row in data["rows"] for place, _ in row["parts"]}
        counted: Counter[str | None] = Counter()
        for place, turn in enumerate(data["turns"]):
            assert place in shown
            assert trained[place] == (turn["dropped"] is None)
            for logprob in turn["logprobs"]:
                unknown = "no_logprobs" if np.isnan(logprob) else None
                reason = turn["dropped"] or unknown or data["tries"][0]["no_reward"]
                counted[reason] += 1
                assert reason is None or data["reasons"][reason]
        assert head.ledger is not None
        assert (counted.pop(None, 0), counted) == (head.ledger.trainable, head.ledger.dropped)


def test_rows_of_branches_sub_agents_and_forks(odd: ShownRun) -> None:
    data = data_of(odd, NAME)
    assert [(row["key"], row["cause"], row["parts"]) for row in data["rows"]] == [
        ("0", "start", [(0, True), (1, True), (4, False), (5, True)]),
        ("1", "branch", [(0, False), (2, True)]),
        ("2", "start", [(3, True)]),
        ("3", "template", [(6, True)]),
    ]
    assert data["turns"][2]["expected"] == 1


def test_marks_are_the_messages(run: ShownRun) -> None:
    data = data_of(run, DRIFT)
    tokens = dict(zip(data["vocabulary"]["ids"], data["vocabulary"]["tokens"], strict=True))
    found = 0
    for place, (turn, recorded) in enumerate(zip(data["turns"], run.directory.turns(DRIFT), strict=True)):
        prompt, _ = own(data, place)
        for first, end, role, number in turn["marks"]:
            text = "".join(tokens[id_] for id_ in prompt[first:end]).encode("latin-1").decode()
            message = recorded.messages[number - recorded.kept] if number >= recorded.kept else None
            if message is not None and message["role"] == role:
                assert text.strip() == message["content"].strip()
                found += 1
    assert found >= 5


def test_lost_try_has_rows_of_its_own(tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    words = WordTokenizer()
    record = add_sample(made, words, "again-g9-0", "again", 0, "resolved")
    folder = made.path / FOLDERS / record.id
    (folder / "retried-1").mkdir()
    (folder / "retried-1" / TURNS_FILE).write_bytes((folder / TURNS_FILE).read_bytes())
    failure = Failure(boundary="sandbox", type="SandboxDied", message="the sandbox died")
    lost = Retried(failure=failure, folder="retried-1", seconds=1.0)
    lines = (made.path / ROLLOUTS_FILE).read_bytes().splitlines(keepends=True)
    (made.path / ROLLOUTS_FILE).write_bytes(b"".join(lines[:-1]))
    made.append(record.model_copy(update={"retried": (lost,)}))
    data = data_of(Site([made.path]).run("train"), record.id)
    assert [one["no_reward"] for one in data["tries"]] == [None, "retried"]
    assert {row["key"] for row in data["rows"]} == {"0", "retried-1.0"}
    assert data["reasons"]["retried"] == reason_sentence("retried")


def test_trained_rows_have_the_trainers_logprobs(run: ShownRun) -> None:
    data = data_of(run, DRIFT)
    rows = [(row["row"], row["step"], row["tokens"] == len(row["logprobs"])) for row in data["trained"]]
    assert rows == [(0, 1, True), (1, 1, True)]
    assert data["group"] == {"skipped": None, "left_out": None}
    assert data_of(run, BRANCH)["group"]["skipped"] == "no_spread"


def test_rollout_without_tokens_says_so(tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    (made.path / FOLDERS / DRIFT / TURNS_FILE).unlink()
    for page in ("tokens", "chains"):
        with pytest.raises(NotShown, match="has no tokens: only an engine that owns them"):
            html(Site([made.path]), "run", "train", "rollout", DRIFT, page)


def test_missing_numpy_is_a_sentence(run: ShownRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(NotShown, match=r"needs numpy: pip install 'swe-core\[view\]'"):
        data_of(run, DRIFT)


def test_turns_that_do_not_fit_are_a_sentence(tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    file = made.path / FOLDERS / DRIFT / TURNS_FILE
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UsageError, match="turn"):
        data_of(Site([made.path]).run("train"), DRIFT)


def test_message_is_text_with_its_calls_and_other_fields() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    said = [{"type": "text", "text": "So:"}]
    message = {"role": "assistant", "content": said, "tool_calls": [call], "name": 3}
    assert shown_message(message)[:3] == ("assistant", 'So:\n[calls] bash {"command":"ls"}\n[name] 3', 0)
    for content in (None, 5, [1, None], {"a": 1}, [{"type": "image_url", "image_url": {}}]):
        turn = make_turn(messages=[{"content": content, "tool_calls": [None, {"function": 1}], "role": 7}])
        (found,) = message_data([turn], 0)
        assert found["new"][0][0] == "7"


def test_hostile_texts_do_not_end_the_data(tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    file = made.path / FOLDERS / DRIFT / TURNS_FILE
    bad = rb"</script><script>alert(1)</script><!-- \u202e \u0000 \u2028"
    file.write_bytes(file.read_bytes().replace(b"You are a coding agent", bad))
    text = html(Site([made.path]), "run", "train", "rollout", DRIFT, "chains")
    assert "<script>alert" not in text
    assert text.count("</script>") == text.count("<script")
