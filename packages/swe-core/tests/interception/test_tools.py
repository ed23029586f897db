"""Host tools, the exit route and the metrics: what a sandbox reaches of the host."""

from __future__ import annotations

import math
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict

from swe_core.api.agent import HostTool
from swe_core.errors import AgentError, ConfigError
from swe_core.interception.host_tools import Tools
from swe_core.interception.server import InterceptionServer

from .helpers import HELLO, Typist, by_hand, who

pytestmark = pytest.mark.anyio


class Range(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str
    lines: int = 10


async def _read(wanted: Range) -> str:
    if wanted.path == "secret":
        raise OSError("/etc/host/secret cannot be read")
    return f"{wanted.lines} lines of {wanted.path}"


READ = HostTool("read_docs", "Reads the documentation.", Range, _read)


async def test_host_tool_is_listed_and_called(server: InterceptionServer) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, by_hand(server, gate) as http:
        gate.tools.offer([READ])
        (listed,) = (await http.get("/tools")).json()["tools"]
        reply = await http.post("/tools/read_docs", json={"path": "a.md"})
    assert (listed["name"], listed["description"]) == ("read_docs", "Reads the documentation.")
    assert listed["parameters"]["required"] == ["path"]
    assert reply.json() == {"content": "10 lines of a.md"}
    assert gate.turns == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{}", "the arguments of the tool 'read_docs' are wrong: 'path': Field required"),
        (b'{"path": "a", "lines": "many"}', "'lines': Input should be a valid integer"),
        (b'{"path": "a", "lines": "2"}', "'lines': Input should be a valid integer"),
        (b'{"path": "a", "lines": true}', "'lines': Input should be a valid integer"),
        (b'{"path": "a", "reward": 1}', "'reward': Extra inputs are not permitted"),
        (b"[", "Invalid JSON"),
        (b"", "Invalid JSON"),
    ],
)
async def test_invalid_tool_arguments_are_named(
    server: InterceptionServer, content: bytes, sentence: str
) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, by_hand(server, gate) as http:
        gate.tools.offer([READ])
        reply = await http.post("/tools/read_docs", content=content)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]


@pytest.mark.parametrize("verb", ["reset", "step", "grade", "state", "close", "read_docs"])
async def test_only_registered_tools_exist(server: InterceptionServer, verb: str) -> None:
    """Tools of another rollout do not exist either."""
    async with (
        server.session(Typist(), who("other"), lambda _: None) as other,
        server.session(Typist(), who(), lambda _: None) as gate,
        by_hand(server, gate) as http,
    ):
        other.tools.offer([READ])
        reply = await http.post(f"/tools/{verb}", json={})
        outside = await http.post(server.url + gate.path.removesuffix("/v1") + f"/{verb}", json={})
    assert (reply.status_code, outside.status_code) == (404, 404)


async def test_tool_error_reveals_nothing_of_the_host(
    server: InterceptionServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, by_hand(server, gate) as http:
        gate.tools.offer([READ])
        reply = await http.post("/tools/read_docs", json={"path": "secret"})
        assert gate.failure is None
        assert (await http.post("/chat/completions", json={"messages": HELLO})).status_code == 200
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "the tool 'read_docs' failed"
    assert "/etc/host" not in reply.text
    assert "the host tool 'read_docs' failed" in caplog.text


async def test_leaving_a_session_cancels_its_tools(server: InterceptionServer) -> None:
    begun, ended, replies = anyio.Event(), anyio.Event(), list[httpx.Response]()

    async def wait(_: Range) -> str:
        begun.set()
        try:
            await anyio.sleep(math.inf)
        finally:
            ended.set()
        return ""

    async with anyio.create_task_group() as group:
        async with server.session(Typist(), who(), lambda _: None) as gate:
            gate.tools.offer([HostTool("wait", "", Range, wait)])

            async def call() -> None:
                async with by_hand(server, gate) as http:
                    replies.append(await http.post("/tools/wait", json={"path": ""}))

            group.start_soon(call)
            await begun.wait()
        assert ended.is_set()
    assert [reply.status_code for reply in replies] == [410]


@pytest.mark.parametrize(("names", "sentence"), [(["a", "a"], "two host tools 'a'"), (["a/b"], "unusable")])
def test_tool_names_are_unique_and_fit_a_path(names: list[str], sentence: str) -> None:
    with pytest.raises(AgentError, match=sentence):
        Tools().offer([HostTool(name, "", Range, _read) for name in names])


async def test_calls_after_exit_are_rejected(server: InterceptionServer) -> None:
    engine = Typist()
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        assert not gate.submitted
        reply = await http.post(server.url + gate.exit_path)
        with anyio.fail_after(120):
            await gate.ending()
        late = await http.post("/chat/completions", json={"messages": HELLO})
    assert (reply.status_code, reply.json()) == (200, {"ok": True})
    assert late.status_code == 410
    assert gate.ended_by is None
    assert engine.asked == []


@pytest.mark.parametrize("path", ["/v1/tools", "/v1/tools/read_docs", "/exit"])
async def test_every_route_requires_the_token_of_the_rollout(server: InterceptionServer, path: str) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, httpx.AsyncClient() as http:
        for token in ("wrong", server.token, "x" * 43):
            reply = await http.request(
                "GET" if path == "/v1/tools" else "POST",
                server.url + gate.path.removesuffix("/v1") + path,
                headers={"Authorization": f"Bearer {token}"},
            )
            assert reply.status_code == 401
        assert not gate.submitted


async def test_metrics_require_the_token_of_the_server(server: InterceptionServer) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, httpx.AsyncClient() as http:
        for token in ("wrong", gate.token):
            reply = await http.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {token}"})
            assert reply.status_code == 401
            assert "swe_" not in reply.text


async def test_metrics_count_requests_and_tokens(server: InterceptionServer) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, by_hand(server, gate) as http:
        for retries in ("0", "1"):
            headers = {"x-stainless-retry-count": retries}
            await http.post("/chat/completions", json={"messages": HELLO}, headers=headers)
        await http.post("/chat/completions", content=b"{")
        reply = await http.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"})
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    route = "/rollout/{id}/v1/chat/completions"
    expected: dict[tuple[Any, ...], float] = {
        ("swe_requests_total", route, "200"): 2,
        ("swe_requests_total", route, "400"): 1,
        ("swe_turns_total", "completed"): 1,
        ("swe_replays_total",): 1,
        ("swe_tokens_total", "completion"): 6,
        ("swe_renders_total", "full"): 1,
        ("swe_rollouts_open",): 1,
        ("swe_calls_in_flight",): 0,
        ("swe_call_seconds_count",): 1,
    }
    assert {key: found[key] for key in expected} == expected


async def test_occupied_port_is_a_config_error(server: InterceptionServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen on port {port} .*set server.port"):
        async with InterceptionServer(port=port):
            pass
