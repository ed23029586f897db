"""Runs inside a sandbox: `forward.py SOCKET [PORT]` carries TCP connections to the unix socket SOCKET.

It listens on 127.0.0.1 only, prints `ready PORT`, and runs until it is killed. Standard library of
Python >= 3.6 only: the sandbox's own Python runs it.
"""

import asyncio
import sys

CHUNK = 65536


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
