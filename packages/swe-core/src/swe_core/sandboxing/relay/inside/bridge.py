"""Runs inside a sandbox: `bridge.py PORT` carries its standard streams to a port of 127.0.0.1.

It prints a line `ready` first, so that nothing is sent before it reads, and ends when either side ends.
Standard library of Python >= 3.6 only: the sandbox's own Python runs it.
"""

import os
import socket
import sys
import threading

CHUNK = 65536


def write(data: bytes) -> None:
    """Write all of `data` to standard output."""
    while data:
        data = data[os.write(1, data) :]


def send(connection: socket.socket) -> None:
    """Carry standard input to its end, which ends the program."""
    try:
        data = os.read(0, CHUNK)
        while data:
            connection.sendall(data)
            data = os.read(0, CHUNK)
    finally:
        os._exit(0)


if __name__ == "__main__":
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    write(b"ready\n")
    threading.Thread(target=send, args=(connection,), daemon=True).start()
    received = connection.recv(CHUNK)
    while received:
        write(received)
        received = connection.recv(CHUNK)
    os._exit(0)
