"""The data set card: its summary, and the text of its owner."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import DatasetCard

from swe_core.hub.card import BEGIN, END, card
from swe_core.hub.pushed_run import PushedRun

from .runs import error, new_run, rollout


def pushed(tmp_path: Path, **settings: object) -> PushedRun:
    run = PushedRun.of(new_run(tmp_path / "run", **settings))
    return run.with_shard(
        [rollout("a-0"), rollout("a-1", outcome="unresolved", reward=0.0), error("b-0", "gone")]
    )


def text_of(run: PushedRun, existing: str | None = None) -> str:
    text = card("owner/rows", [run], existing)
    assert text is not None
    return text


def test_card_summarises_the_runs(tmp_path: Path) -> None:
    text = text_of(pushed(tmp_path))
    assert "3 rollouts of 2 tasks, 1 of 2 resolved (50.0%)" in text
    assert "| demo | owner/model | mini | box | 2 | 3 | 1 of 2 resolved (50.0%) | 1 | 0.1.0 |" in text
    assert 'load_dataset("owner/rows", split="train")' in text
    data = DatasetCard(text).data
    assert data["configs"][0]["data_files"] == [{"split": "train", "path": "data/*.parquet"}]
    assert data.license is None  # the owner's to state


def test_card_has_no_local_path(tmp_path: Path) -> None:
    run = PushedRun.of(new_run(tmp_path / "run", run={"tasks": str(tmp_path / "rows.jsonl")}))
    run = run.with_shard([rollout("a-0", model=str(tmp_path / "weights"))])
    notes = (f"see {Path.home()}/x", r"![a](http://x) \[b](http://y) `c`")
    run = run.model_copy(update={"notes": notes})
    text = text_of(PushedRun.model_validate_json(run.model_dump_json()))
    assert r"- \!\[a\](http://x) \\\[b\](http://y) \`c\`" in text  # neither a link nor an image
    assert str(tmp_path) not in text
    assert "| rows.jsonl | weights |" in text


def test_card_keeps_text_of_the_owner(tmp_path: Path) -> None:
    run = pushed(tmp_path)
    for mine in ("# Mine\n", f"# Mine\n{BEGIN}\n"):  # a README without our marks
        assert card("owner/rows", [run], mine) is None
    first = text_of(run)
    theirs = first.replace("tags:", "license: mit\ntags:").replace("None is stated.", "MIT, with thanks.")
    again = text_of(run.with_shard([rollout("c-0")]), theirs)
    assert "license: mit" in again
    assert "MIT, with thanks." in again
    assert "4 rollouts of 3 tasks" in again
    assert again.count(BEGIN) == again.count(END) == 1
