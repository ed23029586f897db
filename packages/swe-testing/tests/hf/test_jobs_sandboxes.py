"""Sandboxes of the local HF, by the real client: commands, files, processes, ports, pools."""

from __future__ import annotations

import os
import time

import httpx
import pytest

from swe_core.builtin.local.bwrap import find_bwrap, why_not

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.skipif(why_not(find_bwrap()) is not None, reason="no user namespaces here")


def until(condition: object, seconds: float = 120.0) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---------------------------------------------------------------- commands


def test_command_says_what_it_printed_and_how_it_ended(sandbox) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3", check=False)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    with pytest.raises(hub.errors.SandboxCommandError):
        sandbox.run("exit 3")


def test_argv_is_not_read_by_a_shell(sandbox) -> None:
    assert sandbox.run(["echo", "a b", "$HOME"]).stdout == "a b $HOME\n"


def test_environment_directory_and_input(sandbox) -> None:
    sandbox.run("mkdir -p /w")
    result = sandbox.run("cat; echo $A; pwd", env={"A": "one"}, cwd="/w", stdin="given\n")
    assert result.stdout == "given\none\n/w\n"


def test_environment_of_the_sandbox_has_its_secrets_and_not_its_token(threaded_hf) -> None:
    with hub.Sandbox.create(env={"A": "one"}, secrets={"B": "two"}) as sandbox:
        said = sandbox.run("env").stdout.splitlines()
    assert {"A=one", "B=two"} <= set(said)
    assert not [line for line in said if line.startswith(("SBX_", "HF_"))]


def test_missing_program_is_an_error_of_the_request(sandbox) -> None:
    with pytest.raises(hub.errors.SandboxError, match="failed to spawn"):
        sandbox.run(["/no/such/program"])


def test_time_out_kills_the_process_group(sandbox) -> None:
    result = sandbox.run("sleep 77 & sleep 77", timeout=0.3, check=False)
    assert result.timed_out
    assert not result.ok
    until(lambda: sandbox.run("pgrep -c sleep", check=False).stdout == "0\n")


def test_command_that_a_signal_ended_has_no_exit_code(sandbox) -> None:
    result = sandbox.run("kill -9 $$", check=False)
    assert (result.exit_code, result.signal) == (None, 9)


def test_output_is_text_and_so_not_exact(sandbox) -> None:
    assert sandbox.run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_output_comes_as_it_is_printed(sandbox) -> None:
    came: list[str] = []

    def on_stdout(piece: str) -> None:
        came.append(piece)
        sandbox.files.write("/tmp/go", b"")

    sandbox.run("echo first; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo second", on_stdout=on_stdout)
    assert came == ["first\n", "second\n"]


def test_kill_9_of_everybody_spares_the_server(sandbox) -> None:
    sandbox.run("sleep 60", background=True)
    sandbox.run("kill -9 -1", check=False)
    assert sandbox.run("echo alive").stdout == "alive\n"
    until(lambda: sandbox.run("pgrep -c sleep", check=False).stdout == "0\n")


def test_orphans_are_buried(sandbox) -> None:
    sandbox.run("(sleep 0.1 &)")
    until(lambda: "defunct" not in sandbox.run("ps -e -o comm=").stdout)


# ---------------------------------------------------------------- processes


def test_background_processes(sandbox) -> None:
    lasting = sandbox.run("sleep 60", background=True)
    short = sandbox.run("exit 5", background=True)
    until(lambda: not {p.id: p for p in sandbox.processes()}[short.id].running)
    seen = {process.id: process for process in sandbox.processes()}
    assert (seen[lasting.id].running, seen[lasting.id].exit_code) == (True, None)
    assert seen[short.id].exit_code == 5
    assert lasting.kill() is True
    assert lasting.kill() is False
    assert not {p.id: p for p in sandbox.processes()}[lasting.id].running


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_001])
def test_bytes_come_back_as_they_were(sandbox, tmp_path, size) -> None:
    data = os.urandom(size)
    sandbox.files.write("/data/sub/file.bin", data, mode="750")
    assert sandbox.files.read("/data/sub/file.bin") == data
    entry = sandbox.files.stat("/data/sub/file.bin")
    assert (entry.type, entry.size, entry.mode) == ("file", size, "750")
    sandbox.files.download("/data/sub/file.bin", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    sandbox.files.upload(tmp_path / "back", "/data/again")
    assert sandbox.run("cmp /data/again /data/sub/file.bin").ok


def test_rewritten_file_has_the_length_of_the_second(sandbox) -> None:
    sandbox.files.write("/f", b"x" * 4_000_000)
    sandbox.files.write("/f", b"y" * 3_000_000)
    assert sandbox.files.stat("/f").size == 3_000_000
    sandbox.files.write("/f", b"z")
    assert sandbox.files.read("/f") == b"z"


def test_directories(sandbox) -> None:
    sandbox.files.mkdir("/d/e")
    sandbox.run("cd /d && seq 1 700 | xargs touch && ln -s 1 link")
    names = [entry.name for entry in sandbox.files.list("/d")]
    assert len(names) == 702
    assert {"e": "dir", "link": "symlink"}.items() <= {
        entry.name: entry.type for entry in sandbox.files.list("/d")
    }.items()
    with pytest.raises(hub.errors.SandboxError):
        sandbox.files.delete("/d")
    sandbox.files.delete("/d", recursive=True)
    assert not sandbox.files.exists("/d")


def test_symbolic_links_are_not_followed(sandbox) -> None:
    sandbox.run("mkdir /real && echo secret >/real/f && ln -s /real /link && ln -s /real/f /file")
    for path in ("/link/f", "/file"):
        with pytest.raises(hub.errors.SandboxError):
            sandbox.files.read(path)
        with pytest.raises(hub.errors.SandboxError):
            sandbox.files.write(path, b"other")
    assert sandbox.files.read("/real/f") == b"secret\n"


def test_missing_path_is_a_404(sandbox) -> None:
    with pytest.raises(hub.errors.SandboxError) as caught:
        sandbox.files.read("/nope")
    assert caught.value.status_code == 404


# ---------------------------------------------------------------- ports

_SERVER = """
import http.server, json, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for n in range(0 if self.path == "/up" else 3):
            self.wfile.write(b"5\\r\\npart%d\\r\\n" % n)
            if n == 1 and self.path == "/break":
                return self.connection.close()
            time.sleep(0.3)
        self.wfile.write(b"0\\r\\n\\r\\n")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = {"path": self.path, "headers": dict(self.headers), "body": body.hex()}
        answer = json.dumps(told).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture
def served(sandbox) -> object:
    """A sandbox in which a server listens."""
    sandbox.files.write("/server.py", _SERVER)
    sandbox.run("python3 /server.py", background=True)
    url = sandbox.proxy_url_for(8000, "/up", scheme="http://")
    until(lambda: httpx.get(url, headers=sandbox.proxy_headers).status_code == 200)
    return sandbox


def test_port_is_reached_and_its_answer_streamed(served) -> None:
    url = served.proxy_url_for(8000, "/", scheme="http://")
    with httpx.stream("GET", url, headers=served.proxy_headers) as response:
        parts = list(response.iter_raw())
    assert b"".join(parts) == b"part0part1part2"
    assert len(parts) > 1


def test_request_reaches_the_port_as_it_was_but_for_the_credentials(served) -> None:
    url = served.proxy_url_for(8000, "/a%2Fb/../c?q=%20x&q=y", scheme="http://")
    response = httpx.post(url, headers={**served.proxy_headers, "X-Own": "kept"}, content=b"\x00body")
    told = response.json()
    assert response.status_code == 201
    assert told["path"].encode() == httpx.URL(url).raw_path.split(b"/proxy/8000", 1)[1]
    assert told["headers"]["X-Own"] == "kept"
    assert not {"Authorization", "X-Sandbox-Token"} & set(told["headers"])
    assert bytes.fromhex(told["body"]) == b"\x00body"


def test_answer_that_breaks_off_inside_breaks_off_outside(served) -> None:
    url = served.proxy_url_for(8000, "/break", scheme="http://")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url, headers=served.proxy_headers)


def test_port_where_nothing_listens_is_a_502(sandbox) -> None:
    url = sandbox.proxy_url_for(8001, scheme="http://")
    assert httpx.get(url, headers=sandbox.proxy_headers).status_code == 502


def test_port_is_closed_to_strangers(served, threaded_hf) -> None:
    url = served.proxy_url_for(8000, "/up", scheme="http://")
    both = served.proxy_headers
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={**both, "Authorization": "Bearer hf_other"}).status_code == 401
    assert httpx.get(url, headers={**both, "X-Sandbox-Token": "0" * 64}).status_code == 401
    assert httpx.get(url, headers=both).status_code == 200
    threaded_hf.accounts.revoke(threaded_hf.token)
    assert httpx.get(url, headers=both).status_code == 401


# ---------------------------------------------------------------- life


def test_connect_and_kill(threaded_hf) -> None:
    first = hub.Sandbox.create()
    first.run("echo kept >/kept")
    with hub.Sandbox.connect(first.id) as second:
        assert second.run("cat /kept").stdout == "kept\n"
    first.kill()
    assert hub.inspect_job(job_id=first.id).status.stage == "CANCELED"
    with pytest.raises(hub.errors.SandboxError, match="not running"):
        hub.Sandbox.connect(first.id)


def test_sandboxes_do_not_see_each_other_or_this_machine(threaded_hf, tmp_path) -> None:
    (tmp_path / "secret").write_text("here")
    with hub.Sandbox.create() as one, hub.Sandbox.create() as two:
        one.run("echo mine >/tmp/mine")
        assert not two.files.exists("/tmp/mine")
        assert not one.files.exists(str(tmp_path / "secret"))
        assert one.run(f"ls {threaded_hf.home}", check=False).exit_code != 0
        port = httpx.URL(threaded_hf.origin).port
        assert one.run(f"bash -c '</dev/tcp/127.0.0.1/{port}'", check=False).exit_code != 0


@pytest.mark.slow
def test_missing_image_ends_the_start(threaded_hf) -> None:
    with pytest.raises(hub.errors.SandboxError, match="no-such/image"):
        hub.Sandbox.create(image="no-such/image:1")
    assert threaded_hf.jobs.running() == []


# ---------------------------------------------------------------- pools


def test_pool_packs_sandboxes_on_hosts(threaded_hf) -> None:
    with hub.SandboxPool(sandboxes_per_host=2) as pool:
        one, two, three = (pool.create(env={"N": str(n)}) for n in range(3))
        assert len(threaded_hf.jobs.running()) == 2
        assert [box.run("echo $N").stdout for box in (one, two, three)] == ["0\n", "1\n", "2\n"]
        one.files.write("/note", b"mine")
        assert one.run("cat note").stdout == "mine"
        assert not two.files.exists("/note")
        assert one.run("echo $HOME; pwd").stdout.split() == [one.run("pwd").stdout.strip()] * 2
        one.kill()
        with pytest.raises(hub.errors.SandboxError):
            one.run("true")
        assert two.run("true").ok
    assert threaded_hf.jobs.running() == []


def test_pooled_sandbox_is_reached_by_a_unix_socket(threaded_hf) -> None:
    code = """
import http.server, os, socketserver
class Server(socketserver.UnixStreamServer): pass
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"by socket")
    def address_string(self): return ""
Server(os.environ["SBX_PROXY_DIR"] + "/8000.sock", Handler).serve_forever()
"""
    with hub.SandboxPool() as pool, pool.create() as sandbox:
        sandbox.run(["python3", "-c", code], background=True)
        url = sandbox.proxy_url_for(8000, scheme="http://")
        until(lambda: httpx.get(url, headers=sandbox.proxy_headers).status_code == 200)
        assert httpx.get(url, headers=sandbox.proxy_headers).text == "by socket"


def test_pooled_sandbox_has_a_token_of_its_own(threaded_hf) -> None:
    with hub.SandboxPool() as pool, pool.create() as one, pool.create() as two:
        path = two.proxy_url_for(1, scheme="http://").replace("/proxy/1/", "/processes")
        assert httpx.get(path, headers=two.proxy_headers).status_code == 200
        assert httpx.get(path, headers=one.proxy_headers).status_code == 401
