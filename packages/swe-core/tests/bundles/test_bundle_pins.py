"""The command that prints pins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swe_core.bundles import NpmPackage, Recipe, ensure_bundle
from swe_core.bundles.__main__ import main
from swe_core.bundles.pins import wheel_lock

from .registry import ONE, ONE_FILES, TWO_FILES, Registry
from .wheels import FILES, make_wheel, pip_knows

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NEEDS = 'Requires-Dist: small; python_version >= "3.0"\nRequires-Dist: old; python_version < "3.0"\n'


@pytest.mark.slow
def test_pins_of_an_npm_package_make_a_bundle(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    package = replace(ONE, keep=("package.json", "dist", "bin"), executable=("bin/two",))
    expected = registry.add(package, {**ONE_FILES, **TWO_FILES})
    main(["pin", "npm:@scope/one@1.0.0", "--keep", *expected.keep, "--executable", "bin/two"])
    printed = capsys.readouterr().out
    assert printed.startswith('NpmPackage(\n    name="@scope/one",\n    version="1.0.0",\n')
    package = eval(printed, {"NpmPackage": NpmPackage})
    assert package == expected
    assert (ensure_bundle(Recipe("some", (package,))).path / "one/bin/two").is_file()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two packages, of which one needs the other, by name with their locks."""
    folder = tmp_path / "wheels"
    pip_knows(folder, monkeypatch)
    metadata = "tiny-1.0.dist-info/METADATA"
    tiny = make_wheel(folder, {**FILES, metadata: FILES[metadata] + NEEDS})
    files = {path.replace("tiny", "small"): text.replace("tiny", "small") for path, text in FILES.items()}
    return {"tiny": tiny, "small": make_wheel(folder, files, "small")}


def lines(lock: str) -> list[str]:
    return lock.replace(" \\\n   ", "").splitlines(keepends=True)


@pytest.mark.slow
def test_lock_has_what_the_package_needs(index: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["pin", "pypi:tiny==1.0", "--python", VERSION])
    assert lines(capsys.readouterr().out) == [index["small"], index["tiny"]]
    assert lines(wheel_lock(["tiny"], [VERSION], ["x86_64"], ["Small"])) == [index["tiny"]], "without one"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("package", "version", "sentence"),
    [
        ("pypi:tiny==2.0", VERSION, r"error: pip cannot resolve 'tiny==2\.0': Could not find .*; cho"),
        ("pypi:tiny==1.0", "3.1", r"error: the agent 'pin' needs a CPython 3\.1 to bundle"),
    ],
)
@pytest.mark.slow
def test_failed_pin_is_one_sentence(package: str, version: str, sentence: str) -> None:
    with pytest.raises(SystemExit, match=sentence) as caught:
        main(["pin", package, "--python", version])
    assert "\n" not in str(caught.value)


def test_package_without_a_registry_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pin", "tiny"])
    assert "expected npm:NAME@VERSION or pypi:NAME==VERSION" in capsys.readouterr().err
