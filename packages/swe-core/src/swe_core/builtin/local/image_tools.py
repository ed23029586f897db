"""The programs that fetch and unpack an image without root: skopeo and umoci, or Podman.

Each gets its own credentials, mirrors and trust policy from where its users configure them, such as
`skopeo login`. What unpacks a layer, which may be hostile, runs in bubblewrap: it sees the layers and the
system's programs, has no network, and can write to the new root file system only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from swe_core.builtin.local import bwrap
from swe_core.errors import ImageNotFound, SandboxError

_WAYS = (("skopeo", "umoci"), ("podman",))
"""The programs that do it, best first."""
_POLICIES = ("/etc/containers/policy.json", "~/.config/containers/policy.json")
_FATAL = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_NAME = "image"
# Becomes the program, which the kernel kills when this process exits in any way.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)

_ROOM = "the disk is full; make room in {cache!r}, or set XDG_CACHE_HOME to another place"
_ELSEWHERE = "the architecture of this machine is not among those that it is published for"
_ABSENT = "the registry does not have it; check its name"
_CLOSED = "the registry does not give it to you; check its name, or sign in with `{tool} login`"
_SILENT = "the registry does not answer; check its name and the network"
_NO_NAME = "this is no name of an image; expected one such as 'registry/repository:tag'"
_KNOWN = (
    (r"no space left on device", SandboxError, _ROOM),
    (r"no image found in .* for architecture", ImageNotFound, _ELSEWHERE),
    (r"invalid reference format|parsing reference", ImageNotFound, _NO_NAME),
    (r"manifest unknown|name unknown|repository \S+ not found", ImageNotFound, _ABSENT),
    (r"unauthorized|authentication required|access to the resource is denied", ImageNotFound, _CLOSED),
    (r"pinging container registry|connection re(fused|set)|no such host|i/o timeout", SandboxError, _SILENT),
)
"""What the tools say, the error that it is, and what it means: the most frequent obstacles."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an image comes from.

    Args:
        reference: As the user wrote it.
        transport: As skopeo has it: `docker://` (a registry), `oci:`, `oci-archive:`, `docker-archive:`.
        place: The rest: the name in a registry, or an absolute path and perhaps a tag.
        loopback: Whether it is a registry on this host, which may speak plain HTTP.
    """

    reference: str
    transport: str
    place: str
    loopback: bool = False

    def __str__(self) -> str:
        return f"{self.transport}{self.place}"


@dataclass(frozen=True, slots=True)
class Described:
    """What an image says of itself.

    Args:
        id: The digest of its configuration, which is also a Docker Engine's id of it.
        architecture: As Go names it, such as "amd64".
        layers: The digests of its unpacked layers.
        env: Its environment.
        user: Its user, as `NAME:GROUP` or numbers; "" is root.
    """

    id: str
    architecture: str
    layers: Sequence[str]
    env: Mapping[str, str]
    user: str


class Tools(Protocol):
    """Programs that fetch and unpack images."""

    async def describe(self, source: Source, work: Path) -> Described:
        """Ask the source about the image. `work` is an empty directory for files of this call.

        Raises:
            SandboxError: See `_failed`.
        """
        ...

    async def unpack(self, source: Source, described: Described, work: Path, root: Path) -> None:
        """Fetch the image and unpack it into `root`, which does not exist yet.

        Raises:
            SandboxError: See `_failed`; or the image has changed since it was described.
        """
        ...


def tools_here() -> tuple[str, ...]:
    """Return the names of the programs that unpack images on this machine; empty where some are missing."""
    return next((ways for ways in _WAYS if all(map(shutil.which, ways))), ())


def why_no_tools() -> str | None:
    """Return what this machine lacks to unpack images, with the remedy; None if it lacks nothing."""
    if tools_here():
        return None
    missing = [name for name in _WAYS[0] if shutil.which(name) is None]
    return (
        "local sandboxes unpack images with skopeo and umoci, or with Podman, and this machine has no "
        f"{' and no '.join(missing)}: install {'them' if len(missing) > 1 else 'it'}, on Debian with "
        f"`apt-get install {' '.join(missing)}`, or use containers (`--sandbox docker`)"
    )


def find_tools(blobs: Path, sandboxed: str) -> Tools:
    """Return the tools of this machine.

    Args:
        blobs: A directory for the layers of all images; Podman has its own.
        sandboxed: The bubblewrap program.

    Raises:
        SandboxError: There are none; the message says what to install.
    """
    obstacle = why_no_tools()
    if obstacle is not None:
        raise SandboxError(obstacle)
    programs = {name: shutil.which(name) or name for name in tools_here()}
    return (
        _Podman(**programs, sandboxed=sandboxed)
        if "podman" in programs
        else _Skopeo(**programs, blobs=blobs, sandboxed=sandboxed)
    )


def is_loopback(name: str) -> bool:
    """Return whether an image's name is that of a registry on this host."""
    host = name.split("/")[0].rpartition(":")[0] or name.split("/")[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Skopeo:
    skopeo: str
    umoci: str
    blobs: Path
    sandboxed: str

    async def describe(self, source: Source, work: Path) -> Described:
        verify = ["--tls-verify=false"] if source.loopback else []
        argv = [*self._skopeo(), "inspect", *verify, "--retry-times", "1", "--config", "--raw", str(source)]
        raw = await _run(argv, work, source, "skopeo")
        try:
            return _described(raw)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SandboxError(
                f"the image {source.reference!r} cannot be used: its configuration is not that of an image"
            ) from None

    async def unpack(self, source: Source, described: Described, work: Path, root: Path) -> None:
        layout = work / "layout"
        verify = ["--src-tls-verify=false"] if source.loopback else []
        argv = [*self._skopeo(), "copy", "--quiet", *verify, "--retry-times", "3"]
        argv += ["--dest-shared-blob-dir", str(self.blobs), str(source), f"oci:{layout}:{_NAME}"]
        await _run(argv, work, source, "skopeo")
        if self._layers(layout) != described.layers:
            raise SandboxError(f"the image {source.reference!r} changed while it was pulled; start again")
        sees = ["--ro-bind", str(layout), "/layout", "--ro-bind", str(self.blobs), "/layout/blobs"]
        sees += ["--ro-bind", self.umoci, "/umoci"]
        argv = ["/umoci", "raw", "unpack", "--rootless", "--image", f"/layout:{_NAME}", f"/new/{root.name}"]
        await _run(_confined(self.sandboxed, root, sees, argv), work, source, "umoci")

    def _skopeo(self) -> list[str]:
        # Without a file, "accept all" is what distributions install; skopeo alone would refuse to start.
        policy = any(Path(path).expanduser().exists() for path in _POLICIES)
        return [self.skopeo, *([] if policy else ["--insecure-policy"])]

    def _layers(self, layout: Path) -> Sequence[str]:
        (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
        config = self._blob(manifest["digest"])["config"]
        layers: list[str] = self._blob(config["digest"])["rootfs"]["diff_ids"]
        return layers

    def _blob(self, digest: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.blobs.joinpath(*digest.split(":")).read_text())
        return loaded


@dataclass(frozen=True, slots=True)
class _Podman:
    podman: str
    sandboxed: str

    async def describe(self, source: Source, work: Path) -> Described:
        verify = ["--tls-verify=false"] if source.loopback else []
        said = await _run([self.podman, "pull", "--quiet", *verify, str(source)], work, source, "podman")
        name = said.decode().split()[-1]
        argv = [self.podman, "image", "inspect", "--format", "json", name]
        (found,) = json.loads(await _run(argv, work, source, "podman"))
        config = found["Config"]
        return Described(
            id=f"sha256:{found['Id']}",
            architecture=found["Architecture"],
            layers=found["RootFS"]["Layers"],
            env=_variables(config.get("Env")),
            user=config.get("User") or "",
        )

    async def unpack(self, source: Source, described: Described, work: Path, root: Path) -> None:
        name = described.id.removeprefix("sha256:")
        created = await _run([self.podman, "create", "--pull", "never", name, "sh"], work, source, "podman")
        container = created.decode().strip()
        archive = work / "root.tar"
        try:
            argv = [self.podman, "export", "--output", str(archive), container]
            await _run(argv, work, source, "podman")
        finally:
            with anyio.CancelScope(shield=True):
                await _run([self.podman, "rm", "--force", container], work, source, "podman")
        unpack = 'mkdir "$1" && tar -x -p --no-same-owner --exclude="dev/*" -f /root.tar -C "$1"'
        argv = ["sh", "-c", unpack, "sh", f"/new/{root.name}"]
        sees = ["--ro-bind", str(archive), "/root.tar"]
        await _run(_confined(self.sandboxed, root, sees, argv), work, source, "tar")


def _confined(sandboxed: str, root: Path, sees: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Return the command line of a program that may only write to the directory of `root`, as /new."""
    return [
        *(sandboxed, "--unshare-all", "--die-with-parent", *bwrap.programs(), "--dev", "/dev"),
        *("--tmpfs", "/tmp", "--bind", str(root.parent), "/new", *sees, "--", *argv),
    ]


def _described(raw: bytes) -> Described:
    loaded = json.loads(raw)
    config = loaded.get("config") or {}
    return Described(
        id=f"sha256:{hashlib.sha256(raw).hexdigest()}",
        architecture=loaded["architecture"],
        layers=loaded["rootfs"]["diff_ids"],
        env=_variables(config.get("Env")),
        user=config.get("User") or "",
    )


def _variables(lines: Sequence[str] | None) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in lines or ())


async def _run(argv: Sequence[str], work: Path, source: Source, tool: str) -> bytes:
    """Run a program to its end and return its output. A cancellation kills it.

    Raises:
        SandboxError: It failed; see `_failed`.
    """
    out, err = work / "stdout", work / "stderr"
    process = _start(argv, out, err)
    try:
        ended = os.pidfd_open(process.pid)
        try:
            await anyio.wait_readable(ended)
        finally:
            os.close(ended)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if code != 0:
        raise _failed(source, tool, code, err.read_text(errors="replace"), work.parent.parent)
    return out.read_bytes()


def _start(argv: Sequence[str], out: Path, err: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own. For why the event loop does not, see `provider._launch`."""
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            tied, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )


def _failed(source: Source, tool: str, code: int, said: str, cache: Path) -> SandboxError:
    """Return the error for a program that failed: an `ImageNotFound` where the source lacks the image."""
    lines = said.strip().splitlines()
    messages = _FATAL.findall(said)
    last = (messages or lines or [f"exit code {code}"])[-1]
    words = " ".join(_ESCAPED.sub(lambda found: found[1] if found[1] == '"' else " ", last).split())[-500:]
    for pattern, kind, meaning in _KNOWN:
        if re.search(pattern, said, re.IGNORECASE):
            meant = meaning.format(cache=str(cache), tool=tool)
            return kind(f"the image {source.reference!r} cannot be had: {meant} ({tool}: {words})")
    return SandboxError(f"the image {source.reference!r} cannot be had: {tool} failed: {words}")
