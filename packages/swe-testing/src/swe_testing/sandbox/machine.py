"""The machine that code inside finds: what test results in containers rely on."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_testing.sandbox.base import SandboxSuite, python

# Prints a line for each thing that is not as in a container: what was looked at, and what it was.
_LOOK = r'''
import getpass, locale, multiprocessing, os, pwd, pty, resource, socket, stat, subprocess, sys, tempfile, time

def look(what, expected, find):
    try:
        found = find()
    except Exception as error:  # a fault of the machine is a finding, whatever it raises
        found = repr(error)
    if found != expected:
        print(f"{what}: {found}, expected {expected}")

def answers(host, family=socket.AF_INET):
    address = socket.getaddrinfo(host, None, family)[0][4][0]
    with socket.socket(family) as server:
        server.bind(("", 0))
        server.listen()
        socket.create_connection((address, server.getsockname()[1]), timeout=10).close()
        return True

def kind(path):
    mode = os.stat(path).st_mode
    return stat.S_ISCHR(mode) and mode & 0o666 == 0o666

def workers():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])

def terminal():
    child, parent = pty.openpty()
    return os.isatty(child) and os.isatty(parent)

def text_of(path):
    with open(path) as file:
        return file.read().strip()

def size(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize

def temporary(directory):
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        return file.write(b"x" * 2**20)

name = socket.gethostname()
look("own name", True, lambda: answers(name))
look("full name", True, lambda: bool(socket.getfqdn()))
look("address of the own name", True, lambda: bool(socket.gethostbyname(name)))
look("/etc/hostname", name, lambda: text_of("/etc/hostname"))
look("localhost, IPv4", True, lambda: answers("localhost"))
look("127.0.0.2", True, lambda: answers("127.0.0.2"))
look("localhost, IPv6", True, lambda: answers("localhost", socket.AF_INET6))
for path in ("/tmp", "/var/tmp", "/dev/shm"):
    look("mode of " + path, "0o1777", lambda: oct(stat.S_IMODE(os.stat(path).st_mode)))
    look("file in " + path, 2**20, lambda: temporary(path))
look("64 MiB in /dev/shm", True, lambda: size("/dev/shm") >= 2**26)
look("multiprocessing", [1, 2], workers)
for device in ("null", "zero", "full", "random", "urandom", "tty", "ptmx"):
    look("/dev/" + device, True, lambda: kind("/dev/" + device))
look("write to /dev/full", 1, lambda: subprocess.run(["sh", "-c", "echo x >/dev/full"], stderr=-3).returncode)
look("/dev/stdin", b"in", lambda: subprocess.run(["cat", "/dev/stdin"], input=b"in", stdout=-1).stdout)
look("/dev/stdout, /dev/stderr and /dev/fd", b"123", lambda: subprocess.run(
    ["sh", "-c", "printf 1 >/dev/stdout; printf 2 >/dev/stderr; printf 3 >/dev/fd/1"], stdout=-1, stderr=-2
).stdout)
look("terminal", True, terminal)
look("/proc/self", str(os.getpid()), lambda: os.readlink("/proc/self"))
look("user", True, lambda: bool(getpass.getuser() and pwd.getpwuid(os.getuid()).pw_name))
look("home", 2**20, lambda: temporary(os.path.expanduser("~")))
look("umask", "0o22", lambda: oct(os.umask(0o22)))
look("open files", True, lambda: 1024 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2**20)
look("stack", True, lambda: resource.getrlimit(resource.RLIMIT_STACK)[0] in (resource.RLIM_INFINITY, 2**23))
look("input", (False, ""), lambda: (sys.stdin.isatty(), sys.stdin.read()))
look("locale", True, lambda: bool(locale.setlocale(locale.LC_ALL, "")))
for encoding in (sys.getfilesystemencoding(), sys.stdout.encoding, locale.getpreferredencoding(False)):
    look("encoding", "utf-8", encoding.lower)
look("time zone", ("UTC", 0), lambda: (time.tzname[0], time.timezone))
look("TZ of this host", None, lambda: os.environ.get("TZ"))
'''  # fmt: skip


class MachineTests(SandboxSuite):
    """Names, devices, temporary directories, locale and time zone."""

    @pytest.mark.parametrize("network", ["llm", "none"])
    async def test_machine(
        self, provider: SandboxProvider, spec: SandboxSpec, network: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All is as in a container, and nothing is as this host has it."""
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        async with provider.open(spec.model_copy(update={"network": network})) as sandbox:
            assert await python(sandbox, _LOOK) == ""
