"""Runs inside a sandbox: `forward.py SOCKET [PORT]` carries TCP connections to the unix socket SOCKET.

It listens on 127.0.0.1 only, prints `ready PORT`, and runs until it is killed. Each connection to SOCKET
begins with a line about the process that called: `caller BORN NOW` in seconds since the kernel's start,
`caller hidden` where none is found. Standard library of Python >= 3.6 only: the sandbox's own Python runs it.
"""

import asyncio
import os
import socket
import struct
import sys
import time

CHUNK = 65536
BOOT = 7  # CLOCK_BOOTTIME, which has no name in Python 3.6
MAX_LINKS = 100000

owners: "set[str]" = set()  # processes that have called, which are looked at first


def inode_of(caller: "tuple[str, int]", port: int) -> str:
    """Return the inode of the caller's socket; empty where the kernel lists none."""
    ends = ["%08X:%04X" % (struct.unpack("=I", socket.inet_aton(host))[0], at)  # noqa: UP031
            for host, at in (caller, ("127.0.0.1", port))]  # fmt: skip
    mapped = "0000000000000000FFFF0000" if sys.byteorder == "little" else "00000000000000000000FFFF"
    for name, prefix in (("tcp", ""), ("tcp6", mapped)):
        try:
            with open("/proc/net/" + name) as table:
                for line in table:
                    fields = line.split()
                    if fields[1:3] == [prefix + end for end in ends]:
                        return fields[9]
        except OSError:
            pass
    return ""


def born(pid: str) -> float:
    with open("/proc/%s/stat" % pid, "rb") as stat:  # noqa: UP031
        return int(stat.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def earliest(pids: "list[str]", link: str) -> "float | None":
    """Return when the first of the processes was born that hold the socket; its forks may hold it too."""
    found: list[float] = []
    left = MAX_LINKS
    for pid in pids:
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):  # noqa: UP031
                left -= 1
                if left > 0 and os.readlink("/proc/%s/fd/%s" % (pid, fd)) == link:  # noqa: UP031
                    found.append(born(pid))
                    owners.add(pid)
                    break
        except (OSError, ValueError, IndexError):  # it has ended, or belongs to another user
            owners.discard(pid)
    return min(found) if found else None


def caller(address: "tuple[str, int]", port: int) -> bytes:
    """Return the line about a caller."""
    inode = inode_of(address, port)
    if inode in ("", "0"):
        return b"caller hidden\n"
    link = "socket:[%s]" % inode  # noqa: UP031
    first = earliest(list(owners), link)
    if first is None:
        first = earliest([name for name in os.listdir("/proc") if name.isdigit()], link)
    if first is None:
        return b"caller hidden\n"
    return b"caller %.2f %.2f\n" % (first, time.clock_gettime(BOOT))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction up to its end, then half-close the other side."""
    while True:
        data = await reader.read(CHUNK)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def serve(path: str, port: int) -> None:
    """Start to accept connections."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.transport.abort()  # the host's side has exited: the caller sees a reset connection
            return
        try:
            ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            up_writer.write(caller(ends[0], ends[1][1]))
        except Exception:  # such as no /proc: never a reason to carry nothing
            up_writer.write(b"caller unknown\n")
        try:
            await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        except OSError:  # one side broke off: end the other
            writer.transport.abort()
            up_writer.transport.abort()
        finally:
            writer.close()
            up_writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024)
    sys.stdout.write("ready %d\n" % server.sockets[0].getsockname()[1])  # noqa: UP031  # stands alone in an old Python
    sys.stdout.flush()


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    loop.run_forever()
