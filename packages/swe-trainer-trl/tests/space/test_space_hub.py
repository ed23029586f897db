"""Deployments, created on a local Hub by the real client."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from swe_core.cli import main
from swe_core.errors import ConfigError, SweError, UsageError
from swe_testing.bad_inputs import BadInput, bad_inputs
from swe_testing.hf import LocalHF
from swe_testing.hf.repos import Repo
from swe_testing.ports import refusing
from swe_trainer_trl.space import wheels
from swe_trainer_trl.space.deployment import Deployment, Needs, RepoKind, Request, plan
from swe_trainer_trl.space.hub import Hub
from swe_trainer_trl.space.keys import KeyStore
from swe_trainer_trl.space.manifest import KEY, KEY_HEADER
from swe_trainer_trl.space.state import State
from swe_trainer_trl.space.wheels import Wheel

from ..answering import answering

NAME = "tester/a-run"
ENVIRONMENT = {"WANDB_API_KEY": "a-key-that-is-not-in-any-file"}
Planned = Callable[..., Deployment]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    (tmp_path / "t.toml").write_text("[run]\nattempts = 2\n")
    (tmp_path / "w.whl").write_bytes(b"a wheel")

    def make(needs: Needs | None = None, **changes: object) -> Deployment:
        values = {"target": "Space", "repo_id": NAME, "hardware": "cpu-basic", "config": Path("t.toml")}
        values |= {"secrets": ("WANDB_API_KEY",), "variables": ("A=b",)}
        request = Request(**(values | changes))
        wheel = Wheel("swe-core", "0.1.0", tmp_path / "w.whl", "0" * 64)
        return plan(request, {"t.toml": tmp_path / "t.toml"}, [wheel], "1.16.0", needs)

    return make


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys")


@pytest.fixture
def hub(threaded_hf: LocalHF, keys: KeyStore) -> Hub:
    return Hub(keys=keys)


def test_space_is_created_with_its_secrets_before_its_files(
    threaded_hf: LocalHF, hub: Hub, keys: KeyStore, planned: Planned, tmp_path: Path
) -> None:
    url = hub.deploy(planned(hardware="l4x1"), ENVIRONMENT)
    assert url == f"{threaded_hf.origin}/spaces/{NAME}"
    repo = threaded_hf.hub.repo("space", NAME)
    space = threaded_hf.hub.space(NAME)
    assert repo.private
    assert (space.sdk, space.hardware, space.variables) == ("docker", "l4x1", {"A": "b"})
    key = keys.find(NAME)
    assert space.secrets == {"HF_TOKEN": threaded_hf.token, KEY: key, **ENVIRONMENT}
    assert (tmp_path / "keys" / "tester--a-run").stat().st_mode & 0o777 == 0o600
    assert set(repo.files) == {*planned().files, ".gitattributes"}
    for secret in space.secrets.values():
        assert len(secret) > 20
        assert not [name for name, content in repo.files.items() if secret.encode() in content]
    assert hub.status(NAME).stage == "RUNNING"


def test_each_deployment_has_another_key_and_may_have_another_token(
    threaded_hf: LocalHF, hub: Hub, keys: KeyStore, planned: Planned
) -> None:
    other, found = threaded_hf.add_token(["repo.write"]), []
    for name in ("tester/one", "tester/two", "tester/one"):
        hub.deploy(planned(repo_id=name, secrets=("HF_TOKEN=ITS",)), {"ITS": other})
        assert threaded_hf.hub.space(name).secrets["HF_TOKEN"] == other
        found.append(keys.find(name))
        hub.delete(name)
        assert keys.find(name) is None
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("token", "environment", "hardware", "said"),
    [
        (None, ENVIRONMENT, "cpu-basic", f"cannot deploy .* '{NAME}': there is no Hugging Face token; set"),
        ("login", {}, "cpu-basic", "the secret 'WANDB_API_KEY' has no value: set the variable"),
        ("hf_" + "x" * 34, ENVIRONMENT, "cpu-basic", "Hugging Face does not accept the token"),
        ("reader", ENVIRONMENT, "cpu-basic", r"may not do that \(.*repo\.write.*\); it needs"),
        ("role", ENVIRONMENT, "cpu-basic", "can only read: log in with one that may write"),
        ("login", ENVIRONMENT, "l4x1", "Hugging Face refuses it for the account's limits"),
    ],
)
def test_deployment_that_is_refused_leaves_nothing(
    threaded_hf: LocalHF,
    planned: Planned,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    environment: dict[str, str],
    hardware: str,
    said: str,
) -> None:
    """For the account, its token or a secret."""
    threaded_hf.hub.may_pay = False
    api = HfApi()
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    elif token == "role":
        api.whoami = lambda *_, **__: {"auth": {"accessToken": {"role": "read"}}}
    elif token != "login":
        wrong = threaded_hf.add_token(["repo.content.read"]) if token == "reader" else token
        monkeypatch.setenv("HF_TOKEN", wrong)
    with pytest.raises(SweError, match=said) as error:
        Hub(api).deploy(planned(hardware=hardware), environment)
    assert isinstance(error.value, UsageError) == (hardware == "cpu-basic")
    assert threaded_hf.hub.repos == {}
    assert (token is not None and environment) or threaded_hf.calls.total() == 0


def test_name_that_is_taken_stays_as_it_is(threaded_hf: LocalHF, hub: Hub, planned: Planned) -> None:
    HfApi().create_repo(NAME, repo_type="space", space_sdk="docker")
    before = threaded_hf.hub.repo("space", NAME).commits[-1].id
    with pytest.raises(UsageError, match=r"the name is taken \(.*\); choose another --repo-id"):
        hub.deploy(planned(), ENVIRONMENT)
    assert threaded_hf.hub.repo("space", NAME).commits[-1].id == before
    assert threaded_hf.hub.space(NAME).secrets == {}


BACKUP = "testers/backup"


@pytest.mark.parametrize(
    ("target", "kind", "called"), [("Space", "dataset", "data set"), ("Job", "model", "model")]
)
def test_backup_that_the_token_may_not_write_to(
    threaded_hf: LocalHF, hub: Hub, planned: Planned, target: str, kind: RepoKind, called: str
) -> None:
    """Found out before anything is created, with the token that the run has there."""
    HfApi().create_repo(BACKUP, repo_type=kind)
    before = dict(threaded_hf.hub.repos)
    needs = Needs(pushes=((kind, BACKUP),))
    reader = {"READER": threaded_hf.add_token(["repo.content.read"])}
    deployment = planned(needs, target=target, secrets=("HF_TOKEN=READER",))
    said = rf"push to the {called} '{BACKUP}': the Hugging Face token may not do that .* by push\.to"
    with pytest.raises(UsageError, match=said):
        hub.deploy(deployment, reader) if target == "Space" else hub.run_job(deployment, reader, "1h")
    assert threaded_hf.hub.repos == before
    assert threaded_hf.jobs.jobs == {}
    unknown = {"READER": "hf_" + "x" * 34}
    with pytest.raises(UsageError, match=r"does not accept the token .*--secret HF_TOKEN=VARIABLE"):
        hub.deploy(planned(needs, secrets=("HF_TOKEN=READER",)), unknown)
    missing = Needs(pushes=((kind, BACKUP), ("model", "testers/not-there")))  # will be created
    hub.deploy(planned(missing), ENVIRONMENT)  # the login of this machine may


def test_secrets_that_do_not_arrive_are_set_again_and_in_the_end_there_is_no_space(
    threaded_hf: LocalHF, hub: Hub, keys: KeyStore, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, losses = HfApi.get_space_secrets, 2

    def losing(api: HfApi, repo_id: str) -> object:
        nonlocal losses
        if losses:
            losses -= 1
            del threaded_hf.hub.space(repo_id).secrets["WANDB_API_KEY"]
        return ask(api, repo_id)

    monkeypatch.setattr(HfApi, "get_space_secrets", losing)
    with pytest.raises(SweError, match="does not have the secrets 'WANDB_API_KEY'"):
        hub.deploy(planned(), ENVIRONMENT)
    assert threaded_hf.hub.repos == {}
    assert keys.find(NAME) is None
    losses = 1
    hub.deploy(planned(), ENVIRONMENT)
    assert threaded_hf.hub.space(NAME).secrets["WANDB_API_KEY"] == ENVIRONMENT["WANDB_API_KEY"]


@pytest.mark.parametrize(
    ("route", "status", "said"),
    [
        ("hub.auth", 503, r"answered 503 .*; try again later$"),  # before anything is made
        ("hub.create", 500, r"'tester/a-run': .* answered 500 .*it may have been created"),
        ("hub.commit", 403, "'tester/a-run': the Hugging Face token may not do that"),
        ("hub.delete", 500, r"could not be deleted again .*: delete 'tester/a-run' on the Hub"),
    ],
)
def test_hub_that_has_trouble(
    threaded_hf: LocalHF, hub: Hub, planned: Planned, route: str, status: int, said: str
) -> None:
    """Whenever it has, no Space is left, or one that is named."""
    if route == "hub.delete":
        threaded_hf.faults.plan("hub.commit", 403)
    threaded_hf.faults.plan(route, status)
    with pytest.raises(SweError, match=said):
        hub.deploy(planned(Needs(pushes=(("dataset", BACKUP),))), ENVIRONMENT)
    assert bool(threaded_hf.hub.repos) == (route == "hub.delete")


def test_unanswered_creation_is_reported(threaded_hf: LocalHF, hub: Hub, planned: Planned) -> None:
    threaded_hf.faults.routes, threaded_hf.faults.lost = ("hub.create",), 1.0
    with pytest.raises(SweError, match=r"does not answer .*by `swe-core space delete tester/a-run` before"):
        hub.deploy(planned(), ENVIRONMENT)
    with pytest.raises(SweError, match=r"it may have been created all the same: .* delete it by the data"):
        hub.run_job(planned(target="Job"), ENVIRONMENT, "1h")
    threaded_hf.faults.lost = 0.0
    assert threaded_hf.hub.space(NAME).secrets
    with pytest.raises(UsageError, match="'tester/a-run': the name is taken") as error:
        hub.deploy(planned(), ENVIRONMENT)
    assert "may have been created" not in str(error.value)  # that this one was not is known
    hub.delete(NAME)
    hub.deploy(planned(), ENVIRONMENT)


def test_missing_space(hub: Hub) -> None:
    logs = partial(hub.logs, build=False, follow=False)
    for act in (hub.status, hub.pause, hub.restart, hub.delete, lambda name: list(logs(name))):
        with pytest.raises(UsageError, match="the Space 'tester/nothing': Hugging Face has nothing of that"):
            act("tester/nothing")


def test_space_says_how_far_it_is_to_who_has_its_key(
    threaded_hf: LocalHF, hub: Hub, keys: KeyStore, planned: Planned
) -> None:
    hub.deploy(planned(), ENVIRONMENT)
    state = State(phase="training", step=3, lines=("group 0: rewards 0 1",))
    with answering(state.model_dump_json().encode()) as (url, asked):
        threaded_hf.hub.space(NAME).host = url
        assert hub.status(NAME).state == state
    (headers,) = asked
    assert headers[KEY_HEADER] == keys.find(NAME)
    assert headers["Authorization"] == f"Bearer {threaded_hf.token}"


def test_space_that_does_not_say(threaded_hf: LocalHF, hub: Hub, keys: KeyStore, planned: Planned) -> None:
    hub.deploy(planned(), ENVIRONMENT)
    with answering(b"<html>") as (url, _):
        threaded_hf.hub.space(NAME).host = url
        assert hub.status(NAME).silent.startswith("it does not answer (ValidationError")
    with refusing() as url:
        threaded_hf.hub.space(NAME).host = url
        assert hub.status(NAME).silent.startswith("it does not answer (ConnectError")
    keys.forget(NAME)
    assert hub.status(NAME).silent == "it was not deployed from this machine"


def test_job_has_its_files_in_a_data_set(threaded_hf: LocalHF, hub: Hub, planned: Planned) -> None:
    image = next(iter(threaded_hf.jobs.images))
    job, url = hub.run_job(planned(target="Job", base_image=image), ENVIRONMENT, "90m")
    repo = threaded_hf.hub.repo("dataset", NAME)
    assert repo.private
    assert {"start.sh", "job/t.toml", "requirements.txt"} <= set(repo.files)
    assert job in url
    info = HfApi().inspect_job(job_id=job)
    assert info.command == ["sh", "/deploy/start.sh"]
    assert info.environment == {"A": "b"}
    (volume,) = info.volumes or []
    assert (volume.type, volume.source, volume.mount_path) == ("dataset", NAME, "/deploy")
    spec = threaded_hf.jobs.jobs[job].spec
    assert spec["timeoutSeconds"] == 5400
    assert spec["secrets"] == {"HF_TOKEN": threaded_hf.token, **ENVIRONMENT}


def test_job_that_is_refused_leaves_nothing(threaded_hf: LocalHF, hub: Hub, planned: Planned) -> None:
    threaded_hf.faults.quota = 0
    with pytest.raises(SweError, match=r"the Job 'tester/a-run': .* refuses it for the account's limits"):
        hub.run_job(planned(target="Job"), ENVIRONMENT, "1h")
    assert threaded_hf.hub.repos == {}
    with pytest.raises(ConfigError, match=r"--hardware 'l4x': .*did you mean 'l4x"):
        hub.run_job(planned(target="Job", hardware="l4x"), ENVIRONMENT, "1h")


Cli = Callable[..., int]

DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
ROW = {"instance_id": "getmoto__moto-1", "repo": "getmoto/moto", "base_commit": "a" * 40}
ROW |= {"problem_statement": "It is broken.", "patch": DIFF, "test_patch": DIFF, "PASS_TO_PASS": []}
ROW["FAIL_TO_PASS"] = ["tests/test_x.py::test_a"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """The command, in this process, in a directory with settings; its exit code."""
    (tmp_path / "t.toml").write_text('[run]\ntasks = "rows.jsonl"\n[sandbox.local]\nunisolated = true\n')
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    wheel = tmp_path / "wheels" / "swe_sandbox_docker-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a wheel")
    made = [Wheel("swe-sandbox-docker", "0.1.0", wheel, "0" * 64)]
    monkeypatch.setattr(wheels, "make_wheels", lambda packages, directory: made)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["swe-core", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return run


SANDBOXES = ("--set", 'run.plugins=["hf"]', "--set", "sandbox.hf.internet=true")
DEPLOY = ("space", "deploy", "--repo-id", NAME, "--config", "t.toml")


def test_life_of_a_space_by_the_command_line(
    threaded_hf: LocalHF, cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli(*DEPLOY, "--set", "run.attempts=3", "--requirement", "mine==1") == 0
    out = capsys.readouterr().out
    assert f"{threaded_hf.origin}/spaces/{NAME}" in out
    files = threaded_hf.hub.repo("space", NAME).files
    assert json.loads(files["deployment.json"])["sets"] == ["run.attempts=3"]
    assert files["dependencies.txt"].endswith(b"mine==1\n")
    assert [name for name in files if name.startswith("wheels/swe_sandbox_docker-")]
    state = State(phase="failed", step=None, exit_code=2, lines=("swe-core: error: no",))
    space = threaded_hf.hub.space(NAME)
    space.run_log += ["one", "\x1b[31mtwo"]
    assert cli("space", "status", NAME) == 0
    assert capsys.readouterr().out == "stage: RUNNING, hardware: cpu-basic\n"
    with answering(state.model_dump_json().encode()) as (url, _):
        space.host = url
        assert cli("space", "status", NAME) == 1
    assert capsys.readouterr().out.endswith("run: failed\nswe-core: error: no\n")
    assert cli("space", "pause", NAME) == 0
    assert cli("space", "logs", NAME) == 0
    assert capsys.readouterr().out.endswith("one\ntwo\n")
    assert cli("space", "restart", NAME) == 0
    assert cli("space", "delete", NAME, "--yes") == 0
    assert threaded_hf.hub.repos == {}
    assert not list((tmp_path / "state").rglob("tester--*"))


def test_dry_run_creates_nothing_and_sends_no_request(
    threaded_hf: LocalHF, cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli(*DEPLOY, "--dry-run", "folder") == 0
    out = capsys.readouterr().out
    assert "Space tester/a-run: private, cpu-basic" in out
    assert threaded_hf.token not in out
    assert (tmp_path / "folder" / "job" / "rows.jsonl").is_file()
    assert cli("job", "run", *DEPLOY[2:], "--dry-run") == 0
    assert (tmp_path / "a-run" / "start.sh").is_file()
    assert threaded_hf.calls.total() == 0


PAGES = Path(__file__).parents[4]
EXAMPLES = [
    f"{page.name}: {line}"
    for page in (PAGES / "README.md", *sorted((PAGES / "docs").rglob("*.md")))
    for line in re.findall(r"^swe-core (?:space deploy|job run) .*$", page.read_text(), re.MULTILINE)
]
assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_documentation_can_be_deployed(
    threaded_hf: LocalHF, cli: Cli, tmp_path: Path, example: str
) -> None:
    """With the settings that the page about Spaces shows."""
    page = (PAGES / "docs" / "space.md").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.toml").write_text(shown.replace('to = "my-org/', 'to = "tester/'))
    (tmp_path / "swe-gym.jsonl").write_text(json.dumps(ROW))
    words = shlex.split(example.partition(": swe-core ")[2], comments=True)
    words[words.index("--repo-id") + 1] = NAME
    assert cli(*words) == 0
    assert bool(threaded_hf.hub.repos) == ("--dry-run" not in words)


def test_token_in_the_settings_is_refused_unsaid(
    threaded_hf: LocalHF, cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({**ROW, "hints_text": threaded_hf.token}))
    assert cli(*DEPLOY) == 2
    err = capsys.readouterr().err
    assert err.startswith("swe-core: error: 'rows.jsonl' holds the value of the secret 'HF_TOKEN'")
    assert threaded_hf.token not in err
    assert threaded_hf.calls.total() == 0


@pytest.mark.parametrize("case", bad_inputs(__file__))
@pytest.mark.usefixtures("cli")
def test_bad_input(case: BadInput, refuse: Callable[[BadInput], None], threaded_hf: LocalHF) -> None:
    other = "somebody/backup"
    threaded_hf.hub.repos["dataset", other] = Repo.new("dataset", other, private=False)
    before = dict(threaded_hf.hub.repos)
    refuse(case)
    assert threaded_hf.hub.repos == before
