"""The hf sandbox: what only it has, the real client against the local HF."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from huggingface_hub.errors import SandboxError as HubSandboxError

from swe_core.api.sandbox import HOME_DIR, Asset, Process, Sandbox, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxBroken, SandboxDied, SandboxError, SandboxTimeout
from swe_core.sandboxing.followed import sandbox as followed
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.labels import encoded
from swe_sandbox_hf.provider import HfProvider
from swe_sandbox_hf.sandbox import HfSandbox
from swe_testing.hf import LocalHF
from swe_testing.waiting import until

PATIENCE = 60.0


async def sh(sandbox: Sandbox, script: str, code: int = 0) -> str:
    """Run a script that must end with `code`; returns its stdout."""
    done = await sandbox.exec(["sh", "-c", script], timeout=PATIENCE)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
    return done.text


@pytest.fixture
async def sandbox(provider: HfProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with provider.open(spec) as opened:
        yield opened


def uses(sandbox: Sandbox, process: Process) -> list[Callable[[], Awaitable[object]]]:
    """All that asks the sandbox something."""
    write = partial(sandbox.write, "/tmp/x", bytes(10**6))
    return [partial(sandbox.exec, ["true"]), write, sandbox.kill_all, process.kill]


@pytest.mark.slow
async def test_command_is_one_call(local_hf: LocalHF, sandbox: HfSandbox) -> None:
    """Also with standard input, and with the files of those before it to be removed."""
    local_hf.calls.clear()
    await sh(sandbox, "sleep 0.5; echo 1")
    await sandbox.write(f"{HOME_DIR}/file", b"x" * 50_000)
    assert len(await sandbox.read(f"{HOME_DIR}/file")) == 50_000
    assert local_hf.calls == {"server.exec": 3}
    assert len((await sh(sandbox, "ls -d /var/tmp/swe-core-*/*")).split()) == 1


@pytest.mark.slow
async def test_pull_relay_survives_every_failure(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec, tmp_path: Path
) -> None:
    """Requests that fail, answers that are lost, streams that break off and proxies that answer 502 after it:
    every byte arrives once, and every command is run once."""
    data = os.urandom(3_000_000)
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "file").write_bytes(data)
    asset = Asset(name="mine", path=tmp_path / "asset", digest="1")
    local_hf.faults.failing = local_hf.faults.lost = 0.07
    local_hf.faults.dropping, local_hf.faults.drop_after = 0.3, 100_000
    local_hf.faults.bad_gateways = 2
    async with provider.open(spec.model_copy(update={"assets": (asset,)})) as sandbox:
        assert await sandbox.read("/opt/swe/mine/file") == data
        for number in range(15):
            await sh(sandbox, f"echo {number} >>log; cat log; exit {number}", code=number)
        assert (await sh(sandbox, "cat log")).split() == [str(number) for number in range(15)]
        await sandbox.write(f"{HOME_DIR}/copy", data)
        assert await sandbox.read(f"{HOME_DIR}/copy") == data
        with pytest.raises(SandboxTimeout):
            await sandbox.exec(["sh", "-c", "setsid sleep 6789 & sleep 6789"], timeout=1)
        assert "6789" not in await sh(sandbox, "cat /proc/[0-9]*/cmdline | grep -a '^sleep'; true")
        process = await sandbox.start(["sleep", "600"])
        await sandbox.kill_all()
        assert await process.wait() == 137
    assert local_hf.jobs.running() == []


async def test_sandbox_that_dies(local_hf: LocalHF, sandbox: HfSandbox) -> None:
    await sandbox._inside("echo strange noises >/proc/1/fd/1")
    process = await sandbox.start(["sleep", "600"])
    await local_hf.jobs.kill(sandbox.id, "Out of memory")
    words = "its job is ERROR (Out of memory); its log ends with: strange noises"
    with anyio.fail_after(PATIENCE):
        with pytest.raises(SandboxDied, match=re.escape(f"{sandbox.id!r} died: {words}")):
            await process.wait()
        for use in uses(sandbox, process):
            with pytest.raises(SandboxDied, match="Out of memory"):
                await use()


async def test_code_that_leaves_no_place_for_commands(sandbox: HfSandbox) -> None:
    await sh(sandbox, "true")  # a sandbox that never ran a command was broken by nobody
    with suppress(SandboxBroken):  # it removes its own files, too
        await sandbox.exec(["sh", "-c", 'rm -rf "$1" && : >"$1"', "sh", sandbox._base], cwd="/")
    with pytest.raises(SandboxBroken, match="cannot run a command"):
        await sandbox.exec(["true"])


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("Out of memory", SandboxBroken),
        ("Job failed with exit code: 137", SandboxBroken),
        ("Internal error", SandboxDied),
        ("The host is lost", SandboxDied),
    ],
)
async def test_job_that_ends_by_itself_was_ended_by_code_inside(
    local_hf: LocalHF, sandbox: HfSandbox, says: str, kind: type[SandboxDied]
) -> None:
    await local_hf.jobs.kill(sandbox.id, says)
    with anyio.fail_after(PATIENCE), pytest.raises(SandboxDied) as caught:
        await sandbox.check()
    assert type(caught.value) is kind


async def test_code_that_removes_the_files_of_its_command(sandbox: HfSandbox) -> None:
    with pytest.raises(SandboxBroken, match="it removed the files of its commands"):
        await sandbox.exec(["sh", "-c", "rm -rf /var/tmp/*; sleep 10"])
    await sh(sandbox, "true")


@pytest.mark.slow
async def test_shell_that_is_gone_or_is_none(sandbox: HfSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local HF's sandboxes have this machine's own, which nobody can remove."""

    def gone(*args: object, **kwargs: object) -> object:
        raise HubSandboxError("failed to spawn: No such file or directory", status_code=400)

    with monkeypatch.context() as patched:
        patched.setattr(sandbox._hub, "run", gone)
        for use in (lambda: sandbox.exec(["true"]), sandbox.kill_all):
            with pytest.raises(SandboxBroken, match=r"its shell \(sh\) no longer runs"):
                await use()
        patched.undo()
        patched.setattr(followed, "_SH", "/bin/true")
        with pytest.raises(SandboxBroken, match="exited with code 0 and no output"):
            await sandbox.exec(["true"])
    await sh(sandbox, "true")


_KILL_SHELLS = """
import os, signal, sys, time
os.setsid()
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
while True:
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline") as arguments, open(f"/proc/{entry}/comm") as name:
                # In this order: a child of a spared shell may become another program in between.
                said = arguments.read()  # nothing while a program starts
                if said and sys.argv[1] not in said and name.read().strip() in ("sh", "dash", "bash"):
                    os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue
"""


async def test_code_that_kills_every_shell(sandbox: HfSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code broke its sandbox: the job runs and its server answers. `kill_all` ends the code.

    The code spares shells that start or hold a command: one whose supervisor is killed ends with 137.
    """
    monkeypatch.setattr(followed, "ATTEMPTS", 2)
    await sandbox.start(["python3", "-c", _KILL_SHELLS, followed._SUPERVISE.splitlines()[0]])
    # Only now, for the shell that starts the code must finish first.
    await sandbox._ask(sandbox._hub.files.write, "/tmp/go", b"")
    with anyio.fail_after(PATIENCE), pytest.raises(SandboxBroken, match="was killed"):
        await sandbox.exec(["sleep", "30"])
    with anyio.fail_after(PATIENCE), suppress(SandboxBroken):  # whichever of the two is the faster one
        await sandbox.kill_all()
        await sh(sandbox, "true")


@pytest.mark.slow
async def test_to_kill_everything_is_tried_again(sandbox: HfSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shell that does it is killed itself; and a sandbox in which it always is, is broken."""
    monkeypatch.setattr(followed, "ATTEMPTS", 4)
    inside = sandbox._inside
    codes = [137, 137]

    async def killed(script: str, *argv: str) -> tuple[int, str, str]:
        return (codes.pop(), "", "") if codes else await inside(script, *argv)

    monkeypatch.setattr(sandbox, "_inside", killed)
    process = await sandbox.start(["sleep", "600"])
    await sandbox.kill_all()
    with anyio.fail_after(PATIENCE):
        assert await process.wait() == 137
    codes += [137] * 4
    with pytest.raises(SandboxBroken, match="command that kills everything inside was killed"):
        await sandbox.kill_all()
    assert codes == []


ENDLESS = "yes x | tr -d '\\n'"


@pytest.mark.parametrize("prints", ["yes no-base64", ENDLESS, f"{ENDLESS} >&2"])
@pytest.mark.slow
async def test_shell_that_says_something_else(
    sandbox: HfSandbox, monkeypatch: pytest.MonkeyPatch, prints: str
) -> None:
    """As a replaced `base64` does: the code's own deed, and this host keeps nothing of what never ends."""
    monkeypatch.setattr(followed, "ATTEMPTS", 2)
    with monkeypatch.context() as patched:
        for name in ("_LAUNCH", "_FOLLOW"):
            patched.setattr(followed, name, f"echo .s; echo .o 0; {prints}")
        patched.setattr(followed, "_KILL_ALL", prints)
        for use in (partial(sandbox.exec, ["true"]), sandbox.kill_all):
            with anyio.fail_after(PATIENCE), pytest.raises(SandboxBroken, match="broke the sandbox"):
                await use()


async def test_token_that_is_revoked_in_the_middle(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """One sentence for the user of the sandbox, and one in the log if it cannot be destroyed."""
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sleep", "600"])
        local_hf.accounts.revoke(local_hf.token)
        for use in uses(sandbox, process):
            with anyio.fail_after(PATIENCE), pytest.raises(SandboxError, match="does not accept the token"):
                await use()
        with suppress(SandboxError):
            await sandbox._ask(sandbox._hub.processes)  # as it is kept alive
    assert f"the sandbox {sandbox.id} is left for the next run to reap" in caplog.text


@pytest.mark.slow
async def test_connection_is_kept_alive(local_hf: LocalHF, spec: SandboxSpec) -> None:
    """While a command runs that is waited for, which is no activity to the service, and while none does."""
    local_hf.faults.idle_timeout = 1.0
    config = HfConfig.model_construct(**{**HfConfig(internet=True).model_dump(), "idle_timeout": 1.0})
    async with HfProvider(config).open(spec) as sandbox:
        assert await sh(sandbox, "sleep 2; echo here") == "here\n"
        await anyio.sleep(2)
        assert await sh(sandbox, "echo here") == "here\n"


async def test_job_is_made_as_asked(local_hf: LocalHF, spec: SandboxSpec) -> None:
    config = HfConfig(internet=True, flavor="cpu-upgrade", namespace="testers", idle_timeout=120)
    update = {"labels": {"task": "owner__name-1", "who": "a b/c", "hf-sandbox": "no"}, "env": {"A": "b"}}
    async with HfProvider(config).open(spec.model_copy(update=update)) as sandbox:
        assert await sh(sandbox, 'echo "$A $PWD $HOME"; touch "$HOME/x"') == "b /testbed /tmp/swe-home\n"
        (job,) = local_hf.jobs.running()
        assert (sandbox.id, sandbox.flavor, job.namespace) == (job.id, "cpu-upgrade", "testers")
        labels = job.spec["labels"]
        assert (labels["task"], labels["who"], labels["hf-sandbox"]) == ("owner__name-1", "a-b-c", "1")
        assert labels[LABEL] == encoded(current_owner())
        assert job.spec["environment"]["SBX_IDLE_TIMEOUT"] == "120"
        assert "HF_TOKEN" not in job.spec["secrets"]


async def test_tokens_and_secrets_are_where_no_code_looks(local_hf: LocalHF, sandbox: HfSandbox) -> None:
    """No token or secret of a command is in arguments, and no token in open settings of the job."""
    script = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; true"
    (job,) = local_hf.jobs.running()
    seen = await sandbox.exec(["sh", "-c", script], env={"SBX_TOKEN": "a-secret", "OTHER": "a-variable"})
    listed = (await anyio.run_process(["ps", "-eo", "args"])).stdout.decode()
    spec_of_job = json.dumps({key: value for key, value in job.spec.items() if key != "secrets"})
    for token in (job.spec["secrets"]["SBX_TOKEN"], local_hf.token):
        assert token.encode() not in seen.stdout + seen.stderr
        assert token not in listed
        assert token not in spec_of_job
    assert b"a-variable" in seen.stdout
    assert b"a-secret" not in seen.stdout, "the server's own variables are not the commands'"
    arguments = ["sh", "-c", "cat /proc/[0-9]*/cmdline; true"]
    done = await sandbox.exec(arguments, env={"KEY": "a-secret-key"}, stdin=b"a-secret-word")
    assert (done.exit_code, b"a-secret" in done.stdout) == (0, False)


@pytest.mark.slow
async def test_standard_input_is_in_no_file(sandbox: HfSandbox) -> None:
    """Once a command has started: whether it came with the request, or in parts before it."""
    script = "grep -rlaE '[a]-secret-word' /var/tmp /tmp; wc -c"
    for size in (0, 3_000_000):
        done = await sandbox.exec(["sh", "-c", script], stdin=b"a-secret-word" + bytes(size))
        assert done.text == f"{size + 13}\n"


async def test_secret_of_the_relay_is_in_no_file(
    sandbox: HfSandbox, local_hf: LocalHF, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is it in an argument or the environment of anything, nor in a file that is only open."""
    start, given = sandbox.start, []

    async def heard(*args: Any, **kwargs: Any) -> Process:
        given.append(kwargs.get("stdin") or b"")
        return await start(*args, **kwargs)

    monkeypatch.setattr(sandbox, "start", heard)
    async with sandbox.reach(local_hf.origin):
        secrets = {word for text in given for word in re.findall(rb"[0-9a-f]{32,}", text)}
        assert secrets
        files = 'for fd in /proc/[0-9]*/fd/*; do [ -f "$fd" ] && cat "$fd"; done'
        others = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /var/tmp/*/*/* /tmp/*"
        seen = await sandbox.exec(["sh", "-c", f"{files}; {others}; true"])
        assert seen.stdout
        assert not [secret for secret in secrets if secret in seen.stdout]


@pytest.mark.slow
async def test_failed_call_tells_no_token(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="swe_sandbox_hf")
    local_hf.faults.plan("whoami", 500, 429, 502)
    async with provider.open(spec) as sandbox:
        await sh(sandbox, "true")
    assert caplog.text
    assert local_hf.token not in caplog.text


async def test_giving_up_while_it_opens_leaves_nothing(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec
) -> None:
    """At once, and not when its time to start is over."""
    local_hf.faults.start_delay = 600.0

    async def use() -> None:
        async with provider.open(spec):
            await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await until(local_hf.jobs.running)
            tasks.cancel_scope.cancel()
    assert local_hf.jobs.running() == []


@pytest.mark.slow
async def test_concurrency_limit_holds(local_hf: LocalHF, spec: SandboxSpec) -> None:
    provider = HfProvider(HfConfig(internet=True, max_concurrent=2))
    most, two = 0, anyio.Event()

    async def use() -> None:
        nonlocal most
        async with provider.open(spec):
            most = max(most, len(local_hf.jobs.running()))
            if most == 2:
                two.set()
            await two.wait()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(use)
    assert most == 2


_KILLED = """
import anyio
from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.provider import HfProvider
from swe_sandbox_hf.sandbox import HfSandbox

async def main():
    async with HfProvider(HfConfig(internet=True)).open(SandboxSpec(image="python:3.12")) as sandbox:
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("skew", [0, *(pytest.param(7, marks=pytest.mark.slow),)])
async def test_only_leftovers_of_a_killed_run_are_reaped(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec, skew: int
) -> None:
    """Also where the service's clock is hours off: who is dead is no question of time."""
    local_hf.faults.skew = skew * 3600.0
    environment = {**os.environ, **local_hf.environment()}
    async with await anyio.open_process([sys.executable, "-c", _KILLED], env=environment) as run:
        assert run.stdout is not None
        left = (await run.stdout.receive()).decode().strip()
        async with provider.open(spec) as sandbox:
            entries = {entry.id: entry for entry in await provider.list()}
            assert {id: entry.owner for id, entry in entries.items()} == {left: "alive", sandbox.id: "alive"}
            mine = entries[sandbox.id]
            assert (mine.image, mine.flavor, mine.details["stage"]) == ("python:3.12", "cpu-basic", "RUNNING")
            assert mine.created is not None
            assert abs(mine.created - datetime.now(UTC) - timedelta(hours=skew)) < timedelta(minutes=5)
            assert await provider.reap() == 0
            run.kill()
            await run.wait()
            assert {entry.id: entry.owner for entry in await provider.list()}[left] == "gone"
            assert await provider.reap() == 1
            assert [job.id for job in local_hf.jobs.running()] == [sandbox.id]
            await sh(sandbox, "true")


@pytest.mark.slow
async def test_sandbox_that_cannot_be_destroyed_is_left_for_the_next_run(
    local_hf: LocalHF, spec: SandboxSpec, provider: HfProvider, few: None
) -> None:
    async with provider.open(spec) as sandbox:
        local_hf.faults.plan("jobs.cancel", 500, 500)
    assert [job.id for job in local_hf.jobs.running()] == [sandbox.id]


async def test_pooled_sandboxes_share_a_job(local_hf: LocalHF, spec: SandboxSpec) -> None:
    provider = HfProvider(HfConfig(internet=True, pool=True, sandboxes_per_host=4))
    with pytest.raises(PolicyRefused, match=r"nothing can listen in pooled .* leave out sandbox\.hf\.pool"):
        provider.check_supported(spec.model_copy(update={"network": "llm"}))
    spec = spec.model_copy(update={"network": "full"})
    async with provider.open(spec) as one, provider.open(spec) as other:
        (job,) = local_hf.jobs.running()
        assert one.id.startswith(job.id)
        assert other.id.startswith(job.id)
        assert one.id != other.id
        done = await one.exec(["cat"], stdin=bytes(300_000))
        assert (done.exit_code, len(done.stdout)) == (0, 300_000)
        with pytest.raises(SandboxError, match=r"leave out sandbox\.hf\.pool"):
            async with one.reach("http://127.0.0.1:9"):
                pass
        assert [entry.owner for entry in await provider.list()] == ["alive"]
    assert local_hf.jobs.running() == []
    assert any("one trust boundary" in note for note in provider.notes())
