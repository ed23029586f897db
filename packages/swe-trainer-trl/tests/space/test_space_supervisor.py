"""The program in the container, with the real `swe-core run` and a local Hub; here without a container."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.hub.client import TryLater
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.run.settings import load_settings
from swe_core.system.ports import free_port
from swe_core.system.redaction import MARK, Redactor
from swe_testing.hf import LocalHF
from swe_trainer_trl.space import supervisor as module
from swe_trainer_trl.space.manifest import KEY, KEY_HEADER, Manifest
from swe_trainer_trl.space.state import Said, State, phase_of
from swe_trainer_trl.space.supervisor import Supervisor, data_directory

NAME = "tester/a-run"
OPEN = "the-key-of-this-deployment"
SECRET = "not-to-be-seen-anywhere"
SETTINGS = """
[run]
plugins = []
only = ["demo__memofn-1"]

[sandbox.local]
unisolated = true
"""
Make = Callable[..., Supervisor]
Ending = Callable[[Supervisor, int], None]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A supervisor in the working directory of a deployment."""
    (tmp_path / "train.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_WAITS", (0.0, 0.0))
    monkeypatch.setattr(module, "_PAUSED", 0.0)

    def supervisor(sets: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> Supervisor:
        manifest = Manifest(config="train.toml", sets=sets, secrets=("SECRET", KEY))
        given = {**os.environ, KEY: OPEN, "SECRET": SECRET, **(environment or {})}
        return Supervisor(manifest, tmp_path / "data", given)

    return supervisor


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Replaces the run by one that ends with an exit code at once."""

    def replace(supervisor: Supervisor, code: int) -> None:
        async def train() -> int:
            return code

        monkeypatch.setattr(supervisor, "_train", train)

    return replace


async def ask(port: int, path: str, key: str | None = None) -> httpx.Response:
    """What it answers, once it listens."""
    async with httpx.AsyncClient(trust_env=False) as client:
        with anyio.fail_after(30):
            while True:
                try:
                    headers = {} if key is None else {KEY_HEADER: key}
                    return await client.get(f"http://127.0.0.1:{port}{path}", headers=headers)
                except httpx.TransportError:
                    await anyio.sleep(0.01)


@pytest.mark.parametrize("opens", [True, False])
async def test_supervisor_answers_before_it_starts_anything(make: Make, port: int, opens: bool) -> None:
    """Without a key, to nobody who asks for its state."""
    supervisor = make(environment=None if opens else {KEY: ""})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run, port)
        assert (await ask(port, "/health")).json() == {"status": "ok"}
        assert (await ask(port, "/")).status_code == 200
        for key in (None, "", "x" * len(OPEN)):
            assert (await ask(port, "/state", key)).status_code == 403
        reply = await ask(port, "/state", OPEN)
        assert reply.status_code == (200 if opens else 403)
        assert not opens or State.model_validate_json(reply.content).phase == "starting"
        tasks.cancel_scope.cancel()


@pytest.mark.slow
async def test_supervisor_runs_to_the_end_reports_and_resumes(
    make: Make, port: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = make(sets=("run.attempts=1",))
    assert await supervisor.run(port) == 0
    state = supervisor.state()
    assert (state.phase, state.exit_code, state.resumed) == ("done", 0, False)
    assert any("1 rollout" in line for line in state.lines)
    printed = capfd.readouterr().out.splitlines()
    assert printed[-len(state.lines) :] == list(state.lines)
    run = tmp_path / "data" / "run"
    assert [rollout.outcome for rollout in RunDirectory.open(run).rollouts()] == ["resolved"]
    # What a run that is restored is known by.
    settings = load_settings(Path("train.toml"), ["run.attempts=1", "run.tasks=demo"])
    assert RunDirectory.open(run).info.settings == settings.model_dump(mode="json")

    again = make()
    assert again.command() == ["run", "--resume", str(run)]
    assert await again.run(port) == 0
    assert again.state().resumed
    assert len(RunDirectory.open(run).rollouts()) == 1


async def test_run_that_fails_says_why_without_its_secrets(make: Make, port: int) -> None:
    supervisor = make(sets=(f"run.agent={SECRET}",))
    assert await supervisor.run(port) == 2
    state = supervisor.state()
    assert (state.phase, state.exit_code) == ("failed", 2)
    said = "\n".join(state.lines)
    assert f"swe-core: error: unknown agent '{MARK}'" in said
    assert SECRET not in said


async def test_run_does_not_know_the_key(make: Make, port: int, tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text("import os\nopen('environment', 'w').write(repr(dict(os.environ)))\n")
    sets = ('run.extra_plugins=["./spy.py"]', "run.agent=nobody")
    assert await make(sets=sets).run(port) == 2
    environment = (tmp_path / "environment").read_text()
    assert SECRET in environment
    assert OPEN not in environment


@pytest.mark.slow
async def test_signal_stops_the_supervisor_and_the_run_can_resume(
    make: Make, port: int, tmp_path: Path
) -> None:
    supervisor = make(sets=("run.attempts=500", "run.concurrency=1"))
    run = tmp_path / "data" / "run"
    codes = []

    async def go() -> None:
        codes.append(await supervisor.run(port))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            while not list(run.glob("rollouts/*")):  # noqa: ASYNC110 - begun in another process
                await anyio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [0]
    assert (supervisor.state().phase, supervisor.state().exit_code) == ("stopped", 130)
    assert make().resumed


@pytest.mark.parametrize(
    ("code", "trouble", "paused"), [(1, None, True), (0, "hub", True), (0, "token", False)]
)
async def test_space_pauses_itself_in_the_end(
    make: Make,
    port: int,
    local_hf: LocalHF,
    ending: Ending,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    trouble: str | None,
    paused: bool,
) -> None:
    """A Hub in trouble is asked again. Where the token may not, it ends and says so."""
    await _space()
    if trouble == "hub":
        local_hf.faults.plan("spaces.pause", 503)
    elif trouble == "token":
        monkeypatch.setenv("HF_TOKEN", local_hf.add_token(["repo.content.read"]))
    supervisor = make(environment={"SPACE_ID": NAME})
    ending(supervisor, code)
    assert await supervisor.run(port) == code
    assert local_hf.hub.space(NAME).paused == paused
    assert supervisor.state().phase == ("failed" if code else "done")
    said = any(f"the Space '{NAME}' cannot be paused" in line for line in supervisor.state().lines)
    assert said == (trouble is not None)


async def _space() -> None:
    from huggingface_hub import HfApi

    create = partial(HfApi().create_repo, NAME, repo_type="space", space_sdk="docker")
    await anyio.to_thread.run_sync(create)


PUSHED = ("push.to=tester/kept",)


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ((), 0, "restored step 3 from 'tester/kept'"),
        (("run.attempts=2",), 2, "'tester/kept' has the checkpoints of a training with other settings"),
    ],
)
async def test_run_comes_from_the_hub_if_the_disk_is_empty(
    make: Make,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changed: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    """Another training of that name is left alone."""
    supervisor, begun = make(sets=PUSHED), []
    settings = load_settings(Path("train.toml"), [*PUSHED, *changed]).model_dump(mode="json")

    def restore(repo_id: str, run: Path) -> int:
        assert repo_id == "tester/kept"
        RunDirectory.create(run, new_run_info({}, settings, None, (), {}), Redactor())
        return 3

    async def train() -> int:
        begun.append(supervisor.command()[1])
        return 0

    monkeypatch.setattr(module, "restore", restore)
    monkeypatch.setattr(supervisor, "_train", train)
    assert await supervisor.run(port) == code
    assert begun == ([] if code else ["--resume"])
    assert said in "".join(supervisor.state().lines)
    assert (tmp_path / "data" / "run").exists() == (code == 0)


async def test_hub_that_does_not_say_what_it_keeps_is_not_replaced(
    make: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def restore(repo_id: str, run: Path) -> None:
        asked.append(repo_id)
        raise TryLater("not now")

    monkeypatch.setattr(module, "restore", restore)
    supervisor = make(sets=PUSHED)
    assert await supervisor.run(port) == 1
    assert len(asked) == 2
    assert supervisor.state().lines[:2] == ("swe-core: error: not now",) * 2


async def test_new_run_begins_where_the_hub_keeps_none(
    make: Make, port: int, local_hf: LocalHF, ending: Ending
) -> None:
    supervisor = make(sets=PUSHED)
    ending(supervisor, 0)
    assert await supervisor.run(port) == 0
    assert not supervisor.state().resumed
    assert local_hf.calls["hub.info"] == 1


def test_run_is_on_persistent_storage_if_it_exists(tmp_path: Path) -> None:
    assert data_directory({"HOME": "/home/user"}, tmp_path) == tmp_path
    assert data_directory({"HOME": "/home/user"}, tmp_path / "nothing") == Path("/home/user/data")


@given(st.lists(st.text()))
def test_output_has_no_secret_and_no_control_character(texts: list[str]) -> None:
    said = Said([SECRET])
    for text in texts:
        said.add(f"{text}{SECRET}\x1b[31m{text}\n")
    assert said.add("  1%\r 50%\r100% done\r\n") == "100% done"  # the last state of a progress bar
    assert said.add("\r\n") is None
    for line in said.lines:
        assert SECRET not in line
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    for number in range(60):
        said.add(str(number))
    assert (len(said.lines), said.lines[-1]) == (50, "59")


def test_progress_of_a_run(tmp_path: Path) -> None:
    assert phase_of(tmp_path) == ("starting", None)
    (tmp_path / "vllm.log").touch()
    assert phase_of(tmp_path) == ("serving", None)
    metrics = tmp_path / "metrics.jsonl"
    metrics.touch()
    assert phase_of(tmp_path) == ("serving", None)
    with metrics.open("wb") as file:
        for step in range(1, 2000):
            file.write(orjson.dumps({"step": step, "values": {"loss": 0.5}}) + b"\n")
        file.write(b'{"step": 2000')  # being written
    assert phase_of(tmp_path) == ("training", 1999)
