"""Building a bundle, and noticing that one has changed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from swe_core.bundles import (
    Bundle,
    File,
    Node,
    NpmPackage,
    Recipe,
    build,
    ensure_bundle,
    find_bundle,
    node,
    npm,
)
from swe_core.bundles.build import check_host
from swe_core.bundles.recipe import Content, Part, for_this_machine, machine
from swe_core.errors import AgentError
from swe_core.system import seal
from swe_core.system.seal import contents_of

from ..repositories import slow_but

HELLO = File("hello.txt", b"hello\n")
TOOL = File("bin/tool", b"#!/bin/sh\necho tool\n", executable=True)


@pytest.fixture
def recipe(
    packages: list[NpmPackage], without_npm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Recipe:
    """Parts of each kind with pins; for node, which has 120 MB, stands a small program."""
    # A bundle links it, which changes its times: so this test has a copy of its own.
    own = Path(shutil.copy("/bin/true", tmp_path))
    monkeypatch.setattr(node, "find_node", lambda *_: own)
    return Recipe("some", (Node(), *packages, HELLO, TOOL))


@pytest.mark.usefixtures("without_npm")
def test_bundle_has_the_parts_of_its_recipe(packages: list[NpmPackage], tmp_path: Path) -> None:
    recipe = Recipe("some", (Node(), *packages, HELLO, TOOL))
    before = os.umask(0o077)
    try:
        bundle = ensure_bundle(recipe)
    finally:
        os.umask(before)
    assert bundle.path == tmp_path / "cache/swe-core/agents/some" / bundle.digest[:16]
    files = {name for name in contents_of(bundle.path) if not name.startswith("runtime/")}
    assert files == {
        "bin/node", "bin/tool", "hello.txt", "one/dist/main.js", "one/node_modules/two/bin/two",
        "one/node_modules/two/package.json", "one/package.json",
    }  # fmt: skip
    for path in (bundle.path, *bundle.path.rglob("*")):  # the user inside a sandbox is another one
        needed = 0o555 if path.is_dir() or (path.parts[-2] == "bin" and path.name != "two") else 0o444
        assert stat.S_IMODE(path.stat().st_mode) & needed == needed, path
    ran = subprocess.run([bundle.path / "bin/node", bundle.path / "one/dist/main.js"], capture_output=True)
    assert ran.stdout == b"tiny\n"


def test_bundle_is_built_once(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_bundle(recipe) is None
    built = ensure_bundle(recipe)
    monkeypatch.setattr(build, "_build", None)
    assert ensure_bundle(recipe) == find_bundle(recipe) == built


def test_digest_changes_with_each_part() -> None:
    parts = [
        (HELLO, TOOL), (HELLO,), (HELLO, replace(TOOL, content=b"")), (HELLO, replace(TOOL, path="bin/b")),
        (HELLO, replace(TOOL, executable=False)),
    ]  # fmt: skip
    built = [ensure_bundle(Recipe("some", each)) for each in parts]
    assert len({one.digest for one in built}) == len({one.path for one in built}) == len(parts)


def built_at_once(pools: list[ProcessPoolExecutor | ThreadPoolExecutor], recipe: Recipe) -> set[Bundle]:
    builders = [pool.submit(ensure_bundle, recipe) for pool in pools]
    return {builder.result(timeout=180) for builder in builders}


def test_threads_at_once_build_one_bundle(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    real, whole, builds = build._is_whole, [], []

    def is_whole(*args: object) -> bool:
        found = bool(real(*args))  # type: ignore[arg-type]  # passed on as they came
        whole.append(found)
        if len(whole) <= 2:  # both find nothing before either builds
            both.wait()
        return found

    place = build._build
    monkeypatch.setattr(build, "_is_whole", is_whole)
    monkeypatch.setattr(build, "_build", lambda *args: (builds.append(args), place(*args)))
    with ThreadPoolExecutor(2) as threads:
        (bundle,) = built_at_once([threads, threads], recipe)
    assert len(builds) == 1
    assert sorted(path.name for path in bundle.path.parent.iterdir()) == [".lock", bundle.path.name]


@pytest.mark.slow
def test_processes_at_once_build_one_bundle(packages: list[NpmPackage], registry: object) -> None:
    recipe = Recipe("some", (*packages, HELLO))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        (bundle,) = built_at_once([processes, processes, processes], recipe)
    assert sorted(path.name for path in bundle.path.parent.iterdir()) == [".lock", bundle.path.name]


def test_what_a_killed_builder_left_is_removed(recipe: Recipe) -> None:
    built = ensure_bundle(recipe)
    left = built.path.parent / "killed.building"
    left.mkdir()
    (built.path / "hello.txt").unlink()  # as a cleaner of old files does
    assert ensure_bundle(recipe) == built
    assert not left.exists()


def main_of(bundle: Path) -> Path:
    return bundle / "one/dist/main.js"


def rewrite(bundle: Path) -> None:
    """Change a byte; size and mtime stay."""
    before = main_of(bundle).stat()
    main_of(bundle).write_text(main_of(bundle).read_text().replace("tiny", "tinY"))
    os.utime(main_of(bundle), ns=(before.st_atime_ns, before.st_mtime_ns))


def link(path: Path) -> None:
    """Put a link to the same bytes, or to the same folder."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


POISONS: dict[str, Callable[[Path], object]] = {
    "byte": rewrite,
    "link": lambda bundle: link(main_of(bundle)),
    "whole": link,
    "missing": lambda bundle: main_of(bundle).unlink(),
    "executable": lambda bundle: main_of(bundle).chmod(0o755),
    "file of no part": lambda bundle: (bundle / "more.js").write_text(""),
    "library": lambda bundle: (bundle / "runtime/node/libmore.so").write_text(""),
    "pipe": lambda bundle: os.mkfifo(bundle / "one/pipe"),
}


@pytest.mark.parametrize("poison", slow_but(("byte", "file of no part"), POISONS))
def test_changed_bundle_is_built_anew(recipe: Recipe, caplog: pytest.LogCaptureFixture, poison: str) -> None:
    built = ensure_bundle(recipe)
    before = contents_of(built.path)
    POISONS[poison](built.path)
    assert find_bundle(recipe) is None
    assert ensure_bundle(recipe) == ensure_bundle(recipe) == built
    assert contents_of(built.path) == before
    (record,) = caplog.records
    assert "the agent 'some' in" in record.message
    assert "has changed since it was built: it is rebuilt, and the old one is in" in record.message


def test_untouched_files_are_unread(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even node. Without its seals all of a bundle is read, and found whole."""
    read: list[str] = []
    monkeypatch.setattr(seal, "_sha256", lambda path, real=seal._sha256: read.append(path) or real(path))
    built = ensure_bundle(recipe)
    monkeypatch.setattr(build, "_build", None)
    ensure_bundle(recipe)
    for damage in (Path.unlink, lambda path: path.write_text("[1]")):
        read.clear()
        ensure_bundle(recipe)
        assert read == []
        for sealed in (tmp_path / "state/swe-core/seals").iterdir():
            damage(sealed)
        ensure_bundle(recipe)
        assert {str(built.path / name) for name in contents_of(built.path)} <= set(read)


class Made(Part, Content):
    """A part that the host makes: it has no pins."""

    pinned = False
    owns = ("made",)

    def resolve(self, agent: str) -> Content:
        return self

    def key(self) -> object:
        return "made"

    def place(self, staged: Path, scratch: Path) -> None:
        (staged / "made").mkdir()
        (staged / "made/file").write_text(str(staged))  # another content each time


def test_content_without_pins_is_as_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = Recipe("some", (HELLO, Made()))
    built = ensure_bundle(recipe)
    before = contents_of(built.path)
    assert ensure_bundle(recipe) == built
    assert contents_of(built.path) == before, "it is not built again"
    (built.path / "made/file").write_text("changed")
    assert find_bundle(recipe) is None
    assert ensure_bundle(recipe) == built
    assert "has changed since it was built" in caplog.text
    (record,) = (tmp_path / "state/swe-core/bundles").iterdir()
    record.unlink()
    assert find_bundle(recipe) is None, "nothing vouches for it"
    ensure_bundle(recipe)
    assert find_bundle(recipe) == built


def test_state_that_cannot_be_written_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has pins is read on each run; what has none is made again."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    pinned, made = Recipe("pinned", (HELLO,)), Recipe("made", (Made(),))
    assert ensure_bundle(pinned) == find_bundle(pinned)
    assert ensure_bundle(made) == ensure_bundle(made)
    assert find_bundle(made) is None


def test_unreadable_is_rebuilt(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    recipe = Recipe("some", (HELLO,))
    built = ensure_bundle(recipe)
    (built.path / HELLO.path).chmod(0)

    def sha256(path: str, real: Callable[[str], str] = seal._sha256) -> str:  # root reads every file
        if not os.stat(path).st_mode & 0o777:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(seal, "_sha256", sha256)
    assert ensure_bundle(recipe) == built
    assert (built.path / HELLO.path).read_bytes() == HELLO.content
    assert "has changed since it was built" in caplog.text


def test_bundle_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=r"'some' cannot be built in '.*file/cache'.*XDG_CACHE_HOME"):
        ensure_bundle(Recipe("some", (HELLO,)), tmp_path / "file/cache")
    with pytest.raises(AgentError, match=r"'some' do not make the bundle that its recipe describes"):
        ensure_bundle(Recipe("some", (HELLO, replace(HELLO, content=b"other"))))


def test_choice_for_this_machine() -> None:
    assert for_this_machine({machine(): 1, "other": 2}, "some") == 1
    only = rf"the agent 'some' exists for pdp11 and vax only, and this host is '{machine()}': run it"
    with pytest.raises(AgentError, match=only):
        for_this_machine({"vax": 1, "pdp11": 2}, "some")


def test_host_without_npm_is_told_first(packages: list[NpmPackage], monkeypatch: pytest.MonkeyPatch) -> None:
    check_host(Recipe("some", (packages[0], HELLO)))
    monkeypatch.setattr(npm, "wheel_file", lambda _: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    for refuse in (check_host, ensure_bundle):
        with pytest.raises(AgentError, match=r"'some' is fetched with npm, but there is none: install the"):
            refuse(Recipe("some", (packages[0], HELLO)))
