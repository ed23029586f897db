"""The whole program as its users run it: real Pi, real sandboxes, real tests, a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from swe_core.api.task import Task
from swe_testing.provider import Fault, ScriptedProvider, call_tool, say

from .conftest import TASK, Command, Done, SweCore, fix, leftovers, wait_for, wait_for_the_end

PROGRAM = str(Path(sys.executable).with_name("swe-core"))
PLUGIN = str(Path(__file__).with_name("misbehaving_agents.py"))
CHANGE = "printf '\\n# a change\\n' >> $(git ls-files '*.py' | head -1)"
KEY = "sk-a-key-that-must-not-leave-the-host"


async def in_thread(swe_core: SweCore, *args: str, **more: object) -> Done:
    """Run the program while this loop serves its provider."""
    return await anyio.to_thread.run_sync(partial(swe_core, *args, **more))


@pytest.mark.pi
def test_pi_fixes_the_demo_tasks_from_recorded_replies(swe_core: SweCore, sandbox: str) -> None:
    """The same recorded replies give the same verdicts in both sandboxes, with network=llm."""
    done = swe_core("--plugins", f"pi,{sandbox}", "--tasks", "demo", "--engine", "replay")
    assert done.code == 0, done.stderr
    outcomes = {rollout["task_id"]: rollout["outcome"] for rollout in done.rollouts}
    assert len(outcomes) >= 5
    assert outcomes.pop("demo__logweave-1") == "unresolved"  # the recorded replies fix one file of two
    assert set(outcomes.values()) == {"resolved"}
    assert "hand-written" in done.stdout.lower()  # wherever the replies are shown, it says what they are
    for rollout in done.rollouts:
        assert rollout["turns"] >= 3
        folder = done.out / "rollouts" / rollout["id"]
        turns = [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
        assert len(turns) == rollout["turns"]
        kinds = {json.loads(line)["kind"] for line in (folder / "transcript.jsonl").read_text().splitlines()}
        assert {"tool_call", "tool_result", "text"} <= kinds
        assert (folder / "patch.diff").stat().st_size == rollout["patch_bytes"] > 0


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_core_alone_runs_without_arguments(swe_core: SweCore) -> None:
    done = swe_core()
    assert done.code == 0, done.stderr
    assert sum(rollout["outcome"] == "resolved" for rollout in done.rollouts) >= 3
    assert {rollout["agent"] for rollout in done.rollouts} == {"mini"}


def test_gold_patches_resolve_and_no_patch_does_not(swe_core: SweCore, sandbox: str) -> None:
    gold = swe_core("--agent", "oracle", "--sandbox", sandbox)
    assert [rollout["reward"] for rollout in gold.rollouts] == [1.0] * len(gold.rollouts)
    nothing = swe_core("--agent", "nop", "--sandbox", sandbox, "--task", TASK)
    assert nothing.only["reward"] == 0.0
    assert "empty" in nothing.only["grade"]["reason"]


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_many_attempts_report_and_json(swe_core: SweCore, command: Command) -> None:
    done = swe_core("--task", TASK, "--attempts", "3", "--concurrency", "2", "--json")
    summary = json.loads(done.stdout)
    assert summary["planned"] == summary["finished"] == summary["resolved"] == 3
    assert sorted(rollout["attempt"] for rollout in summary["rollouts"]) == [0, 1, 2]
    table = command("report", str(done.out)).stdout
    assert f"{TASK}-2" in table
    assert "resolved 3 of 3" in table
    assert json.loads(command("report", str(done.out), "--json").stdout) == summary


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
async def test_provider_answers_and_its_key_stays_on_the_host(swe_core: SweCore, tmp_path: Path) -> None:
    """Recorded on the way: the recording then gives the same verdict without the provider."""
    replies = [call_tool("bash", {"command": f"{CHANGE}; env"}), say("done")]
    recording = tmp_path / "replies.jsonl"
    async with ScriptedProvider(replies, key=KEY) as provider:
        done = await in_thread(
            swe_core, "--task", TASK, "--engine-url", provider.url, "--model", "scripted",
            "--record", str(recording), env={"OPENAI_API_KEY": KEY},
        )  # fmt: skip
    assert done.only["outcome"] == "unresolved", done.stderr
    assert done.only["turns"] == 2
    assert done.only["usage"] == {"prompt_tokens": 20, "completion_tokens": 6}
    assert {seen.body["model"] for seen in provider.requests} == {"scripted"}
    everything = b"".join(path.read_bytes() for path in done.out.rglob("*") if path.is_file())
    assert KEY.encode() not in everything + recording.read_bytes() + done.stderr.encode()

    again = swe_core("--task", TASK, "--recording", str(recording))
    patch = Path("rollouts", f"{TASK}-0", "patch.diff")
    assert (again.out / patch).read_bytes() == (done.out / patch).read_bytes()
    assert again.only["turns"] == 2


@pytest.mark.pi
@pytest.mark.docker
async def test_pi_in_containers_on_a_file_of_rows_with_a_provider(
    swe_core: SweCore, docker_image: str, tmp_path: Path, task: Task
) -> None:
    """The command of the README's first screen: rows in SWE-Gym's columns, an endpoint, a model."""
    row = {
        "instance_id": "acme__memofn-7", "repo": task.repo, "base_commit": task.base_commit,
        "problem_statement": task.problem_statement, "patch": task.patch, "test_patch": task.test_patch,
        "FAIL_TO_PASS": list(task.fail_to_pass), "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "image_name": docker_image, "repository": str(task.repository), "test_command": task.test_command,
    }  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    # The policy here is a script: it applies the gold patch with Pi's bash tool, then submits.
    replies = [call_tool("bash", {"command": fix(task)}), call_tool("answer", {"text": "fixed"}, "call_2")]
    async with ScriptedProvider(replies, key=KEY, models=["acme-1"]) as provider:
        done = await in_thread(
            swe_core, "--plugins", "pi,docker", "--tasks", str(rows), "--engine", "openai",
            "--engine-url", provider.url, "--model", "acme-1", env={"OPENAI_API_KEY": KEY},
        )  # fmt: skip
    assert done.code == 0, done.stderr
    assert (done.only["outcome"], done.only["turns"]) == ("resolved", 2)
    assert done.only["model"] == "acme-1"
    assert len(provider.requests) == 2


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.parametrize(
    ("fault", "says"),
    [("401", "401"), pytest.param("hang", "sent nothing for 2 s", marks=pytest.mark.slow)],
)
async def test_provider_that_fails_is_an_engine_error(swe_core: SweCore, fault: Fault, says: str) -> None:
    replies = [call_tool("bash", {"command": "ls"})]
    async with ScriptedProvider(replies, faults=["ok"], then=fault) as provider:
        done = await in_thread(
            swe_core, "--task", TASK, "--engine-url", provider.url, "--model", "scripted",
            "--set", "engine.openai.max_retries=1", "--set", "engine.openai.timeout=2",
        )  # fmt: skip
    failure = done.only["failure"]
    assert done.code == 1
    assert (done.only["outcome"], failure["boundary"], done.only["reward"]) == ("error", "engine", None)
    assert says in failure["message"], failure["message"]
    assert "\n" not in failure["message"]


async def test_unusable_provider_is_reported_before_anything_is_opened(swe_core: SweCore) -> None:
    async with ScriptedProvider(models_fault="401") as provider:
        done = await in_thread(swe_core, "--task", TASK, "--engine-url", provider.url, "--model", "scripted")
    assert done.code == 1
    assert "401" in done.stderr
    assert not done.out.exists()


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
async def test_black_box_mode_hands_over_the_chosen_key_and_says_so(swe_core: SweCore) -> None:
    async with ScriptedProvider([call_tool("bash", {"command": CHANGE}), say("done")], key=KEY) as provider:
        done = await in_thread(
            swe_core, "--task", TASK, "--mode", "black-box", "--network", "full",
            "--engine-url", provider.url, "--model", "scripted",
            "--agent-key-env", "HANDED_OVER", env={"HANDED_OVER": KEY},
        )  # fmt: skip
    assert len(provider.requests) == 2
    assert done.only["outcome"] == "unresolved", done.stderr
    assert "Black-box mode" in " ".join(done.stderr.split())
    assert KEY.encode() not in b"".join(path.read_bytes() for path in done.out.rglob("*") if path.is_file())


@pytest.fixture
def listener() -> Iterator[int]:
    """A host server on every address that counts who comes; its port."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("sandbox", "network"),
    [("local", "llm"), ("local", "full"), pytest.param("docker", "llm", marks=pytest.mark.docker)],
    indirect=["sandbox"],
)
@pytest.mark.slow
def test_agent_reaches_its_endpoint(swe_core: SweCore, sandbox: str, network: str, listener: int) -> None:
    """With network=llm every other address fails; with full the same probe succeeds, so it can."""
    done = swe_core(
        "-p", PLUGIN, "--agent", "probe", "--sandbox", sandbox, "--task", TASK, "--network", network,
        env={"SWE_TEST_PROBE": f"127.0.0.1:{listener},{host_address()}:{listener},192.0.2.1:80"},
    )  # fmt: skip
    log = (done.out / "rollouts" / f"{TASK}-0" / "agent.log").read_text()
    report = json.loads(log.splitlines()[0])
    assert report.pop("endpoint") == 200, log
    assert report[f"127.0.0.1:{listener}"] is (network == "full")
    if network == "llm":
        assert list(report.values()) == [False] * len(report)


def host_address() -> str:
    """An address of this host on its default interface, or loopback's where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation range (RFC 5737); UDP connect sends nothing
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_run_continues_without_a_reader_of_its_output(tmp_path: Path) -> None:
    """`swe-core run … 2>&1 | head -1` ends the reader, not the run."""
    command = f"{PROGRAM} run --agent nop --task {TASK} --out {tmp_path / 'run'} 2>&1 | head -1"
    subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True)
    finished = tmp_path / "run" / "rollouts.jsonl"
    # head is gone, and sh with it; the run is not
    wait_for(lambda: finished.exists() and finished.read_text().endswith("\n"))
    (line,) = finished.read_text().splitlines()
    assert json.loads(line)["outcome"] == "unresolved"


@pytest.mark.usefixtures("local_sandbox")
def test_token_that_the_agent_prints_is_nowhere_in_the_records(swe_core: SweCore) -> None:
    done = swe_core("-p", PLUGIN, "--agent", "leaky", "--task", TASK)
    assert done.only["failure"]["message"].endswith("token=[redacted]")
    for path in done.out.rglob("*"):
        if path.is_file():
            assert b"token=" not in path.read_bytes().replace(b"token=[redacted]", b""), path
    assert "token=[redacted]" in (done.out / "rollouts" / done.only["id"] / "agent.log").read_text()


@contextmanager
def started(*command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process that was started as a shell does; after the block it is gone."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env={**os.environ, **env}) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_records_what_ran_and_leaves_nothing(tmp_path: Path, scratch: Path, sandbox: str) -> None:
    out = tmp_path / "run"
    args = ("-p", PLUGIN, "--agent", "hang", "--sandbox", sandbox, "--concurrency", "2", "--out", str(out))
    with started(PROGRAM, "run", *args, TMPDIR=str(scratch)) as process:
        wait_for(lambda: len(list(out.glob("rollouts/*/agent.log"))) >= 2, alive=process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert [rollout["outcome"] for rollout in Done(130, stdout, stderr, out).rollouts] == ["cancelled"] * 2
    assert "interrupted, 0 of 6 finished: resolved 0 of 0, cancelled 2, not started 4\n" in stdout
    assert f"  the rest:      swe-core run --resume {out}\n" in stdout
    wait_for_the_end(scratch)
    assert leftovers(scratch, process.pid) == []


@pytest.mark.slow
def test_under_nohup_a_run_outlives_its_terminal(tmp_path: Path, sandbox: str) -> None:
    out = tmp_path / "run"
    args = ("--agent", "nop", "--sandbox", sandbox, "--concurrency", "1", "--out", str(out))
    with started("nohup", PROGRAM, "run", *args) as process:
        wait_for(lambda: len(list(out.glob("rollouts/*"))) >= 2, alive=process)
        process.send_signal(signal.SIGHUP)
        stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 0, stderr
    assert {rollout["outcome"] for rollout in Done(0, stdout, stderr, out).rollouts} == {"unresolved"}
    assert "resolved 0 of 6" in stdout
