"""LocalProvider: opens sandboxes on this machine and removes those of runs whose process has exited."""

from __future__ import annotations

import marshal
import os
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache, cached_property, partial
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import anyio

from swe_core.api.sandbox import HOME_DIR, Sandbox, SandboxEntry, SandboxSpec
from swe_core.builtin.local import bwrap, limits, seccomp, state
from swe_core.builtin.local.control import Control, sealed
from swe_core.builtin.local.images import Image, Images
from swe_core.builtin.local.sandbox import LocalSandbox
from swe_core.builtin.local.unisolated import Paths, UnisolatedSandbox
from swe_core.errors import PolicyRefused, SandboxDied, SandboxError
from swe_core.sandboxing.relay.unix_socket import require_room

OPEN_TIMEOUT = 60.0
"""Seconds that a sandbox may take to open on a busy machine."""
CLOSE_TIMEOUT = 10.0
_STDERR = "stderr"
# Enters the cgroups before anything else, so that whatever follows is counted.
_ENTER = 'for group do [ "$group" = -- ] && break; echo $$ >"$group" || exit; shift; done; shift; exec "$@"'


class LocalProvider:
    """Sandboxes made of namespaces, by bubblewrap.

    Args:
        unisolated: Where namespaces are missing, run on the bare host instead of refusing.
        overlay: Use an overlay for the repository where the kernel has it, instead of a copy.
        images: The images of this host; None for those in the user's cache directory.
    """

    def __init__(
        self, *, unisolated: bool = False, overlay: bool = True, images: Images | None = None
    ) -> None:
        self._unisolated = unisolated
        self._overlay = overlay
        self._images = images or Images()

    @cached_property
    def _bwrap(self) -> str | None:
        return bwrap.find_bwrap()

    @cached_property
    def _obstacle(self) -> str | None:
        """Return why this machine cannot isolate; None when it can."""
        return bwrap.why_not(self._bwrap)

    @cached_property
    def _parents(self) -> limits.CgroupParents | None:
        return limits.find_parents() if sys.platform == "linux" else None

    def notes(self) -> Sequence[str]:
        if self._obstacle is not None:
            if not self._unisolated:
                return (self._obstacle,)
            return (
                f"local sandboxes are NOT isolated, as you asked: {self._obstacle}. Commands run as you, see "
                "and may change all your files and processes, and reach every network; only the repository "
                "is a private copy, at another path. Disk, processes and processor time are not limited, "
                "memory only per process.",
            )
        found = []
        if self._parents is None:
            root = os.getuid() == 0
            found.append(
                "local sandboxes limit memory per process instead of in sum, and processor time not at all"
                f"{', and processes not at all' if root else ''}: no cgroup with memory and pids controllers "
                "is writable here."
            )
        elif self._parents.cpu is None:
            found.append("local sandboxes do not limit processor time: no cgroup with a cpu controller here.")
        if seccomp.this_machine() is None:
            found.append(
                f"local sandboxes have no system call filter on {platform.machine()!r}, only on 64-bit "
                f"{' and '.join(seccomp.MACHINES)}: code inside can read your kernel keyrings and open "
                "AF_VSOCK sockets."
            )
        return found

    def check_supported(self, spec: SandboxSpec) -> None:
        require_room(state.sockets(state.new_name()))
        self._refuse_machine()

    def _refuse_machine(self) -> None:
        if self._obstacle is None:
            bwrap.refuse_private_python()
        elif not self._unisolated:
            raise PolicyRefused(
                f"{self._obstacle}; or use containers (`--sandbox docker`), or accept to run without "
                "isolation (`--set sandbox.local.unisolated=true`)"
            )

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        _check(spec)
        self._refuse_machine()  # that a socket has no room is said where one is wanted
        isolated = self._obstacle is None
        image = await self._image_of(spec)
        name = state.new_name()
        parents = self._parents if isolated else None
        files = parents.limits(f"swe-core-{name}", spec) if parents else {}
        groups = list(dict.fromkeys(file.parent for file in files))
        directory = state.create(groups, name, spec.image if image else None)
        try:
            enter = limits.make(files)
            state.sockets(name).mkdir(mode=0o755)
            async with self._supervised(spec, image, directory, enter, isolated, groups) as sandbox:
                if image is not None:
                    sandbox.image_id = image.id
                yield sandbox
        finally:
            with anyio.CancelScope(shield=True):
                await limits.remove(groups)
                await anyio.to_thread.run_sync(state.remove, directory)

    async def _image_of(self, spec: SandboxSpec) -> Image | None:
        """Return the image that a sandbox of `spec` runs in; None for the host's programs."""
        if spec.image is None or spec.repository is not None:
            return None
        if self._obstacle is not None:
            raise PolicyRefused(
                f"the image {spec.image!r} cannot be run without isolation, and {self._obstacle}; or use "
                "containers (`--sandbox docker`)"
            )
        return await self._images.ensure(spec.image, self._bwrap or "")

    @asynccontextmanager
    async def _supervised(
        self,
        spec: SandboxSpec,
        image: Image | None,
        directory: Path,
        enter: Sequence[Path],
        isolated: bool,
        groups: list[Path],
    ) -> AsyncIterator[LocalSandbox]:
        host_end, inner_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Control(
            host_end, directory.name, directory / _STDERR, partial(limits.ran_out_of_memory, groups)
        )
        try:
            with inner_end, _filter(isolated) as rules:
                descriptor = inner_end.fileno()
                settings, sandbox, argv = await anyio.to_thread.run_sync(
                    self._plan, spec, image, directory, control, descriptor, rules, isolated
                )
                passed = [descriptor] if rules is None else [descriptor, rules]
                process = _launch([*_enter(enter), *argv], passed, directory / _STDERR)
            try:
                await _set_up(control, settings)
                yield sandbox
            finally:
                sandbox.close()
                with anyio.CancelScope(shield=True):
                    control.close()
                    await _end(process)
        finally:
            control.close()

    def _plan(
        self,
        spec: SandboxSpec,
        image: Image | None,
        directory: Path,
        control: Control,
        descriptor: int,
        rules: int | None,
        isolated: bool,
    ) -> tuple[Mapping[str, object], LocalSandbox, Sequence[str]]:
        """Return the settings of the supervisor, the sandbox, and the argv that starts it."""
        sockets = state.sockets(directory.name)
        program = directory / "supervisor.pyc"
        program.write_bytes(_compiled())
        env = _environment(spec, image)
        settings: dict[str, object] = {"isolated": isolated}
        if not isolated:
            settings["rlimits"] = limits.rlimits(spec, memory=True, processes=False)
            paths = Paths.make(directory, spec)
            sandbox: LocalSandbox = UnisolatedSandbox(directory.name, spec, control, env, sockets, paths)
            return settings, sandbox, [sys.executable, "-I", "-S", str(program), str(descriptor)]
        binds = bwrap.Binds(spec, sockets, program, image.root if image else None)
        loose = self._parents is None
        settings |= {
            "rlimits": limits.rlimits(spec, memory=loose, processes=loose),
            "image": image is not None,
            "user": image.user if image else f"{bwrap.UID}:{bwrap.UID}",
            "home": HOME_DIR,
            "workdir": spec.workdir,
            "files": (bwrap.image_files if image else bwrap.identity_files)(spec.network),
            "late_binds": binds.late,
            "protects": spec.write_protect,
            # Files of another owner could not be changed through an overlay; a copy is ours.
            "overlay": self._overlay and _is_ours(spec.repository),
        }
        sandbox = LocalSandbox(directory.name, spec, control, env, sockets)
        return settings, sandbox, bwrap.command_line(self._bwrap or "", spec, binds, descriptor, rules)

    async def list(self) -> Sequence[SandboxEntry]:
        return [
            SandboxEntry(
                id=kept.name,
                owner=kept.owner,
                image=kept.image,
                created=kept.created,
                details={"directory": str(kept.path)},
            )
            for kept in state.kept()
        ]

    async def reap(self) -> int:
        abandoned = [kept for kept in state.kept() if kept.owner == "gone"]
        for kept in abandoned:
            await limits.remove(kept.cgroups)
            await anyio.to_thread.run_sync(state.remove, kept.path)
        await self._images.reap()
        return len(abandoned)


def _check(spec: SandboxSpec) -> None:
    """Check that local sandboxes support the spec.

    Raises:
        SandboxError: One sentence about it.
    """
    if not spec.workdir.startswith("/") or spec.workdir == "/":
        raise SandboxError(f"the workdir {spec.workdir!r} must be an absolute path below '/'")
    if spec.repository is not None and not spec.repository.is_dir():
        raise SandboxError(f"the repository {str(spec.repository)!r} is not a directory on this host")
    for asset in spec.assets:
        if not asset.path.is_dir():
            raise SandboxError(f"the asset {asset.name!r} is not there: no directory {str(asset.path)!r}")


def _environment(spec: SandboxSpec, image: Image | None) -> Mapping[str, str]:
    """Return the variables of all commands."""
    if image is not None:  # as in a container of it
        return {"PATH": bwrap.IMAGE_PATH, **image.env, **spec.env, "HOME": HOME_DIR}
    return {"PATH": bwrap.default_path(), "HOME": HOME_DIR, "LANG": "C.UTF-8", **spec.env}


def _is_ours(repository: Path | None) -> bool:
    return repository is not None and repository.stat().st_uid == os.getuid()


@cache
def _compiled() -> bytes:
    """Return the supervisor as a .pyc file: Python compiles the source of a program at each start."""
    source = Path(__file__).with_name("supervisor.py")
    code = compile(source.read_bytes(), source.name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _enter(files: Sequence[Path]) -> list[str]:
    return ["sh", "-c", _ENTER, "sh", *map(str, files), "--"] if files else []


@contextmanager
def _filter(isolated: bool) -> Iterator[int | None]:
    """Yield a descriptor of the system call filter for bubblewrap; None without a filter."""
    machine = seccomp.this_machine() if isolated else None
    if machine is None:
        yield None
        return
    rules = sealed(seccomp.program(machine))
    try:
        yield rules
    finally:
        os.close(rules)


def _launch(argv: Sequence[str], passed: Sequence[int], stderr: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own, so that Ctrl-C does not reach it.

    The event loop must not start it: uvloop runs Python's fork hooks in the new process before the program,
    and this process waits meanwhile. That of huggingface_hub never ends if another thread is in a request.
    No other thread may start it either, because bubblewrap dies with the thread that has started it.
    """
    file = os.open(stderr, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
            pass_fds=tuple(passed),
        )
    finally:
        os.close(file)


async def _set_up(control: Control, settings: Mapping[str, object]) -> None:
    """Wait until the supervisor is ready.

    Raises:
        SandboxError: It failed; the message has its last output, or that of bubblewrap.
    """
    try:
        with anyio.fail_after(OPEN_TIMEOUT):
            await control.setup(settings)
    except TimeoutError:
        raise SandboxError(f"the local sandbox did not open within {OPEN_TIMEOUT:g} s") from None
    except SandboxDied:
        why = control.last_words() or "its supervisor ended"
        raise SandboxError(f"the local sandbox did not open: {why}") from None


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the supervisor and all processes inside have exited."""
    ended = os.pidfd_open(process.pid)
    try:
        with anyio.move_on_after(CLOSE_TIMEOUT) as patience:
            await anyio.wait_readable(ended)
        if patience.cancelled_caught:
            process.kill()
            await anyio.wait_readable(ended)
    finally:
        os.close(ended)
    process.wait()
