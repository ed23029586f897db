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

from .helpers import Typist, by_hand, root, talk, who


class Range(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str
    lines: int = 10


async def _read(wanted: Range) -> str:
    if wanted.path == "secret":
        raise OSError("/etc/host/secret cannot be read")
    return f"{wanted.lines} lines of {wanted.path}"


READ = HostTool("read_docs", "Reads the documentation.", Range, _read)


async def test_host_tool_is_listed_and_called_with_right_arguments(server: InterceptionServer) -> None:
    async with talk(server, Typist()) as said:
        said.gate.tools.offer([READ])
        (listed,) = (await said.http.get("/tools")).json()["tools"]
        reply = await said.http.post("/tools/read_docs", json={"path": "a.md"})
        assert (listed["name"], listed["description"]) == ("read_docs", "Reads the documentation.")
        assert listed["parameters"]["required"] == ["path"]
        assert reply.json() == {"content": "10 lines of a.md"}
        for content, sentence in (
            (b"{}", "the arguments of the tool 'read_docs' are wrong: 'path': Field required"),
            (b'{"path": "a", "lines": "2"}', "'lines': Input should be a valid integer"),
            (b'{"path": "a", "reward": 1}', "'reward': Extra inputs are not permitted"),
            (b"", "Invalid JSON"),
        ):
            reply = await said.http.post("/tools/read_docs", content=content)
            assert reply.status_code == 400
            assert sentence in reply.json()["error"]["message"]
    assert said.gate.turns == 0


async def test_only_registered_tools_exist(server: InterceptionServer) -> None:
    """Tools of another rollout do not exist either."""
    async with (
        server.session(Typist(), who("other"), lambda _: None) as other,
        talk(server, Typist()) as said,
    ):
        other.tools.offer([READ])
        for verb in ("reset", "step", "grade", "state", "close", "read_docs"):
            for url in (f"/tools/{verb}", f"{root(server, said.gate)}/{verb}"):
                assert (await said.http.post(url, json={})).status_code == 404


async def test_tool_error_tells_nothing(server: InterceptionServer, caplog: pytest.LogCaptureFixture) -> None:
    async with talk(server, Typist()) as said:
        said.gate.tools.offer([READ])
        reply = await said.http.post("/tools/read_docs", json={"path": "secret"})
        assert said.gate.failure is None
        assert (await said.ask()).status_code == 200
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
    async with talk(server, engine) as said:
        assert not said.gate.submitted
        reply = await said.http.post(server.url + said.gate.exit_path)
        with anyio.fail_after(120):
            await said.gate.ending()
        assert (await said.ask()).status_code == 410
    assert (reply.status_code, reply.json()) == (200, {"ok": True})
    assert said.gate.ended_by is None
    assert engine.asked == []


async def test_every_route_requires_its_token(server: InterceptionServer) -> None:
    """Those of a rollout want its own, the metrics that of the server."""
    async with talk(server, Typist()) as said:
        for path, wrong in (
            ("/v1/tools", server.token),
            ("/v1/tools/read_docs", server.token),
            ("/exit", server.token),
            ("/metrics", said.gate.token),
        ):
            url = f"{server.url if path == '/metrics' else root(server, said.gate)}{path}"
            method = "GET" if path in ("/v1/tools", "/metrics") else "POST"
            for token in ("wrong", wrong, "x" * 43):
                reply = await said.http.request(method, url, headers={"Authorization": f"Bearer {token}"})
                assert reply.status_code == 401
                assert "swe_" not in reply.text
        assert not said.gate.submitted


async def test_metrics_count_requests_and_tokens(server: InterceptionServer) -> None:
    async with talk(server, Typist()) as said:
        for retries in ("0", "1"):
            said.http.headers["x-stainless-retry-count"] = retries
            await said.ask()
        await said.http.post("/chat/completions", content=b"{")
        headers = {"Authorization": f"Bearer {server.token}"}
        reply = await said.http.get(f"{server.url}/metrics", headers=headers)
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    route = "/rollout/{key}/v1/chat/completions"
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
