"""A local HF in a process of its own.

    python -m swe_testing.hf [IMAGE]...

It serves until stdin ends. The images are added to those that run in bubblewrap. The first line of stdout is
the environment for a client, as JSON. Each further line answers one of stdin, which is an object of `Faults`
to set, such as `{"latency": 0.01}`: how often each route was called since the line before.
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
