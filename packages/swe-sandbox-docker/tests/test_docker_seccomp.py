"""The system call filter of containers: what it says, what the kernel makes of it, and engines without it."""

from __future__ import annotations

import errno
import json
import platform
import signal
from dataclasses import replace

import pytest
from docker import APIClient

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.local import seccomp as local
from swe_core.errors import PolicyRefused
from swe_sandbox_docker import checks, seccomp
from swe_sandbox_docker.address import resolve
from swe_sandbox_docker.client import Client
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider

from .helpers import sh

# The numbers of calls on x86_64 and on aarch64 (asm/unistd.h).
NUMBERS = {
    "x86_64": {
        **local.MACHINES["x86_64"].denied,
        **{"clone3": 435, "io_uring_enter": 426, "io_uring_register": 427},
        **{"mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "open_by_handle_at": 304},
        **{"init_module": 175, "kexec_load": 246, "swapon": 167, "chroot": 161, "pivot_root": 155},
        **{"clone": 56, "socket": 41, "socketpair": 53},
    },
    "aarch64": {
        **local.MACHINES["aarch64"].denied,
        **{"clone3": 435, "io_uring_enter": 426, "io_uring_register": 427},
        **{"mount": 40, "umount2": 39, "unshare": 97, "setns": 268, "open_by_handle_at": 265},
        **{"init_module": 105, "kexec_load": 104, "swapon": 224, "chroot": 51, "pivot_root": 41},
        **{"clone": 220, "socket": 198, "socketpair": 199},
    },
}

_TRY = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = []
for number, first in json.loads(sys.argv[1]):
    # -1 is no address, no descriptor and no size: the call itself would fail too, with another errno
    result = libc.syscall(*(ctypes.c_long(one) for one in (number, first, 1, 0, -1, -1)))
    found.append(0 if result >= 0 else ctypes.get_errno())
print(json.dumps(found))
"""

# getpid(2) by the 32-bit door of a 64-bit kernel.
_INT_80 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

_WORK = """
import asyncio, concurrent.futures, multiprocessing, socket

async def work():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    child = await asyncio.create_subprocess_exec("true")
    assert await child.wait() == 0

if __name__ == "__main__":
    asyncio.run(work())
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(abs, range(9)))[-1] == 8
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-3]) == [3]
    one, other = socket.socketpair()
    one.send(b"x")
    print(other.recv(1).decode())
"""


def numbers() -> dict[str, int]:
    if platform.machine() not in NUMBERS:
        pytest.skip(f"the numbers of system calls are not known for {platform.machine()!r}")
    return NUMBERS[platform.machine()]


async def attempt(provider: DockerProvider, spec: SandboxSpec, *calls: tuple[int, int]) -> list[int]:
    """The errno of each call, 0 where it succeeds, given its number and first argument."""
    async with provider.open(spec) as sandbox:
        done = await sandbox.exec(["python3", "-c", _TRY, json.dumps(calls)], timeout=60)
    assert done.exit_code == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def test_filter_is_no_weaker_than_that_of_local_sandboxes() -> None:
    assert seccomp.FAMILIES == local.FAMILIES
    for machine in local.MACHINES.values():
        assert set(machine.denied) <= set(seccomp.MISSING)


def test_allowed_system_calls() -> None:
    """Each call once, and none that needs an argument checked or a capability."""
    rules = json.loads(seccomp.profile())["syscalls"]
    free = [rule for rule in rules if "args" not in rule and "errnoRet" not in rule]
    names = [name for rule in free for name in rule["names"]]
    assert len(names) == len(set(names))
    denied = {*seccomp.MISSING, *NUMBERS["x86_64"], "socketcall", "personality", "reboot", "syslog"}
    denied |= {"setdomainname", "fsopen", "fsmount", "move_mount", "open_tree", "mount_setattr"}
    denied |= {"pidfd_getfd", "kcmp", "iopl"}
    assert not denied & set(names)
    assert {"read", "execve", "futex", "rseq", "ptrace", "uretprobe"} <= set(names)
    assert json.loads(seccomp.profile())["defaultAction"] == "SCMP_ACT_ERRNO"


@pytest.mark.docker
@pytest.mark.parametrize("network", ["llm", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_kernel_applies_it(provider: DockerProvider, spec: SandboxSpec, network: str) -> None:
    known = numbers()
    refused = [name for name in known if name not in ("clone", "socket", "socketpair")]
    found = await attempt(
        provider, spec.model_copy(update={"network": network}), *((known[name], -1) for name in refused)
    )
    assert dict(zip(refused, found, strict=True)) == {
        name: errno.ENOSYS if name in seccomp.MISSING else errno.EPERM for name in refused
    }


@pytest.mark.docker
@pytest.mark.slow
async def test_namespaces_and_sockets_are_distinguished_by_their_arguments(
    provider: DockerProvider, spec: SandboxSpec
) -> None:
    """The kernel takes a family as an int: the upper half of the register does not count."""
    known = numbers()
    vsock, new_user, upper = 40, 0x10000000, 1 << 32
    denied = [("socket", vsock), ("socket", vsock | upper), ("socketpair", vsock), ("socket", 38)]
    denied.append(("clone", new_user))
    fine = [("socket", 1), ("socket", 2 | upper), ("socket", 2)]
    found = await attempt(provider, spec, *((known[name], first) for name, first in (*denied, *fine)))
    assert found == [errno.EPERM] * len(denied) + [0] * len(fine)


@pytest.mark.docker
@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has int 0x80")
async def test_calls_of_another_architecture_fail(provider: DockerProvider, spec: SandboxSpec) -> None:
    """Of those socketcall(2) opens sockets of any family."""
    async with provider.open(spec) as sandbox:
        done = await sandbox.exec(["python3", "-c", _INT_80])
    assert done.exit_code in (128 + signal.SIGSYS, 128 + signal.SIGSEGV)  # the latter: the kernel has none


@pytest.mark.docker
@pytest.mark.slow
async def test_ordinary_work_continues(provider: DockerProvider, spec: SandboxSpec) -> None:
    async with provider.open(spec) as sandbox:
        await sandbox.write("/tmp/work.py", _WORK.encode())
        assert await sh(sandbox, "python3 /tmp/work.py") == "x\n"


@pytest.mark.docker
async def test_engine_without_seccomp_is_refused(
    provider: DockerProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = provider._connect().client
    client.limits = replace(client.limits, seccomp=False)
    for network in ("llm", "none"):
        confined = spec.model_copy(update={"network": network})
        says = f"the network policy '{network}' .* sandbox.docker.seccomp to 'engine'"
        with pytest.raises(PolicyRefused, match=says):
            provider.check_supported(confined)
        with pytest.raises(PolicyRefused, match="does not apply swe-core's seccomp profile"):
            async with provider.open(confined):
                pass
    provider.check_supported(spec.model_copy(update={"network": "full"}))
    (note,) = [note for note in provider.notes() if "system calls" in note]
    assert "AF_VSOCK" in note
    monkeypatch.setattr("swe_sandbox_docker.client._limits", lambda *_: client.limits)
    assert "does not accept swe-core's seccomp profile" in checks.engine(client.address).text


@pytest.mark.docker
@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("unconfined", "does not apply swe-core's seccomp profile"),  # as gVisor, whatever the engine says
        ("no profile", r"seccomp profile.*; use an engine .* to 'engine' to trust its own"),
    ],
    ids=("ignored", "refused"),
)
@pytest.mark.slow
async def test_filter_that_is_not_applied_is_found_out(
    provider: DockerProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch, profile: str, says: str
) -> None:
    monkeypatch.setattr("swe_sandbox_docker.provider.profile", lambda: profile)
    with pytest.raises(PolicyRefused, match=says):
        async with provider.open(spec):
            pass
    if profile == "unconfined":
        async with provider.open(spec.model_copy(update={"network": "full"})) as sandbox:
            await sh(sandbox, "true")


@pytest.mark.docker
async def test_engines_own_on_request(spec: SandboxSpec, engine: APIClient) -> None:
    provider = DockerProvider(DockerConfig(seccomp="engine"))
    async with provider.open(spec) as sandbox:
        asked = engine.inspect_container(sandbox.id)["HostConfig"]["SecurityOpt"]
        assert asked == ["no-new-privileges:true"]
        await sh(sandbox, "true")
    assert any("AF_VSOCK" in note for note in provider.notes())
    assert not any("AF_VSOCK" in note for note in DockerProvider(DockerConfig()).notes())
    client = Client(resolve())
    assert client.limits.seccomp
    client.close()
