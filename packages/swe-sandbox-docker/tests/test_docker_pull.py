"""The relay that pulls, in a container without a network: nothing but the engine's exec leads there."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.sandboxing.relay.pull_relay import ExecTransport, reach_by_pull
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox.base import python
from swe_testing.sandbox.network import hello, serving

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

_MANY = """
import sys, threading, urllib.request
def fetch(number):
    data = bytes([number]) * 200_000
    with urllib.request.urlopen(sys.argv[1], data=data, timeout=60) as reply:
        print(reply.read().decode())
threads = [threading.Thread(target=fetch, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


async def test_a_container_is_reached_by_exec_alone(provider: DockerProvider, docker_image: str) -> None:
    """Several requests at once, through a relay that shares no directory with this host."""
    spec = SandboxSpec(image=docker_image, memory_mb=512, pids=128)
    async with provider.open(spec) as sandbox, serving({"/": hello}) as endpoint:
        async with reach_by_pull(sandbox, endpoint, lambda port: ExecTransport(sandbox, port)) as url:
            assert (await python(sandbox, _MANY, url, timeout=90)).split() == ["hello"] * 4
