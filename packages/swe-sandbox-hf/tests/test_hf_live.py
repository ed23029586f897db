"""The hf sandbox on the real service: some cents, a few minutes. Runs only where a real token is set."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from swe_core.api.sandbox import HOME_DIR, SandboxSpec
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.provider import HfProvider
from swe_sandbox_hf.sandbox import HfSandbox
from swe_testing.sandbox.network import hello, serving

_HOST = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("HF_TOKEN"), reason="HF_TOKEN is not set: the real service is not asked"
    ),
    pytest.mark.skipif(
        _HOST in ("localhost", "::1") or _HOST.startswith("127."),
        reason="HF_ENDPOINT is on this machine: it is not the real service",
    ),
]

_ECHO = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = json.dumps(dict(self.headers)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"


async def test_sandbox_from_its_start_to_its_end() -> None:
    """Commands, any bytes, a kill, the relay, the list, and that nothing is left."""
    provider = HfProvider(HfConfig(internet=True))
    data = os.urandom(5_000_000)
    async with provider.open(SandboxSpec(image="python:3.12")) as sandbox:
        done = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=60)
        assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
        await sandbox.write(f"{HOME_DIR}/data", data)
        assert await sandbox.read(f"{HOME_DIR}/data") == data
        with pytest.raises(TimeoutError):
            await sandbox.exec(["sh", "-c", "setsid sleep 6789 & sleep 6789"], timeout=2)
        left = await sandbox.exec(
            ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [6]789'"]
        )
        assert left.text.strip() == "0"
        async with serving({"/": hello}) as endpoint, sandbox.reach(endpoint) as url:
            assert (await sandbox.exec(["python3", "-c", _FETCH, url], timeout=90)).text == "hello\n"
        await sandbox.kill_all()
        assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"
        assert sandbox.id in {entry.id for entry in await provider.list()}
    with anyio.fail_after(120):
        while sandbox.id in {entry.id for entry in await provider.list()}:  # noqa: ASYNC110 (the service tells nobody)
            await anyio.sleep(2)


async def test_listeners_inside_get_no_credential() -> None:
    """The relay's requests carry the account's token: the service's own server must keep it to itself."""
    provider = HfProvider(HfConfig(internet=True))
    async with provider.open(SandboxSpec(image="python:3.12")) as sandbox:
        assert isinstance(sandbox, HfSandbox)
        hub = sandbox._hub
        process = await sandbox.start(["python3", "-c", _ECHO])
        port = b""
        async for _, chunk in process.output():
            port += chunk
            if port.endswith(b"\n"):
                break
        url = hub.proxy_url_for(int(port), scheme=sandbox._client.scheme)
        async with httpx.AsyncClient() as http:
            reply = await http.get(url, headers=hub.proxy_headers, timeout=60)
        arrived = reply.raise_for_status().text
        for name, secret in hub.proxy_headers.items():
            assert secret.removeprefix("Bearer ") not in arrived, f"{name} reaches what listens inside"
