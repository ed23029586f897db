"""Runs inside a sandbox: `connect.py PORT` carries bytes between its standard streams and a local port.

It ends with the first of the two. It is the way to the port for a provider that can only run commands inside.
Standard library of Python >= 3.6 only: the sandbox's own Python runs it.
"""

import os
import socket
import sys
import threading

CHUNK = 65536


def send(connection: socket.socket) -> None:
    """Carry standard input to the port. Its end ends the program."""
    try:
        while True:
            data = os.read(0, CHUNK)
            if not data:
                break
            connection.sendall(data)
    finally:
        os._exit(0)


def receive(connection: socket.socket) -> None:
    """Carry what the port answers to standard output."""
    with open(1, "wb", closefd=False, buffering=0) as output:
        while True:
            data = connection.recv(CHUNK)
            if not data:
                break
            view = memoryview(data)
            while view:
                view = view[output.write(view) :]


if __name__ == "__main__":
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=send, args=(connection,), daemon=True).start()
    receive(connection)
