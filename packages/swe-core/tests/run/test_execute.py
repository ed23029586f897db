"""A run that is opened for a caller of its own, in any thread."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from swe_core.api.engine import TokenTable
from swe_core.api.records import Outcome
from swe_core.builtin.replay.engine import ReplayEngine
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import VOCABULARY_FILE, read_vocabulary
from swe_core.run.components import load_plugins
from swe_core.run.execute import create_directory, open_run
from swe_core.run.plan import plan_run
from swe_core.run.resume import check_same
from swe_core.run.settings import load_settings
from swe_core.system.redaction import Redactor

from ..rollout.runner_bench import Witness

SETS = ("run.agent=oracle", "run.plugins=[]", "sandbox.local.unisolated=true", 'run.only=["demo__memofn-1"]')


@pytest.mark.slow
def test_open_run_works_in_a_thread_and_resumes(tmp_path: Path) -> None:
    settings = load_settings(sets=SETS)
    plugins = load_plugins(settings.run)
    plan, out = plan_run(settings, plugins), tmp_path / "run"

    def outcome(name: str, resume: bool) -> Outcome:
        with start_blocking_portal() as portal:
            opened = open_run(plan, plugins, out, lambda *_: Witness(), resume=resume)
            with portal.wrap_async_context_manager(opened) as runner:
                request = runner.requests[0].model_copy(update={"id": name})
                return portal.call(runner.run, request).rollout.outcome

    assert outcome("one", resume=False) == "resolved"
    assert outcome("two", resume=True) == "resolved"
    assert RunDirectory.open(out).finished() == {"one": "resolved", "two": "resolved"}


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("limits.agent", 7.0, r"'limits\.agent' was .* may change"),
        ("grader.swe.reward", "fraction", "'grader.swe.reward' was not set when it was started and is 'frac"),
        ("agent.mini.turns", 9, "'agent.mini.turns' was not set when it was started and is 9 now"),
    ],
)  # fmt: skip
def test_setting_cannot_change_on_resume_unless_the_caller_calls_it_adjustable(
    setting: str, value: object, says: str, tmp_path: Path
) -> None:
    """Tables of components record only what was set."""
    settings = load_settings(sets=SETS)
    plugins = load_plugins(settings.run)
    plan = plan_run(settings, plugins)
    run = create_directory(plan, plugins, tmp_path / "run", Redactor(), 1)
    table, *component, key = setting.split(".")
    before = getattr(plan.settings, table)
    added = {**before, component[0]: {key: value}} if component else before.model_copy(update={key: value})
    changed = dataclasses.replace(plan, settings=plan.settings.model_copy(update={table: added}))
    with pytest.raises(UsageError, match=says):
        check_same(run, changed)
    check_same(run, changed, [setting])


@pytest.mark.slow
def test_run_has_the_vocabulary_of_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its start, and a resumed run leaves the file as it is."""
    monkeypatch.setattr(ReplayEngine, "vocabulary", lambda _: TokenTable("letters", [b"a", b"b"], {}))
    settings = load_settings(sets=(*SETS, "run.agent=mini"))
    plugins = load_plugins(settings.run)
    plan, out = plan_run(settings, plugins), tmp_path / "run"

    def opened(resume: bool) -> None:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                open_run(plan, plugins, out, lambda *_: Witness(), resume=resume)
            ),
        ):
            assert (out / VOCABULARY_FILE).is_file()

    opened(resume=False)
    found = read_vocabulary(out)
    assert found is not None
    assert (found.tokenizer, found.tokens) == ("letters", ["a", "b"])
    (out / VOCABULARY_FILE).write_bytes(b"earlier")
    opened(resume=True)
    assert (out / VOCABULARY_FILE).read_bytes() == b"earlier"
