"""Images in local sandboxes: pulled once, unpacked without root, and as in a container inside."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from swe_core.api.limits import Limits
from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Asset, Sandbox, SandboxProvider, SandboxSpec
from swe_core.builtin.local import bwrap, checks, image_tools
from swe_core.builtin.local.images import Images
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import ImageNotFound, PolicyRefused, SandboxError
from swe_core.rollout.task_environment import TaskEnvironments, write_profile
from swe_core.sandboxing.repository.prepare import SETTINGS
from swe_core.system.seal import contents_of
from swe_testing.records import make_task
from swe_testing.registry import Registry, bare_layer, make_image, require, run_tool
from swe_testing.sandbox.base import PATIENCE
from swe_testing.waiting import until

from ..repositories import slow_but

OBSTACLE = bwrap.why_not(bwrap.find_bwrap())
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MakeImage = Callable[..., str]
Entry = tuple[str, bytes, str, int]
"""Of a layer: name, type, content or target, mode."""
PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:1234:1235::/:/bin/sh\n"
GROUP = "root:x:0:\nstaff:x:50:\n"


def layer(*entries: Entry) -> bytes:
    """A layer of files, links and directories."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, content, mode in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            if kind == tarfile.REGTYPE:
                member.size = len(content.encode())
            else:
                member.linkname = content
            archive.addfile(member, io.BytesIO(content.encode()))
    return packed.getvalue()


def file(name: str, content: str = "", mode: int = 0o644) -> Entry:
    return name, tarfile.REGTYPE, content, mode


def link(name: str, target: str) -> Entry:
    return name, tarfile.SYMTYPE, target, 0o777


@pytest.fixture(scope="session")
def bare(busybox: Path) -> bytes:
    return bare_layer(busybox)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "images")


@pytest.fixture
def provider(images: Images) -> SandboxProvider:
    return LocalProvider(images=images)


@pytest.fixture
def image(tmp_path: Path, bare: bytes) -> MakeImage:
    """Makes an image of the bare layer and further ones."""

    def make(*entries: Entry, config: Sequence[str] = (), more: Sequence[bytes] = ()) -> str:
        layers = [bare, *([layer(*entries)] if entries else []), *more]
        return make_image(tmp_path / f"layout-{len(os.listdir(tmp_path))}", layers, *config)

    return make


def digests(image: str) -> tuple[str, str]:
    """Those of the manifest and of the configuration of a made image."""
    layout = Path(image.removeprefix("oci:").removesuffix(":image"))
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    blob = json.loads((layout / "blobs" / manifest["digest"].replace(":", "/")).read_text())
    return manifest["digest"], blob["config"]["digest"]


def root_of(cache: Path) -> Path:
    """The root file system of the only image."""
    (root,) = cache.glob("roots/*/rootfs")
    return root


def unfinished(cache: Path) -> list[Path]:
    """What is being pulled."""
    return [path for path in cache.glob("pulls/*") if path.is_dir()]


async def said(provider: SandboxProvider, image: str, script: str, **more: object) -> str:
    """What a script prints in a sandbox of an image; it must succeed."""
    async with provider.open(SandboxSpec(image=image, disk_mb=64, **more)) as sandbox:
        done = await sandbox.exec(["sh", "-euc", script])
    assert done.exit_code == 0, done.stderr
    return done.text


async def refused(provider: SandboxProvider, image: str) -> SandboxError:
    """The error with which an image cannot be opened."""
    with pytest.raises(SandboxError) as caught:
        async with provider.open(SandboxSpec(image=image, disk_mb=64)):
            pass
    assert "\n" not in str(caught.value)
    return caught.value


async def test_sandbox_of_an_image_is_like_a_container_of_it(
    provider: SandboxProvider, image: MakeImage
) -> None:
    """Its files, environment and user; HOME and workdir as in every sandbox; nothing of the host."""
    made = image(config=[f"--config.env={one}" for one in ("FOO=of=image", "BOTH=image", "HOME=/nowhere")])
    spec = SandboxSpec(image=made, workdir="/not/there", env={"BOTH": "spec"}, disk_mb=64)
    async with provider.open(spec) as sandbox:

        async def run(*argv: str) -> str:
            return (await sandbox.exec(argv)).text

        expected = ["BOTH=spec", "FOO=of=image", f"HOME={HOME_DIR}", f"PATH={bwrap.IMAGE_PATH}"]
        assert sorted((await run("env")).splitlines()) == expected
        assert await run("pwd") == "/not/there\n"
        assert await run("sh", "-c", "echo $(id -u) $(id -g)") == "0 0\n"
        there = {"bin", "dev", "etc", "not", "proc", "run", "testbed", "tmp"}
        assert set((await run("ls", "/")).split()) == there
        assert await run("cat", "/etc/hosts") == bwrap.image_files("none")["/etc/hosts"]
        status = await run("cat", "/proc/self/status")
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        mounts = (await run("cat", "/proc/self/mountinfo")).splitlines()
        (root,) = [line for line in mounts if " / / " in line]
        assert "nosuid,nodev" in root
        script = (
            "echo x >/new; rm /bin/vi; mkdir /bin/vi; echo y >/bin/vi/z; chmod 4755 /bin/busybox; cat /new"
        )
        assert await run("sh", "-euc", script) == "x\n"
        assert await run("ls", "/.swe") == ""
        assert sandbox.image_id == digests(made)[1]
        assert [one.image for one in await provider.list() if one.id == sandbox.id] == [made]
    assert (await said(provider, made, "ls -l /bin/vi /new 2>&1 || true")).count("No such file") == 1


USERS = {"": "0 0", "worker": "1234 1235", "worker:staff": "1234 50", "77": "77 0", ":staff": "0 50"}


@pytest.mark.parametrize("user", slow_but(["worker:staff"], USERS))
async def test_user_is_the_image_s(provider: SandboxProvider, image: MakeImage, user: str) -> None:
    """All files belong to it: without root there is one owner."""
    made = image(file("etc/passwd", PASSWD), file("etc/group", GROUP), config=[f"--config.user={user}"])
    script = "echo $(id -u) $(id -g) $(stat -c '%u %g' /bin/busybox) && touch /new"
    assert await said(provider, made, script) == f"{USERS[user]} {USERS[user]}\n"


async def test_image_that_cannot_be_run_is_an_error(provider: SandboxProvider, image: MakeImage) -> None:
    made = image(config=["--architecture=s390x"])
    error = await refused(provider, made)
    assert f"the image {made!r} is for the architecture 's390x', and this machine has 'amd64'" in str(error)
    error = await refused(provider, image(file("etc/passwd", PASSWD), config=["--config.user=ghost"]))
    assert str(error).endswith("the image's user or group 'ghost' is not in its /etc/passwd")
    endless = image(link("etc/passwd", "/dev/zero"), config=["--config.user=ghost"])
    assert "'ghost' is not in its /etc/passwd" in str(await refused(provider, endless))


@pytest.mark.slow
async def test_links_of_an_image_lead_nowhere_else(
    provider: SandboxProvider, image: MakeImage, tmp_path: Path
) -> None:
    """Neither what the host writes for a sandbox nor what it mounts in leaves the image."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "hosts").write_text("host's own\n")
    made = image(
        link("etc/hosts", f"{outside}/hosts"), link("var", str(outside)), link("opt", "/srv/deep"),
        ("srv/deep", tarfile.DIRTYPE, "", 0o755), link("lib", "/bin"), link("testbed/out", str(outside)),
    )  # fmt: skip
    asset = tmp_path / "asset"
    asset.mkdir()
    (asset / "tool").write_text("tool\n")
    assets = (Asset(name="one", path=asset, digest="1"),)
    script = f"cat {ASSETS_DIR}/one/tool /srv/deep/swe/one/tool /etc/hosts; ls /testbed/out/ 2>&1 || true"
    text = await said(provider, made, script, assets=assets)
    assert text.startswith("tool\ntool\n127.0.0.1 localhost\n")
    assert "No such file" in text
    assert (outside / "hosts").read_text() == "host's own\n"
    assert os.listdir(outside) == ["hosts"]
    for name in ("proc", "dev"):
        assert f"'/{name}' is a link in the image" in str(await refused(provider, image(link(name, "/tmp"))))


async def test_hostile_layer_stays_inside(
    provider: SandboxProvider, image: MakeImage, images: Images, tmp_path: Path
) -> None:
    """A path upwards, and a file through a link that an earlier layer made."""
    (outside := tmp_path / "outside").mkdir()
    up = "../" * 40
    made = image(
        file(f"{up}{outside}/a", "a"),
        more=[layer(link("way", str(outside))), layer(file("way/b", "b"), file("way/../../../../c", "c"))],
    )
    await said(provider, made, "true")
    assert os.listdir(outside) == []
    found = {*tmp_path.rglob("[abc]")}  # noqa: ASYNC240 (a few files)
    assert found == {*root_of(tmp_path / "images").rglob("[abc]")}


async def test_shared_files_never_change(provider: SandboxProvider, image: MakeImage, tmp_path: Path) -> None:
    """Whatever root inside does to its own."""
    later = layer(file("d/.wh.one"), file("e/.wh..wh..opq"), file("e/four", "4"), file("f", "new"))
    made = image(
        file("etc/passwd", PASSWD), file("suid", "#!/bin/sh\nid -u\n", 0o4755), file("d/one", "1"),
        file("d/two", "2"), file("e/three", "3"), file("f", "old"), more=[later],
    )  # fmt: skip
    script = "ls /d /e; cat /f; rm -r /e; mkdir /e; ls /e"
    assert await said(provider, made, script) == "/d:\ntwo\n\n/e:\nfour\nnew", "later layers replace"
    root = root_of(tmp_path / "images")
    before = contents_of(root)
    script = "echo x >>/etc/passwd; rm /suid; chmod 000 /testbed; mv /etc /was; rm -rf /bin /tmp/* || true"
    await said(provider, made, script)
    assert contents_of(root) == before
    assert (root / "suid").stat().st_mode & 0o7777 == 0o4755
    assert (tmp_path / "images").stat().st_mode & 0o777 == 0o700  # so that no other user runs it


async def test_protected_files_survive_moves_of_all_directories(
    provider: SandboxProvider, image: MakeImage
) -> None:
    """Also of those above the repository: here they are writable."""
    made = image(file("home/user/repo/tests/a", "a\n"))
    spec = SandboxSpec(image=made, workdir="/home/user/repo", write_protect=True, disk_mb=64)
    path = "/home/user/repo/tests/a"
    async with provider.open(spec) as sandbox:
        assert await sandbox.protect([path])
        for moved in ("/home", "/home/user", "/home/user/repo", "/home/user/repo/tests"):
            script = 'mv "$1" /away && mkdir -p "${2%/*}" && echo changed >"$2"'
            await sandbox.exec(["sh", "-c", script, "sh", moved, path])
            assert await sandbox.read(path) == b"a\n", moved
        assert (await sandbox.exec(["sh", "-c", "echo b >b; cat b"])).text == "b\n"


async def test_repository_of_a_task_needs_no_image(provider: SandboxProvider, tmp_path: Path) -> None:
    """It runs with the host's programs, as the demo does, whatever image it names for other sandboxes."""
    spec = SandboxSpec(image="nowhere.invalid/none:1", repository=tmp_path, disk_mb=64)
    async with provider.open(spec) as sandbox:
        assert sandbox.image_id is None
        assert (await sandbox.exec(["python3", "-c", ""])).exit_code == 0


@pytest.mark.slow
async def test_registry_is_asked_once(registry: Registry, image: MakeImage, tmp_path: Path) -> None:
    """A second process asks nothing, also where the tag has moved; the digest names what it says."""
    first = registry.push(image(file("which", "first")), "moving:1")
    cache = tmp_path / "images"

    async def which(name: str, images: Images) -> str:
        return await said(LocalProvider(images=images), name, "cat /which")

    running = Images(cache)
    assert await which(first, running) == "first"
    requests = len(registry.log)
    assert await which(first, Images(cache)) == "first"
    assert len(registry.log) == requests
    layout = image(file("which", "second"))
    registry.push(layout, "moving:1")
    assert await which(first, running) == await which(first, Images(cache)) == "first"
    assert await which(f"{first}@{digests(layout)[0]}", Images(cache)) == "second"
    assert await which(first, Images(tmp_path / "another")) == "second"
    assert await which(f"docker://{first}", Images(cache)) == "first"  # the same name, written in full


_OPENS = """
import sys, anyio
from pathlib import Path
from swe_core.builtin.local.images import Images
from swe_core.builtin.local.provider import LocalProvider
from swe_core.api.sandbox import SandboxSpec

async def main():
    provider = LocalProvider(images=Images(Path(sys.argv[1])))
    async with provider.open(SandboxSpec(image=sys.argv[2], disk_mb=64)):
        sys.stdout.write("open")

anyio.run(main)
"""


def process(cache: Path, name: str, programs: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that opens a sandbox of an image."""
    path = os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])
    argv = [sys.executable, "-c", _OPENS, str(cache), name]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PATH": path})


async def ended(process: subprocess.Popen[bytes]) -> bytes:
    with anyio.fail_after(PATIENCE):
        out, _ = await anyio.to_thread.run_sync(process.communicate)
    return bytes(out)


@pytest.mark.slow
async def test_processes_pull_an_image_once(registry: Registry, image: MakeImage, tmp_path: Path) -> None:
    name = registry.push(image(), "at-once:1")
    started = [process(tmp_path / "images", name) for _ in range(2)]
    assert [await ended(one) for one in started] == [b"open"] * 2
    assert sum('"GET /v2/at-once/blobs/' in line for line in registry.log) == 3  # configuration twice, layer


@pytest.mark.parametrize("when", ["pull", pytest.param("unpack", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_killed_pull_leaves_nothing_that_counts(
    registry: Registry, image: MakeImage, tmp_path: Path, when: str
) -> None:
    """The process that waits for it pulls anew; no tool outlives its process."""
    name = registry.push(image(), f"killed:{when}")
    programs, begun, cache = tmp_path / "programs", tmp_path / "begun", tmp_path / "images"
    programs.mkdir()
    tell = f'[ "$1" != copy ] && exec {shutil.which("skopeo")} "$@"; echo >{begun}'
    scripts = {
        "pull": ("skopeo", tell),
        "unpack": ("umoci", "mkdir -p /new/rootfs/half; touch /new/rootfs/half/file"),
    }
    program, script = scripts[when]
    (programs / program).write_text(f"#!/bin/sh\n{script}\nexec sleep 1000\n")
    (programs / program).chmod(0o755)
    first = process(cache, name, programs)
    await until(lambda: begun.exists() or list(cache.glob("pulls/*/made/rootfs/half/file")))
    second = process(cache, name)
    hanging = tools_of(first.pid)
    assert hanging
    first.kill()
    assert await ended(first) == b""
    assert await ended(second) == b"open"
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hanging))
    assert unfinished(cache) == []
    assert list(cache.glob("roots/*/rootfs/half")) == []


def tools_of(pid: int) -> list[int]:
    """The processes below a process."""
    found = [
        int(child)
        for children in Path(f"/proc/{pid}/task").glob("*/children")
        for child in children.read_text().split()
    ]
    return found + [below for child in found for below in tools_of(child)]


async def test_cancelled_pull_leaves_nothing(
    registry: Registry, image: MakeImage, images: Images, tmp_path: Path
) -> None:
    left = tmp_path / "images" / "pulls" / ("0" * 32)  # by a pull that was killed
    (left / "made").mkdir(parents=True)
    (left / "made").chmod(0o500)
    await LocalProvider(images=images).reap()
    assert not left.exists()
    name = registry.push(image(), "cancelled:1")
    before = tools_of(os.getpid())
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await until(lambda: unfinished(tmp_path / "images"))
                scope.cancel()

            tasks.start_soon(cancel)
            await said(LocalProvider(images=images), name, "true")
    assert scope.cancelled_caught
    assert tools_of(os.getpid()) == before
    assert unfinished(tmp_path / "images") == []
    assert await said(LocalProvider(images=images), name, "echo fine") == "fine\n"


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("HERE/none:1", ImageNotFound, "the registry does not have it; check its name"),
        ("127.0.0.1:9/x:1", SandboxError, "the registry does not answer; check its name and the network"),
        ("HERE/Upper:1", ImageNotFound, "no name of an image; expected one such as 'registry/repos"),
        ("oci:/no/layout:1", ImageNotFound, "No such file or directory: '/no/layout/index.json'"),
        ("docker-archive:/etc/passwd", SandboxError, "cannot be had: skopeo failed: "),
    ],
)
async def test_image_that_cannot_be_had(
    registry: Registry, provider: SandboxProvider, name: str, kind: type[SandboxError], expected: str
) -> None:
    name = name.replace("HERE", registry.address)
    error = await refused(provider, name)
    assert type(error) is kind
    assert str(error).startswith(f"the image {name!r} cannot be had: ")
    assert expected in str(error)


async def test_missing_tools_and_isolation(
    provider: SandboxProvider, image: MakeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image()
    finding = await anyio.to_thread.run_sync(checks.images)
    assert (finding.state, "skopeo" in finding.text) == ("ok", True), finding
    with monkeypatch.context() as forbidden:
        forbidden.setattr(bwrap, "why_not", lambda path: "this machine forbids user namespaces")
        without = await refused(LocalProvider(unisolated=True), "some:image")
    assert isinstance(without, PolicyRefused)
    assert "'some:image' cannot be run without isolation" in str(without)
    (tmp_path / "empty").mkdir()
    provider.notes()  # looks whether this machine isolates
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    error = str(await refused(provider, made))
    assert "this machine has no skopeo and no umoci: install them" in error
    assert "`apt-get install skopeo umoci`" in error
    assert checks.images().state == "info"
    (tmp_path / "empty" / "skopeo").symlink_to("/bin/true")
    assert "has no umoci: install it, on Debian with `apt-get install umoci`" in checks.images().text


@pytest.mark.slow
@pytest.mark.docker
async def test_id_is_that_of_a_docker_engine(
    docker_engine: str, docker_image: str, provider: SandboxProvider, tmp_path: Path
) -> None:
    """So a report of `tasks verify` holds for both sandboxes."""
    docker = ["docker", "--host", docker_engine]
    saved = tmp_path / "saved.tar"
    run_tool(*docker, "save", "--output", str(saved), docker_image)
    async with provider.open(SandboxSpec(image=f"docker-archive:{saved}")) as sandbox:
        assert sandbox.image_id == run_tool(*docker, "inspect", "--format", "{{.Id}}", docker_image).strip()


@pytest.mark.slow
async def test_podman_unpacks_where_the_others_are_missing(
    registry: Registry, image: MakeImage, provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("podman")
    monkeypatch.setattr(image_tools, "_WAYS", (("podman",),))
    made = image(file("etc/passwd", PASSWD), config=["--config.user=worker", "--config.env=FOO=bar"])
    name = registry.push(made, "podman:1")
    try:
        async with provider.open(SandboxSpec(image=name, disk_mb=64)) as sandbox:
            done = await sandbox.exec(["sh", "-c", "echo $FOO $(id -u) && rm /bin/vi"])
            assert (done.text, done.stderr) == ("bar 1234\n", b"")
            assert sandbox.image_id == digests(made)[1]
    finally:
        run_tool("podman", "rmi", "--force", name)
    error = await refused(provider, f"{registry.address}/none:1")
    assert "the registry does not have it; check its name (podman: " in str(error)


def test_full_disk(bare: bytes, tmp_path: Path) -> None:
    """A file system of 512 KB, in a mount namespace of its own."""
    made = make_image(tmp_path / "layout", [bare])
    cache = tmp_path / "small"
    cache.mkdir()
    mounted = 'mount -t tmpfs -o size=512k tmpfs "$0" && exec "$@"'
    program = [sys.executable, "-c", _OPENS, str(cache / "images"), made]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mounted, str(cache), *program], capture_output=True, text=True
    )
    assert "the disk is full; make room in " in done.stderr, done.stderr


def test_only_loopback_may_be_plain() -> None:
    for name in ("localhost:5000/a:1", "127.3.2.1/a", "localhost/a"):
        assert image_tools.is_loopback(name)
    for name in ("registry.example/a:1", "a:1", "10.0.0.1:5000/a", "localhost.example/a"):
        assert not image_tools.is_loopback(name)


async def test_git_settings_of_the_image_are_in_home(provider: SandboxProvider, image: MakeImage) -> None:
    passwd = file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    made = image(passwd, file("root/.gitconfig", "[user]\nname = setup\n"), link("bin/awk", "busybox"))
    async with provider.open(SandboxSpec(image=made, disk_mb=64)) as sandbox:
        for _ in range(2):
            await sandbox.exec(["sh", "-euc", f"home={HOME_DIR}\n{SETTINGS}"])
            assert (await sandbox.exec(["cat", f"{HOME_DIR}/.gitconfig"])).text == "[user]\nname = setup\n"
            await sandbox.exec(["rm", "/root/.gitconfig"])


SETUP = r"""
unset GONE; export PATH=/envs/testbed:$PATH QUOTE="it's
two lines" HOME=/elsewhere LANG=en_US.UTF-8 LC_ALL=C.UTF-8
mkdir /left; cd /left; head -c 2000000 /dev/zero; printf '%s\0' more
"""


async def test_shells_of_an_agent_have_what_set_up_lines_export(
    provider: SandboxProvider, image: MakeImage
) -> None:
    """/etc/profile sets PATH anew, as Debian's does; the lines run in a sandbox of their own, once."""
    profile = file("etc/profile", "export PATH=/usr/bin:/bin\n")
    locale = file("bin/locale", "#!/bin/sh\necho C.utf8\n", 0o755)
    made = image(profile, locale, file("envs/testbed/python", "", 0o755), config=("--config.env", "GONE=no"))
    spec, environments = SandboxSpec(image=made, disk_mb=64), TaskEnvironments()
    opened: list[SandboxSpec] = []

    class Counted(LocalProvider):
        def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
            opened.append(spec)
            return provider.open(spec)

    async def read() -> None:
        found.append(await environments.of(make_task(setup=SETUP, image=made), Counted(), spec, Limits()))

    found: list[Mapping[str, str]] = []
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(read)
    (network,) = {one.network for one in opened}
    assert (len(opened), network) == (1, "none")
    assert {**found[0], "PATH": ""} == {"PATH": "", "QUOTE": "it's\ntwo lines", "LC_ALL": "C.UTF-8"}
    async with provider.open(spec) as sandbox:
        await write_profile(sandbox, found[0], PATIENCE)
        script = 'echo "$QUOTE" $HOME $LANG; command -v python; ls -d /left'
        for shell in (["sh", "-c"], ["sh", "-lc"]):
            done = await sandbox.exec([*shell, script], env=found[0])
            assert done.text == f"it's\ntwo lines {HOME_DIR}\n/envs/testbed/python\n"


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        ("echo no such thing >&2; exit 3", "ended before their end with exit code 3: no such thing"),
        ("sleep 60", r"did not end within 0.2 s \(limits.grade\)"),
        ("head -c 2000000 /dev/zero >&9", "has more than 1048576 bytes"),
    ],
)
async def test_set_up_lines_without_an_environment_are_an_error(
    setup: str, sentence: str, provider: SandboxProvider, image: MakeImage
) -> None:
    task, spec = make_task(setup=setup), SandboxSpec(image=image(), disk_mb=64)
    limits = Limits(grade=0.2 if "sleep" in setup else PATIENCE)
    with pytest.raises(SandboxError, match=sentence):
        await TaskEnvironments().of(task, provider, spec, limits)
