"""The network: the endpoint, and no other address."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.errors import PolicyRefused
from swe_core.system.http_server import serve
from swe_testing.sandbox.base import SandboxSuite, python

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Tries each address given, the gateways it finds, and a name; prints the connections that succeed.
_ESCAPE = """
import json, socket, struct, sys
port = int(sys.argv[1])
hosts = sys.argv[2:] + ["localhost", "host.docker.internal"]
for line in open("/proc/net/route").read().splitlines()[1:]:
    gateway = int(line.split()[2], 16)
    if gateway:
        hosts.append(socket.inet_ntoa(struct.pack("<L", gateway)))
reached = []
for host in hosts:
    try:
        socket.create_connection((host, port), timeout=1).close()
        reached.append(host)
    except OSError:
        pass
try:
    # Connecting a datagram socket looks up a route and sends nothing.
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    reached.append("a route to the world")
except OSError:
    pass
try:
    reached.append(socket.getaddrinfo("example.com", 80))
except OSError:
    pass
print(json.dumps(reached))
"""

_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=100).read().decode())"

_ACKNOWLEDGE = """
import sys, urllib.request
url = sys.argv[1]
with urllib.request.urlopen(url + "/stream", timeout=100) as stream:
    for line in stream:
        urllib.request.urlopen(url + "/seen", data=line, timeout=100).read()
        print(line.decode().strip())
"""

_PARALLEL = """
import sys, threading, urllib.request
def fetch(): print(urllib.request.urlopen(sys.argv[1], timeout=100).read().decode())
threads = [threading.Thread(target=fetch) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

_ECHO = """
import sys, urllib.request
data = bytes(range(256)) * 40000
assert urllib.request.urlopen(sys.argv[1], data=data, timeout=100).read() == data
print("same")
"""


@asynccontextmanager
async def serving(routes: dict[str, Handler]) -> AsyncIterator[str]:
    """Serve HTTP on this host's loopback; yield the endpoint."""
    app = web.Application(client_max_size=2**28)
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    async with serve(web.AppRunner(app, shutdown_timeout=0.1)) as origin:
        yield origin


async def hello(request: web.Request) -> web.Response:
    """Answer at once."""
    return web.Response(text="hello")


def addresses_of_this_host() -> list[str]:
    """Return the loopback address and, if there are any, the others."""
    found = ["127.0.0.1"]
    with suppress(OSError):
        named = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        found += [str(entry[4][0]) for entry in named]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing: it only looks up the local address
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


class NetworkTests(SandboxSuite):
    """`spec.network` and `reach`."""

    @pytest.mark.parametrize("network", ["llm", "none"])
    async def test_no_other_address_is_reachable(
        self, provider: SandboxProvider, spec: SandboxSpec, network: str
    ) -> None:
        """Not this host on any address, no gateway, no route, no name; nor while `reach` is open."""
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        with socket.create_server(("0.0.0.0", 0)) as listener:
            listener.setblocking(False)
            arguments = [str(listener.getsockname()[1]), *addresses_of_this_host()]
            async with provider.open(spec.model_copy(update={"network": network})) as sandbox:
                assert json.loads(await python(sandbox, _ESCAPE, *arguments)) == []
                if network == "llm":
                    async with serving({"/": hello}) as endpoint, sandbox.reach(endpoint):
                        assert json.loads(await python(sandbox, _ESCAPE, *arguments)) == []
            with pytest.raises(BlockingIOError):
                listener.accept()

    async def test_reach(self, sandbox: Sandbox) -> None:
        """The endpoint answers under the URL that is yielded, until the context is left."""
        async with serving({"/path": hello}) as endpoint:
            async with sandbox.reach(endpoint) as url:
                assert await python(sandbox, _FETCH, f"{url}/path") == "hello\n"
            if self.isolates:
                done = await sandbox.exec(["python3", "-c", _FETCH, f"{url}/path"])
                assert done.exit_code == 1

    async def test_reach_two_endpoints(self, sandbox: Sandbox) -> None:
        """Two contexts at once do not mix."""

        async def other(request: web.Request) -> web.Response:
            return web.Response(text="other")

        async with serving({"/": hello}) as first, serving({"/": other}) as second:
            async with sandbox.reach(first) as one, sandbox.reach(second) as two:
                assert await python(sandbox, _FETCH, f"{one}/") == "hello\n"
                assert await python(sandbox, _FETCH, f"{two}/") == "other\n"

    async def test_reach_is_refused_without_network(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        async with provider.open(spec.model_copy(update={"network": "none"})) as sandbox:
            with pytest.raises(PolicyRefused, match="'none'"):
                async with sandbox.reach("http://127.0.0.1:9"):
                    pass

    async def test_reach_streams(self, sandbox: Sandbox) -> None:
        """A chunk arrives before the next one is sent."""
        seen = asyncio.Event()

        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for number in range(3):
                seen.clear()
                await response.write(b"%d\n" % number)
                await seen.wait()
            return response

        async def acknowledge(request: web.Request) -> web.Response:
            seen.set()
            return web.Response()

        async with serving({"/stream": stream, "/seen": acknowledge}) as endpoint:
            async with sandbox.reach(endpoint) as url:
                assert await python(sandbox, _ACKNOWLEDGE, url) == "0\n1\n2\n"

    async def test_reach_serves_many_connections(self, sandbox: Sandbox) -> None:
        """The server has all sixteen requests before it answers the first."""
        waiting = 0
        complete = asyncio.Event()

        async def together(request: web.Request) -> web.Response:
            nonlocal waiting
            waiting += 1
            if waiting == 16:
                complete.set()
            await complete.wait()
            return web.Response(text="together")

        async with serving({"/": together}) as endpoint, sandbox.reach(endpoint) as url:
            assert await python(sandbox, _PARALLEL, f"{url}/") == "together\n" * 16

    async def test_reach_carries_big_bodies(self, sandbox: Sandbox) -> None:
        """10 MB in and out, unchanged."""

        async def echo(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        async with serving({"/": echo}) as endpoint, sandbox.reach(endpoint) as url:
            assert await python(sandbox, _ECHO, f"{url}/") == "same\n"

    async def test_reach_leaves_exceptions_alone(self, sandbox: Sandbox) -> None:
        """An error of the body is raised unchanged, not in a group."""
        async with serving({"/": hello}) as endpoint:
            with pytest.raises(KeyError, match="mine"):
                async with sandbox.reach(endpoint):
                    raise KeyError("mine")
