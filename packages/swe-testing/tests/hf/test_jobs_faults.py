"""Each switch of the local HF, as the real client meets it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_testing.hf import Faults, LocalHF

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.skipif(why_not(find_bwrap()) is not None, reason="no user namespaces here")


def url(sandbox, path: str) -> str:
    """The URL of a route of a sandbox's server."""
    return sandbox.proxy_url_for(1, scheme="http://").replace("/proxy/1/", path)


def get(sandbox) -> httpx.Response:
    """What a server on port 8000 of a sandbox answers."""
    return httpx.get(sandbox.proxy_url_for(8000, scheme="http://"), headers=sandbox.proxy_headers)


def stage(sandbox) -> str:
    """The stage of a sandbox's job."""
    return str(hub.inspect_job(job_id=sandbox.id).status.stage)


def until_ended(sandbox) -> str:
    """The stage of a sandbox's job once it has ended."""
    deadline = time.monotonic() + 120
    while stage(sandbox) == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return stage(sandbox)


# ---------------------------------------------------------------- what is decided


@given(st.integers(), st.floats(0, 1), st.lists(st.sampled_from(["jobs.create", "server.exec"]), max_size=30))
def test_same_seed_meets_the_same_faults(seed: int, share: float, routes: list[str]) -> None:
    one, two = (Faults(seed=seed, failing=share, lost=share, dropping=share) for _ in range(2))
    for route in routes:
        for name in ("status", "loses", "drop"):
            assert getattr(one, name)(route) == getattr(two, name)(route)


@given(st.integers(), st.lists(st.sampled_from(["jobs.create", "server.exec", "whoami"]), max_size=20))
def test_other_routes_are_spared(seed: int, routes: list[str]) -> None:
    faults = Faults(seed=seed, failing=1.0, lost=1.0, dropping=1.0, routes=("server.",))
    for route in routes:
        meant = route == "server.exec"
        assert (faults.status(route) is not None) == meant
        assert faults.loses(route) == meant
        assert (faults.drop(route) is not None) == meant


@given(st.lists(st.sampled_from([0, 429, 503]), max_size=10))
def test_plan_is_kept_in_order(statuses: list[int]) -> None:
    faults = Faults()
    faults.plan("jobs.create", *statuses)
    assert faults.status("jobs.inspect") is None
    assert [faults.status("jobs.create") or 0 for _ in statuses] == statuses
    assert faults.status("jobs.create") is None


# ---------------------------------------------------------------- requests

_EMPTY = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204); self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_failing_request_is_not_carried_out(threaded_hf: LocalHF, status: int) -> None:
    threaded_hf.faults.plan("jobs.create", status)
    with pytest.raises(hub.errors.HfHubHTTPError) as caught:
        hub.run_job(image="python:3.12", command=["true"])
    assert caught.value.response.status_code == status
    assert not threaded_hf.jobs.jobs
    hub.run_job(image="python:3.12", command=["true"])
    assert threaded_hf.calls["jobs.create"] == 2


def test_share_of_requests_fails(sandbox, threaded_hf: LocalHF) -> None:
    threaded_hf.faults.failing, threaded_hf.faults.routes = 0.5, ("server.files",)
    found = []
    for _ in range(40):
        try:
            found.append(sandbox.files.exists("/tmp"))
        except hub.errors.SandboxError as error:
            found.append(error.status_code)
    assert set(found) > {True}
    assert set(found) <= {True, 429, 500, 502, 503}


def test_answer_that_is_lost_was_carried_out(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.lost, threaded_hf.faults.routes = 1.0, ("jobs.create",)
    with pytest.raises(httpx.TransportError):
        hub.run_job(image="python:3.12", command=["true"])
    assert len(threaded_hf.jobs.jobs) == 1


def test_latency_is_met_each_way(sandbox, threaded_hf: LocalHF) -> None:
    threaded_hf.faults.latency = 0.2
    began = time.monotonic()
    assert sandbox.files.exists("/tmp")
    assert time.monotonic() - began >= 0.4
    sandbox.run(["python3", "-c", _EMPTY], background=True)
    while (response := get(sandbox)).status_code != 204:  # it has no body that could come late
        pass
    assert response.elapsed.total_seconds() >= 0.4


@pytest.mark.slow
def test_pieces_of_a_stream_travel_at_the_same_time(sandbox, threaded_hf: LocalHF) -> None:
    threaded_hf.faults.latency = 0.6
    began = time.monotonic()
    came: list[str] = []
    sandbox.run("for n in $(seq 30); do echo $n; sleep 0.1; done", on_stdout=came.append)
    taken = time.monotonic() - began
    assert len(came) > 10
    assert 1.2 <= taken < 0.6 * len(came)


# ---------------------------------------------------------------- streams


def test_dropped_stream_does_not_end_a_command(sandbox, threaded_hf: LocalHF) -> None:
    threaded_hf.faults.dropping, threaded_hf.faults.drop_after = 1.0, 200
    came: list[str] = []
    with pytest.raises((httpx.TransportError, hub.errors.SandboxError)):
        sandbox.run("seq 1000; sleep 60", on_stdout=came.append)
    with httpx.stream(
        "POST", url(sandbox, "/exec"), headers=sandbox.proxy_headers, json={"cmd": "seq 1000; sleep 60"}
    ) as response:
        got: list[bytes] = []
        with pytest.raises(httpx.RemoteProtocolError):
            got.extend(response.iter_raw())
    assert len(b"".join(got)) == 200
    threaded_hf.faults.dropping = 0.0
    deadline = time.monotonic() + 120
    while sandbox.run("pgrep -c sleep", check=False).stdout != "2\n":  # the commands themselves go on
        assert time.monotonic() < deadline


def test_bad_gateway_in_mid_stream(sandbox, threaded_hf: LocalHF) -> None:
    code = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"x" * 1000)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
    sandbox.run(["python3", "-c", code], background=True)

    while get(sandbox).status_code != 200:
        time.sleep(0.02)
    faults = threaded_hf.faults
    faults.dropping, faults.drop_after, faults.bad_gateways = 1.0, 100, 2
    with pytest.raises(httpx.RemoteProtocolError):
        get(sandbox)
    faults.dropping = 0.0
    assert [get(sandbox).status_code for _ in range(3)] == [502, 502, 200]


def test_proxy_that_buffers_gives_all_at_once(sandbox, threaded_hf: LocalHF) -> None:
    command = {"cmd": "echo one; sleep 0.5; echo two"}

    def pieces() -> list[bytes]:
        with httpx.stream(
            "POST", url(sandbox, "/exec"), headers=sandbox.proxy_headers, json=command
        ) as response:
            return list(response.iter_raw())

    assert len(pieces()) > 1
    threaded_hf.faults.buffering = True
    (piece,) = pieces()
    assert piece.count(b"\n") == 4  # start, one, two, exit


# ---------------------------------------------------------------- lives


def test_sandbox_whose_server_never_answers(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.never_ready = True
    with pytest.raises(hub.errors.SandboxError, match="did not become ready"):
        hub.Sandbox.create(start_timeout=0.5)
    assert threaded_hf.jobs.running() == []


def test_start_that_meets_faults_and_comes_late(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.start_delay = 0.3
    threaded_hf.faults.plan("server.health", 502, 503, 500)
    with hub.Sandbox.create(start_timeout=60) as sandbox:
        assert sandbox.run("echo ready").stdout == "ready\n"
    assert threaded_hf.calls["server.health"] >= 4


def test_waiting_for_a_command_is_no_activity(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.idle_timeout = 1.0
    with hub.Sandbox.create(start_timeout=60) as sandbox:
        with pytest.raises((httpx.TransportError, hub.errors.SandboxError)):
            sandbox.run("sleep 60")
        assert until_ended(sandbox) == "COMPLETED"
        assert list(hub.fetch_job_logs(job_id=sandbox.id)) == ["sbx: idle timeout"]


@pytest.mark.slow
def test_requests_and_background_processes_are_activity(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.idle_timeout = 3.0
    with hub.Sandbox.create(start_timeout=60) as sandbox:
        process = sandbox.run("sleep 600", background=True)
        time.sleep(5.0)
        assert stage(sandbox) == "RUNNING"
        process.kill()
        assert until_ended(sandbox) == "COMPLETED"


@pytest.mark.slow
def test_idle_sandbox_of_a_pool_is_evicted_and_its_host_is_not(threaded_hf: LocalHF) -> None:
    with hub.SandboxPool() as pool:
        idle, busy = pool.create(idle_timeout=3), pool.create(idle_timeout=3)
        busy.run("sleep 600", background=True)
        time.sleep(6.0)
        assert busy.run("echo here").stdout == "here\n"
        with pytest.raises(hub.errors.SandboxError) as caught:
            idle.run("true")
        assert caught.value.status_code == 401  # its token is nobody's any more


def test_job_dies_at_a_moment_and_the_next_does_not(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.deaths = [0.3]
    first, second = (hub.run_job(image="python:3.12", command=["sleep", n]).id for n in ("60", "1"))
    for id in (first, second):
        assert list(hub.fetch_job_logs(job_id=id, follow=True)) == []
    told = hub.inspect_job(job_id=first).status
    assert (told.stage, told.message) == ("ERROR", "Job failed with exit code: 137. Reason: Error.")
    assert hub.inspect_job(job_id=second).status.stage == "COMPLETED"


def test_sandbox_dies_on_request(sandbox, threaded_hf: LocalHF, hf_portal) -> None:
    with hub.Sandbox.create(start_timeout=60) as other:
        hf_portal.call(threaded_hf.jobs.kill, other.id, "Node lost")
        with pytest.raises((httpx.TransportError, hub.errors.SandboxError)):
            other.run("true")
        told = hub.inspect_job(job_id=other.id).status
        assert (told.stage, told.message) == ("ERROR", "Node lost")
    assert sandbox.run("echo alive").stdout == "alive\n"


def test_command_sees_the_death_of_its_sandbox(sandbox, threaded_hf: LocalHF, hf_portal) -> None:
    def die(_: str) -> None:
        hf_portal.call(threaded_hf.jobs.kill, sandbox.id)

    with pytest.raises((httpx.TransportError, hub.errors.SandboxError)):
        sandbox.run("echo ready; sleep 60", on_stdout=die)
    assert stage(sandbox) == "ERROR"


def test_clock_that_is_off(threaded_hf: LocalHF) -> None:
    """What the service dates, and its `Date` header."""
    threaded_hf.faults.skew = -7 * 3600
    with hub.Sandbox.create(start_timeout=60) as sandbox:
        created = hub.inspect_job(job_id=sandbox.id).created_at
        answered = parsedate_to_datetime(httpx.get(url(sandbox, "/health")).headers["Date"])
    for dated in (created, answered):
        assert timedelta(hours=-7) <= dated - datetime.now(UTC) + timedelta(minutes=5) < timedelta(hours=-6)
