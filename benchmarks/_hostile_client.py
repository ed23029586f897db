"""The hostile rollout's agent in a process of its own: python _hostile_client.py URL KEY MEGABYTES.

It prints a line once its bodies are made. For each line that it reads it sends all of them at once and prints
the statuses that they were answered with. Others go first on its cores: an agent has those of its sandbox.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from urllib.parse import urlsplit

from _workload import corpus

MEGABYTE = 1_000_000
SECONDS = 300.0


def shapes(size: int) -> Iterator[bytes]:
    """Six bodies of about `size` bytes: words, text that ends with half of a surrogate pair, tiny messages,
    empty lists, numbers whose list does not end, and lists in lists."""

    def text(content: bytes) -> bytes:
        return b'{"messages":[{"role":"user","content":"' + content + b'"}]}'

    def more(values: bytes) -> bytes:
        return b'{"messages":[{"role":"user","content":"x"}],"more":[' + values + b"]}"

    words = " ".join(word for word in corpus().split() if word.isalnum()).encode()
    yield text((words * (size // len(words) + 1))[:size])
    yield text(b"x" * size + rb"\ud800")
    yield b'{"messages":[' + b",".join([b'{"role":"user"}'] * (size // 16)) + b"]}"
    yield more(b",".join([b"[]"] * (size // 3)))
    yield more(b",".join([b"1"] * (size // 2)))[:-2]
    yield b"[" * size


def attack(url: str, key: str, body: bytes) -> int:
    """The status that `body` is answered with."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", f"{parts.path}/chat/completions", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def main(url: str, key: str, megabytes: str) -> None:
    os.nice(19)
    bodies = list(shapes(int(megabytes) * MEGABYTE))
    print("ready", flush=True)
    with ThreadPoolExecutor(len(bodies)) as pool:
        for _ in sys.stdin:
            print(json.dumps(list(pool.map(partial(attack, url, key), bodies))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
