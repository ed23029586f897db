"""npm packages: the real npm against a registry on loopback."""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_core.bundles import NpmPackage, Recipe, ensure_bundle, npm
from swe_core.errors import AgentError

from .registry import ONE, ONE_FILES, TWO, TWO_FILES, Registry

SCRIPTS = ("preinstall", "install", "postinstall", "prepare", "prepack", "postpack")
SCRIPT = "touch $HOME/ran; touch ../../ran; exit 1"


def build(*packages: NpmPackage) -> Path:
    return ensure_bundle(Recipe("some", packages)).path


def nothing_is_left(cache: Path) -> bool:
    return [path.name for path in (cache / "swe-core/agents/some").iterdir()] == [".lock"]


def test_fetch_runs_no_script(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    scratch = tmp_path / "scratch"
    for folder in (scratch, tmp_path / "home"):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    files = {
        "package.json": json.dumps(
            {"name": "two", "version": "2.0.0", "scripts": dict.fromkeys(SCRIPTS, SCRIPT)}
        ),
        "bin/two": "",
    }
    package = registry.add(replace(TWO, into="two", executable=("bin/two",)), files)
    path = build(package)
    assert build(package) == path
    assert registry.downloads == 1
    two = path / "two"
    assert sorted(path.rglob("*")) == [two, *(two / name for name in ("bin", *sorted(files)))]
    assert stat.S_IMODE((two / "bin/two").stat().st_mode) == 0o755
    assert not list(tmp_path.rglob("ran"))
    assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("without_npm")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sha256": "0" * 64}, r"one@1\.0\.0' that npm fetched has the sha256 \w+, but 0{64} is pinned"),
        ({"tree": "0" * 64}, r"one@1\.0\.0' unpacked to the tree \w+, but 0{64} is pinned: it is refused"),
        ({"keep": ("absent",)}, r"the npm package in '.*' has no 'absent': update .* agent 'some'"),
        ({"executable": ("absent",)}, r"has no 'absent': update the plugin of the agent 'some'"),
    ],
    ids=["tarball", "tree", "path", "program"],
)
def test_package_unlike_its_pins_is_refused(
    packages: list[NpmPackage], tmp_path: Path, change: Mapping[str, object], sentence: str
) -> None:
    with pytest.raises(AgentError, match=sentence) as caught:
        build(replace(packages[0], **change))  # type: ignore[arg-type]  # one field, of its own type
    assert "\n" not in str(caught.value)
    assert nothing_is_left(tmp_path / "cache")


def test_registry_that_cannot_be_reached_is_one_sentence(
    packages: list[NpmPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_@scope:registry", "http://127.0.0.1:1")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(AgentError) as caught:
        build(packages[0])
    said = str(caught.value)
    assert said.startswith("npm cannot fetch '@scope/one@1.0.0' for the agent 'some': ")
    assert "ECONNREFUSED" in said
    assert "npm config set registry URL" in said
    assert "\n" not in said
    assert nothing_is_left(tmp_path / "cache")


@pytest.mark.usefixtures("without_npm")
def test_package_is_kept_whole_without_a_choice(registry: Registry) -> None:
    path = build(registry.add(replace(ONE, keep=()), ONE_FILES), registry.add(TWO, TWO_FILES))
    assert (path / "one/docs/long.md").read_text() == "not kept"
    assert (path / "one/node_modules/two/package.json").is_file()


@pytest.mark.parametrize("name", ["/outside", "package/../../outside"])
def test_package_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    package = tmp_path / "package.tgz"
    with tarfile.open(package, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("package/inside"))
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(AgentError, match=r"in 'package\.tgz' is no folder of files .*: update the plugin"):
        npm.unpack(package, tmp_path, (), (), "some")
    assert not any(Path(folder, "outside").exists() for folder in ("/", tmp_path))
