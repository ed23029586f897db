"""Creation of a container from a SandboxSpec: its limits, and its files before it starts."""

from __future__ import annotations

import io
import posixpath
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from docker.errors import NotFound
from docker.types import LogConfig, Mount, Ulimit

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxError
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_docker.client import Client

SOCKET_DIR = "/run/swe"
"""Read-only mount point of the host directory with the sockets of the sandbox's relays."""

HOSTNAME = "swe"
KEEPER_ID = 65432
KEEPER = f"{KEEPER_ID}:{KEEPER_ID}"
"""User and group of the container's first processes. Commands run as another user and without CAP_KILL, so
even root cannot signal these processes: an agent that kills everything it sees does not end its sandbox."""
READY = b"ready"
FILTERED = b"seccomp 2"
"""Printed by the first process before READY if a seccomp filter applies to it (proc(5), `Seccomp`)."""
# The shell reads standard input until it is closed (lifeline.py). It does not fork.
_KEEP = (
    'while read -r key mode; do [ "$key" != Seccomp: ] || echo "seccomp $mode"; done </proc/self/status; '
    f"echo {READY.decode()}; while read -r _; do :; done"
)
_OWN_PROCESSES = 2  # docker-init and this shell

_SPOOL = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class User:
    """The user of commands: the name for the engine, and the numeric owner of files."""

    name: str
    uid: int
    gid: int


def check(spec: SandboxSpec) -> str:
    """Check `spec`, and return its image.

    Raises:
        SandboxError: `spec` names no image, or a host directory does not exist.
    """
    if spec.image is None:
        raise SandboxError(
            "the docker sandbox needs an image and the task names none: give the task an 'image', or use "
            "another sandbox"
        )
    shared = {"repository": spec.repository} | {f"asset {asset.name}": asset.path for asset in spec.assets}
    for what, path in shared.items():
        if path is not None and not path.is_dir():
            raise SandboxError(f"the {what} is not a directory of this host: {str(path)!r}")
    return spec.image


def require_limits(client: Client) -> None:
    """Raise if the engine cannot limit a container's resources.

    Raises:
        PolicyRefused: The engine cannot enforce a limit.
    """
    if client.limits.missing:
        raise PolicyRefused(
            f"the Docker Engine at {client.host!r} cannot limit {' or '.join(client.limits.missing)}: its "
            "kernel or its mode (rootless) lacks the cgroup controllers; use an engine that has them"
        )


def shared_mounts(spec: SandboxSpec, sockets: Path) -> list[Mount]:
    """Return the mounts of a container whose engine shares this host's files."""
    shared = {SOCKET_DIR: sockets}
    shared |= {f"{ASSETS_DIR}/{asset.name}": asset.path.resolve() for asset in spec.assets}
    return [Mount(target, str(path), type="bind", read_only=True) for target, path in shared.items()]


def create(
    client: Client,
    name: str,
    spec: SandboxSpec,
    image: str,
    mounts: Sequence[Mount],
    *,
    quota: bool,
    seccomp: str | None,
) -> str:
    """Create the container without starting it, and return its id. Blocking.

    Args:
        mounts: See `shared_mounts`.
        quota: Limit the sum of all written files; otherwise limit each file.
        seccomp: The seccomp profile; None for the engine's own.

    Raises:
        docker.errors.APIError: The engine refuses.
    """
    api = client.api
    disk = spec.disk_mb * 1024 * 1024
    options: dict[str, Any] = (
        {"storage_opt": {"size": f"{spec.disk_mb}m"}}
        if quota
        else {"ulimits": [Ulimit(name="fsize", soft=disk, hard=disk)]}
    )
    if spec.network != "full":  # else the engine writes its name into /etc/hosts
        options["extra_hosts"] = {HOSTNAME: "127.0.0.1"}
    if client.limits.ipv6:  # engines before 26 disable ::1
        options["sysctls"] = {"net.ipv6.conf.lo.disable_ipv6": "0"}
    host_config = api.create_host_config(
        init=True,
        network_mode="bridge" if spec.network == "full" else "none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true", *([f"seccomp={seccomp}"] if seccomp else [])],
        mem_limit=f"{spec.memory_mb}m",
        memswap_limit=f"{spec.memory_mb}m",
        nano_cpus=int(min(spec.cpus, client.limits.cpus) * 1e9),
        pids_limit=spec.pids + _OWN_PROCESSES,
        mounts=list(mounts),
        log_config=LogConfig(type=LogConfig.types.NONE),
        **options,
    )
    created = api.create_container(
        image,
        command=[],
        entrypoint=["sh", "-c", _KEEP],
        user=KEEPER,
        stdin_open=True,  # docker-py sets StdinOnce: a disconnect of the attached client closes it
        environment={**spec.env, "HOME": HOME_DIR},
        working_dir=spec.workdir,
        hostname=HOSTNAME,
        labels={**spec.labels, "swe-core": "1", LABEL: current_owner()},
        healthcheck={"test": ["NONE"]},
        host_config=host_config,
        name=name,
    )
    return str(created["Id"])


def fill(client: Client, container: str, user: User, spec: SandboxSpec) -> None:
    """Create the home directory and copy the repository, both owned by `user`. Blocking.

    Raises:
        SandboxError: The repository cannot be read.
        docker.errors.APIError: The engine refuses.
    """
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            home = tarfile.TarInfo(HOME_DIR.lstrip("/"))
            home.type, home.mode, home.uid, home.gid = tarfile.DIRTYPE, 0o700, user.uid, user.gid
            archive.addfile(home)
            if spec.repository is not None:
                _add(archive, spec.repository, posixpath.normpath(spec.workdir).lstrip("/"), user)
        file.seek(0)
        client.api.put_archive(container, "/", file)


def _add(archive: tarfile.TarFile, source: Path, target: str, user: User) -> None:
    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid, member.uname, member.gname = user.uid, user.gid, "", ""
        return member

    try:
        archive.add(source, target, filter=owned)
    except OSError as error:
        raise SandboxError(f"the repository {str(source)!r} cannot be copied: {error}") from None


def as_keepers(archive: bytes) -> bytes:
    """Return a tar archive with the keeper as the owner of all members.

    Only the keeper may write to the files. In the directories all users may create files, but the sticky bit
    prevents them from replacing or removing the keeper's.
    """
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as given,
        tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as owned,
    ):
        for member in given:
            member.uid = member.gid = KEEPER_ID
            member.uname = member.gname = ""
            member.mode = 0o1777 if member.isdir() else member.mode & ~0o022
            owned.addfile(member, given.extractfile(member) if member.isreg() else None)
    return made.getvalue()


def resolve_user(client: Client, container: str, configured: str) -> User:
    """Return the image's configured user with its numeric ids. Blocking.

    Args:
        configured: `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; "" for root.

    Raises:
        SandboxError: The image has no such user or group.
        docker.errors.APIError: The engine refuses.
    """
    name, _, group = configured.partition(":")
    name = name or "root"
    if name in ("root", "0") and not group:
        return User("0:0", 0, 0)
    uid, gid = _look_up(client, container, "/etc/passwd", name)
    if group:
        gid, _ = _look_up(client, container, "/etc/group", group)
    return User(configured, uid, gid)


def _look_up(client: Client, container: str, path: str, name: str) -> tuple[int, int]:
    """Return fields 3 and 4 of the entry with the name or number `name`. A number needs no entry.

    In /etc/group, field 4 is not a number, and callers ignore it.
    """
    for line in _read(client, container, path).splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]):
            return int(fields[2]), int(fields[3]) if fields[3].isdecimal() else 0
    if name.isdecimal():
        return int(name), 0
    raise SandboxError(f"the image's user or group {name!r} is not in its {path}")


def _read(client: Client, container: str, path: str) -> str:
    try:
        chunks, _ = client.api.get_archive(container, path)
    except NotFound:
        return ""
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        content: IO[bytes] | None = archive.extractfile(archive.next() or tarfile.TarInfo())
        return content.read().decode(errors="replace") if content else ""
