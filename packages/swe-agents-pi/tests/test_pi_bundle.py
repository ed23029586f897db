"""Building the bundle: the real npm against a registry on loopback that holds two tiny packages."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import stat
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swe_agents_pi import bundle as bundle_module
from swe_agents_pi.bundle import JITI, PI, NpmPackage, ensure_bundle
from swe_agents_pi.node import find_node
from swe_core.errors import AgentError, ConfigError
from swe_core.system import seal
from swe_core.system.seal import contents_of, digest_of


@pytest.fixture(autouse=True)
def _own_seals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def tarball(files: dict[str, str]) -> bytes:
    """An npm tarball, the same bytes every time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


@dataclass
class Registry:
    """An npm registry: package documents and tarballs."""

    url: str = ""
    tarballs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, package: NpmPackage, files: dict[str, str]) -> NpmPackage:
        """Hold `files` as `package`, and return the package pinned to them."""
        data = tarball(files)
        self.tarballs[package.name] = data
        kept = {
            name: f"file {hashlib.sha256(text.encode()).hexdigest()}"
            for name, text in files.items()
            if name.startswith(package.keep)
        }
        return replace(package, sha256=hashlib.sha256(data).hexdigest(), tree=digest_of(kept))

    def answer(self, path: str) -> bytes | None:
        self.asked.append(path)
        if path.startswith("/tarball/"):
            return self.tarballs[path.removeprefix("/tarball/").replace("%2f", "/")]
        name = path.strip("/").replace("%2f", "/").replace("%2F", "/")
        if name not in self.tarballs:
            return None
        version = PI.version if name == PI.name else JITI.version
        dist = {
            "tarball": f"{self.url}/tarball/{name.replace('/', '%2f')}",
            "shasum": hashlib.sha1(self.tarballs[name], usedforsecurity=False).hexdigest(),
        }
        manifest = {"name": name, "version": version, "dist": dist}
        return json.dumps({"name": name, "versions": {version: manifest}}).encode()

    @property
    def downloads(self) -> int:
        return sum(path.startswith("/tarball/") for path in self.asked)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = registry.answer(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("npm_config_registry", registry.url)
    monkeypatch.setenv("npm_config_@earendil-works:registry", registry.url)
    monkeypatch.setenv("npm_config_noproxy", "127.0.0.1")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield registry
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def packages(registry: Registry) -> list[NpmPackage]:
    """Two tiny packages of the shape of the real ones, pinned."""
    files = {"package.json": "{}", "dist/bundle/cli.js": "console.log('tiny')", "docs/long.md": "not kept"}
    pi = registry.add(PI, files)
    files = {"package.json": "{}", "lib/jiti.mjs": "", "dist/jiti.cjs": "", "LICENSE": "MIT"}
    return [pi, registry.add(JITI, files)]


@pytest.fixture
def without_npm(packages: list[NpmPackage], registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tarballs without npm, each run of which takes a second."""
    monkeypatch.setattr(bundle_module, "_fetch", lambda package, into: registry.tarballs[package.name])


def test_bundle_holds_what_the_sandbox_needs_and_is_built_once(
    packages: list[NpmPackage], registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    before = os.umask(0o077)
    try:
        first = ensure_bundle(cache=tmp_path / "cache", packages=packages)
    finally:
        os.umask(before)
    again = ensure_bundle(cache=tmp_path / "cache", packages=packages)
    assert first == again
    assert registry.downloads == 2
    assert list(scratch.iterdir()) == []
    files = {str(path.relative_to(first.path)) for path in first.path.rglob("*") if path.is_file()}
    assert files == {
        "answer.mjs",
        "bin/node",
        "node_modules/jiti/LICENSE",
        "node_modules/jiti/dist/jiti.cjs",
        "node_modules/jiti/lib/jiti.mjs",
        "node_modules/jiti/package.json",
        "pi/dist/bundle/cli.js",
        "pi/package.json",
    }
    assert not any(path.is_symlink() for path in first.path.rglob("*"))
    for path in (first.path, *first.path.rglob("*")):  # the user inside a sandbox is another one
        needed = 0o555 if path.is_dir() or path.name == "node" else 0o444
        assert stat.S_IMODE(path.stat().st_mode) & needed == needed, path
    node, cli = first.path / "bin/node", first.path / "pi/dist/bundle/cli.js"
    assert subprocess.run([node, cli], capture_output=True, check=True).stdout == b"tiny\n"


def test_tarball_with_another_checksum_is_refused(packages: list[NpmPackage], tmp_path: Path) -> None:
    packages[0] = replace(packages[0], sha256="0" * 64)
    with pytest.raises(
        AgentError, match=r"'@earendil-works/pi-coding-agent@1\.5\.2'.*sha256.*0{64} is pinned: it is refused"
    ):
        ensure_bundle(cache=tmp_path / "cache", packages=packages)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"], "nothing is left behind"


@pytest.mark.slow
def test_builders_at_once_build_it_once(
    packages: list[NpmPackage], registry: Registry, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn) as processes, ThreadPoolExecutor(2) as threads:
        pools = (processes, threads) * 2
        builders = [pool.submit(ensure_bundle, None, cache, packages) for pool in pools]
        paths = {builder.result(timeout=180).path for builder in builders}
    assert len(paths) == 1
    assert registry.downloads == 2
    assert sorted(path.name for path in cache.iterdir()) == [".lock", paths.pop().name]


@pytest.mark.usefixtures("without_npm")
def test_half_built_bundle_is_never_used(packages: list[NpmPackage], tmp_path: Path) -> None:
    built = ensure_bundle(cache=tmp_path / "cache", packages=packages)
    left = tmp_path / "cache" / "killed.building"
    left.mkdir()
    (built.path / "pi/dist/bundle/cli.js").unlink()  # as a cleaner of old cache files does
    again = ensure_bundle(cache=tmp_path / "cache", packages=packages)
    assert again == built
    assert (built.path / "pi/dist/bundle/cli.js").is_file()
    assert not left.exists(), "what a killed builder left is cleared away"


def cli(bundle: Path) -> Path:
    return bundle / "pi/dist/bundle/cli.js"


def rewrite(bundle: Path) -> None:
    """A byte, with size and mtime as they were."""
    before = cli(bundle).stat()
    cli(bundle).write_text(cli(bundle).read_text().replace("tiny", "tinY"))
    os.utime(cli(bundle), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cli(bundle).stat().st_size == before.st_size


def lead_elsewhere(bundle: Path) -> None:
    """A link to the same bytes, which are anybody's."""
    elsewhere = bundle.parent / "elsewhere.js"
    cli(bundle).rename(elsewhere)
    cli(bundle).symlink_to(elsewhere)


def replace_whole(bundle: Path) -> None:
    moved = bundle.with_name("moved")
    bundle.rename(moved)
    bundle.symlink_to(moved)


@pytest.mark.usefixtures("without_npm")
@pytest.mark.parametrize(
    "poison",
    [
        rewrite,
        lead_elsewhere,
        replace_whole,
        lambda bundle: cli(bundle).unlink(),
        lambda bundle: cli(bundle).chmod(0o755),
        lambda bundle: (bundle / "answer.mjs").write_text(""),
        lambda bundle: (bundle / "pi/dist/bundle/more.js").write_text(""),
        lambda bundle: (bundle / "bin/npm").symlink_to("node"),
        lambda bundle: (bundle / "node_modules/jiti/lib/more").mkdir() or os.mkfifo(bundle / "pi/pipe"),
    ],
    ids=["byte", "link", "whole", "missing", "executable", "answer", "extra", "extra link", "pipe"],
)
def test_poisoned_bundle_is_built_anew(
    packages: list[NpmPackage],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    poison: Callable[[Path], object],
) -> None:
    cache = tmp_path / "cache"
    built = ensure_bundle(cache=cache, packages=packages)
    before = contents_of(built.path)
    assert ensure_bundle(cache=cache, packages=packages) == built
    assert not caplog.records
    poison(built.path)
    assert ensure_bundle(cache=cache, packages=packages) == built
    assert contents_of(built.path) == before
    (record,) = caplog.records
    assert "has changed since it was built: it is rebuilt, and the old one is in" in record.message
    ensure_bundle(cache=cache, packages=packages)
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("without_npm")
def test_untouched_files_are_not_read(
    packages: list[NpmPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even node, and without its seals all of it, which finds it whole."""
    read: list[str] = []
    monkeypatch.setattr(seal, "_sha256", lambda path, real=seal._sha256: read.append(path) or real(path))
    cache = tmp_path / "cache"
    built = ensure_bundle(cache=cache, packages=packages)
    monkeypatch.setattr(bundle_module, "_build", None)
    ensure_bundle(cache=cache, packages=packages)
    for damage in (Path.unlink, lambda path: os.truncate(path, 40), lambda path: path.write_text("[1]")):
        read.clear()
        ensure_bundle(cache=cache, packages=packages)
        assert read == []
        for sealed in (tmp_path / "state" / "swe-core" / "seals").iterdir():
            damage(sealed)
        ensure_bundle(cache=cache, packages=packages)
        assert read[0] == str(find_node(None))
        assert set(read[1:]) == {str(built.path / name) for name in contents_of(built.path)}


@pytest.mark.usefixtures("without_npm")
def test_package_that_unpacks_to_something_else_is_refused(
    packages: list[NpmPackage], tmp_path: Path
) -> None:
    packages[1] = replace(packages[1], tree="0" * 64)
    with pytest.raises(AgentError, match=r"'jiti@2\.7\.0' unpacked to the tree .* 0{64} is pinned"):
        ensure_bundle(cache=tmp_path / "cache", packages=packages)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.usefixtures("without_npm")
def test_digest_changes_with_everything_that_is_in_it(
    packages: list[NpmPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    built = [ensure_bundle(cache=cache, packages=packages)]
    built.append(
        ensure_bundle(cache=cache, packages=[replace(packages[0], into="elsewhere/../pi"), packages[1]])
    )
    (tmp_path / "answer.mjs").write_text("export default () => {};")
    monkeypatch.setattr(bundle_module.resources, "files", lambda package: tmp_path)
    built.append(ensure_bundle(cache=cache, packages=packages))
    assert len({one.digest for one in built}) == len({one.path for one in built}) == 3
    assert (built[-1].path / "answer.mjs").read_text() == "export default () => {};"


def test_without_a_network_one_sentence_says_what_to_do(
    registry: Registry, packages: list[NpmPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:1")
    monkeypatch.setenv("npm_config_@earendil-works:registry", "http://127.0.0.1:1")
    with pytest.raises(AgentError) as caught:
        ensure_bundle(cache=tmp_path / "cache", packages=packages)
    said = str(caught.value)
    assert said.startswith("npm cannot fetch '@earendil-works/pi-coding-agent@1.5.2' for the agent 'pi': ")
    assert "ECONNREFUSED" in said
    assert "npm config set registry URL" in said
    assert "\n" not in said


def test_registry_without_the_package_is_quoted(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"npm cannot fetch '@earendil-works/pi-coding-agent@1\.5\.2'.*404"):
        ensure_bundle(cache=tmp_path / "cache")


def test_cache_that_cannot_be_written(packages: list[NpmPackage], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=r"cannot be built in '.*file/cache'.*XDG_CACHE_HOME"):
        ensure_bundle(cache=tmp_path / "file" / "cache", packages=packages)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_configured_node_is_taken_and_a_script_around_it_is_seen_through(tmp_path: Path) -> None:
    real = find_node(None)
    assert find_node(script(tmp_path / "node", f'exec "{real}" "$@"')) == real


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 1", "does not run as a node"),
        ("echo hello", "does not run as a node"),
        ("echo '[]'", "does not run as a node"),
        (
            """echo '{"version": "20.19.2", "path": "/x", "shared": false}'""",
            r"is node 20\.19\.2, .* too old",
        ),
        ("""echo '{"version": "22.19.0", "path": "/x", "shared": true}'""", "not self-contained"),
    ],
    ids=["fails", "is no node", "answers oddly", "too old", "needs libnode"],
)
def test_configured_node_that_does_not_fit_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.pi\.node: .*{why}.*22\.19"):
        find_node(script(tmp_path / "node", text))


def test_missing_configured_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.pi\.node: '.*absent' does not run as a node"):
        find_node(tmp_path / "absent")
