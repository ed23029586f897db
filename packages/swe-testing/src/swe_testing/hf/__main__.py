"""A local HF in a process of its own: python -m swe_testing.hf [IMAGE]...

It serves until stdin ends. The images run in bubblewrap, too. The first line of stdout is the environment of
a client, as JSON. Each line of stdin is an object of `Faults` to set, such as `{"latency": 0.01}`; the answer
is one line: how often each route was called since the last line.
"""

from __future__ import annotations

import json
import sys

import anyio

from swe_testing.hf import LocalHF


async def _main() -> None:
    async with LocalHF() as server:
        server.jobs.images.update(sys.argv[1:])
        _tell(server.environment())
        async for line in anyio.wrap_file(sys.stdin):
            for name, value in json.loads(line).items():
                setattr(server.faults, name, value)
            _tell(server.calls)
            server.calls.clear()


def _tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(_main)
