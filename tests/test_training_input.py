"""Training with wrong input and in bad luck: one sentence, nothing left running, and a run directory that is
either missing or can be resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_testing.serving.start import FRUGAL, MODEL, obstacle
from swe_testing.vllm import ScriptedVLLM

from .conftest import Scripted, leftovers, wait_for, wait_for_the_end
from .training import check_records
from .warm import Program, Warm

pytestmark = pytest.mark.usefixtures("local_sandbox")
PLUGIN = Path(__file__).parents[1] / "packages" / "swe-trainer-trl" / "tests" / "scripted_rollouts.py"
NOWHERE = "http://127.0.0.1:9"
"""Where nobody listens."""
GROUP = 2
_PATIENCE = 400.0


@dataclass
class Command:
    """`swe-core run` in a directory, as its users call it; every way in which it ends is checked."""

    warm: Warm
    out: Path
    scratch: Path
    log: Path
    started: list[Program] = field(default_factory=list)

    def start(self, *args: str, env: dict[str, str] | None = None) -> Program:
        """A run into `out`; with `--resume` in `args` a resumed one."""
        where = [] if args[:1] == ("--resume",) else ["--out", str(self.out)]
        environment = {**FRUGAL, "TMPDIR": str(self.scratch), **(env or {})}
        self.started.append(self.warm.start(["run", *args, *where], environment, stderr=self.log))
        return self.started[-1]

    @contextmanager
    def importing(self, path: Path) -> Iterator[dict[str, str]]:
        """For the length of the context runs import from `path` first; the variables that say so."""
        env = {"PYTHONPATH": str(path)}
        with Warm((), {**FRUGAL, **env}) as warm:
            self.warm, before = warm, self.warm
            yield env
            self.warm = before

    @property
    def said(self) -> str:
        """What the last one said on stderr."""
        return self.log.read_text(errors="replace")

    def end(self, process: Program) -> int:
        """The exit code, of a process that leaves nothing."""
        try:
            code = process.wait(_PATIENCE)
        except BaseException:  # an interrupted test leaves no process either
            process.kill()
            raise
        assert "Traceback" not in self.said
        left = leftovers(self.scratch, process.pid)
        assert [path for path in left if "torchinductor" not in path] == []  # vLLM's, for the next time
        wait_for_the_end(self.scratch)
        return code

    def refused(self, *args: str, code: int, env: dict[str, str] | None = None) -> str:
        """The one sentence of a run that ends with `code`."""
        return self.sentence(self.start(*args, env=env), code)

    def sentence(self, process: Program, code: int) -> str:
        """The one sentence that it ends with."""
        assert self.end(process) == code, self.said
        errors = [line for line in self.said.splitlines() if "error: " in line]
        assert errors == self.said.splitlines()[-1:], self.said
        head = "swe-core: error: "
        assert errors[0].startswith(head)
        return errors[0].removeprefix(head)

    def until(self, true: Callable[[], object]) -> None:
        """Wait for something that happens while the last one runs."""
        wait_for(true, alive=self.started[-1], say=lambda: self.said)

    def steps(self) -> list[int]:
        """The optimizer steps that were logged."""
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if "loss" in line["values"]]


@pytest.fixture
def command(tmp_path: Path, scratch: Path, warm_trainer: Warm) -> Iterator[Command]:
    """A directory that is not there yet."""
    command = Command(warm_trainer, tmp_path / "run", scratch, tmp_path / "stderr")
    yield command
    for process in command.started:
        if process.poll() is None:  # the test has failed
            process.terminate()
            process.wait()


class Policy(ScriptedVLLM):
    """One that takes new weights, and says what it always says."""

    def routes(self) -> Iterable[web.RouteDef]:
        synchronise = ("/pause", "/collective_rpc", "/reset_prefix_cache", "/resume")
        return [*super().routes(), *(web.post(path, self._done) for path in synchronise)]

    async def _done(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})


Server = Callable[..., Policy]


@pytest.fixture
def policy(tiny_model: Path, scripted: Scripted) -> Server:
    """Makes a server of the tiny model, from what is special about it."""

    def make(**special: Any) -> Policy:
        return Policy(["done"], **{**scripted.keywords, "models": (MODEL,), **special})

    return make


@contextmanager
def serving(server: Policy) -> Iterator[str]:
    """The server's URL, while it serves from another thread."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server):
        yield server.url


def options(url: str | None, model: Path | str | None, *more: str, **grpo: Any) -> list[str]:
    """To train two steps of one group each."""
    values = {
        "max_steps": 2,
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP,
        "gradient_accumulation_steps": 1,
        "token_budget": 0,
        "save_steps": 1,
        "report_to": "none",
        **grpo,
    }
    return [
        *("--plugins", "trl", "-p", str(PLUGIN), "--agent", "scripted", "--grader", "scripted"),
        *("--engine", "vllm", "--set", "engine.vllm.max_tokens=8", "--set", "engine.vllm.max_retries=0"),
        *("--tasks", "demo", "--task", "demo__memofn-1", "--sandbox", "local", "--weight-sync", "disk"),
        *([] if url is None else ["--engine-url", url]),
        *([] if model is None else ["--model", MODEL, "--set", f"worker.trl.model={model}"]),
        *("--set", f"worker.trl.grpo={json.dumps(values)}"),
        *more,
    ]


def copy(model: Path, target: Path, config: dict[str, Any] | None = None) -> Path:
    """A copy of the model, with other values in its configuration."""
    shutil.copytree(model, target)
    file = target / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **(config or {})}))
    return target


# wrong input: no run directory is made


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "training needs a policy: pass --model"),
        (
            ["--weight-sync", "nonsense", "--model", "m"],
            "weight_sync: Input should be 'trl' or 'disk' (found 'nonsense')",
        ),
        (["--set", "worker.trl.preset=pola"], "there is no preset 'pola'; did you mean 'polar'?"),
        (["--set", "worker.trl.weightsync=disk"], "weightsync"),
        (["--set", "worker.trl.server.gpu=1"], "server.gpu"),
        (
            ["--agent", "oracle", "--model", "m"],
            "the agent 'oracle' makes no LLM calls that this host answers",
        ),
        (
            [
                *("--mode", "black-box", "--network", "full", "--agent-key-env", "HOME", "--model", "m"),
                *("--agent", "mini", "--engine-url", NOWHERE),
            ],
            "leave out --mode black-box",
        ),
        (["--model", "m", "--engine-url", "ftp://x"], "the engine URL 'ftp://x' is not a base URL"),
        (
            ["--model", "m", "--engine-url", NOWHERE, "--engine-url", f"{NOWHERE}/v1"],
            f"--engine-url names {NOWHERE!r} twice",
        ),
    ],
)
def test_wrong_input_is_reported_at_once(
    warm: Warm, tmp_path: Path, scratch: Path, args: list[str], words: str
) -> None:
    command = Command(warm, tmp_path / "run", scratch, tmp_path / "stderr")
    assert words in command.refused("--plugins", "trl", "--tasks", "demo", *args, code=2)
    assert not command.out.exists()
    assert "torch" not in command.said  # nothing heavy was imported, which may warn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "the worker 'trl' needs TRL, which is not installed: pip install 'trl=="),
        ("1.9.1", "TRL 1.9.1 is too old: the worker 'trl' needs 1.10 or newer: pip install 'trl=="),
    ],
)
def test_broken_trl_names_what_to_install(
    command: Command, tmp_path: Path, tiny_model: Path, metadata: str | None, words: str
) -> None:
    path = tmp_path / "path"
    path.mkdir()
    if metadata is None:
        (path / "sitecustomize.py").write_text(
            "import importlib.metadata as m\n"
            "found = m.version\n"
            "def version(name):\n"
            "    if name == 'trl':\n"
            "        raise m.PackageNotFoundError(name)\n"
            "    return found(name)\n"
            "m.version = version\n"
        )
    else:
        (path / f"trl-{metadata}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: trl\nVersion: {metadata}\n"
        (path / f"trl-{metadata}.dist-info" / "METADATA").write_text(text)
    with command.importing(path) as env:
        assert words in command.refused(*options(NOWHERE, tiny_model), code=2, env=env)
    assert not command.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "worker.trl.grpo.max_step=3"], "did you mean 'max_steps'?"),
        (["--set", "worker.trl.lora.lora_alfa=3"], "did you mean 'lora_alpha'?"),
        (["--weight-sync", "trl"], "NCCL, which needs CUDA, and there is none: use --weight-sync disk"),
        (["--set", "engine.vllm.temperature=0.5"], "engine.vllm.temperature is 0.5 and worker.trl.grpo."),
    ],
)
def test_impossible_settings_are_reported_before_anything_is_created(
    command: Command, tiny_model: Path, more: list[str], words: str
) -> None:
    if "--weight-sync" in more and _has_cuda():
        pytest.skip("there is CUDA, so weights can go through NCCL")
    assert words in command.refused(*options(NOWHERE, tiny_model, *more), code=2)
    assert not command.out.exists()


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "url"), [("damaged", NOWHERE), ("tied", None)])
def test_untrainable_model_is_reported_before_anything_is_created(
    command: Command, tmp_path: Path, tiny_model: Path, broken: str, url: str | None
) -> None:
    model = tmp_path / "model"
    copy(tiny_model, model, {"tie_word_embeddings": True})
    if broken == "damaged":
        (model / "config.json").write_text("{")
    said = command.refused(*options(url, model), code=2)
    assert {
        "damaged": f"the model {str(model)!r} cannot be read",
        "tied": "the model ties its output head to its input embeddings",
    }[broken] in said
    assert not command.out.exists()


# a server that cannot be used: no run directory is made either, and nobody waits for it


@pytest.mark.slow
def test_missing_server_is_reported_at_once(command: Command, tiny_model: Path) -> None:
    """TRL itself would wait 240 s for it, in silence, where it synchronises."""
    more = ["--weight-sync", "trl", "--set", "worker.trl.lora.r=8"]
    process = command.start(*options(NOWHERE, tiny_model, *more))
    assert f"the vLLM server at {NOWHERE!r} cannot be reached" in command.sentence(process, 1)
    assert "Loading weights" not in command.said
    assert not command.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("special", "grpo", "words"),
    [
        ({"models": ("other",)}, {}, f"does not serve the model {MODEL!r}: pass --model with one that"),
        ({"processed": False}, {"temperature": 0.7}, "start it with --logprobs-mode processed_logprobs"),
    ],
)
def test_unusable_server_is_reported_before_the_policy_is_loaded(
    command: Command,
    tiny_model: Path,
    policy: Server,
    special: dict[str, Any],
    grpo: dict[str, Any],
    words: str,
) -> None:
    with serving(policy(**special)) as url:
        said = command.refused(*options(url, tiny_model, **grpo), code=1)
    assert words in said
    assert not command.out.exists()
    assert "Loading weights" not in command.said


@pytest.mark.slow
def test_tokenizer_without_chat_template_is_reported_before_the_policy_is_loaded(
    command: Command, tmp_path: Path, tiny_model: Path, policy: Server
) -> None:
    root = copy(tiny_model, tmp_path / "root")
    (root / "chat_template.jinja").unlink()
    with serving(policy(root=str(root))) as url:
        said = command.refused(*options(url, tiny_model), code=2)
    assert f"the tokenizer {str(root)!r} has no chat template" in said
    assert not command.out.exists()


@pytest.mark.slow
def test_resume_rejects_a_directory_without_a_training(command: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert "there is no run" in command.refused("--resume", str(missing), "--plugins", "trl", code=2)
    assert not missing.exists()
    RunDirectory.create(command.out, new_run_info({}, {}, None, []), Redactor())
    again = ["--resume", str(command.out), "--plugins", "trl", "--model", "m", "--engine-url", NOWHERE]
    said = command.refused(*again, code=2)
    assert "is not a training run that can be resumed: it has no 'train.sqlite'" in said


# failures on the way: finished work is kept and the run resumes


@pytest.mark.slow
def test_engine_notes_come_first_and_missing_logprobs_end_the_run(
    command: Command, tmp_path: Path, tiny_model: Path, policy: Server
) -> None:
    root = copy(tiny_model, tmp_path / "root")
    template = root / "chat_template.jinja"
    # The start of the prompt changes with each turn, so no prompt extends the one before it.
    template.write_text("{{ messages | length }}" + template.read_text())
    with serving(policy(root=str(root), then="null-logprobs")) as url:
        more = ["--set", "worker.trl.give_up_after=2"]
        said = command.refused(*options(url, tiny_model, *more), code=1)
    assert said.startswith("no sampled token of the last 2 groups can be trained (dropped were ")
    assert "no_logprobs" in said
    note = command.said.index("renders each prompt afresh, so that turns may fork from their chains")
    assert note < command.said.index("group 0, ")


@pytest.mark.slow
def test_server_of_the_user_that_stays_dead_is_named(
    command: Command, tiny_model: Path, policy: Server
) -> None:
    server = policy(faults=["ok"] * (2 * GROUP), then="hang")  # the trainer takes the next rows first
    more = ["--set", "worker.trl.server.away_timeout=1"]
    with serving(server) as url:
        process = command.start(*options(url, tiny_model, *more, max_steps=4, save_steps=1))
        command.until(lambda: (command.out / "checkpoints" / "checkpoint-1").exists())
        command.until(lambda: len(server.requests) > 2 * GROUP)
    said = command.sentence(process, 1)
    assert url in said


@pytest.fixture
def small_disk(command: Command) -> Iterator[Callable[[int], None]]:
    """Sets how many MiB the disk of the run directory has."""
    disk = command.out.parent / "disk"
    disk.mkdir()

    def mount(size: int) -> None:
        how = "remount," if disk.is_mount() else ""
        words = ["mount", "-t", "tmpfs", "-o", f"{how}size={size}m", "swe-test", str(disk)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")

    mount(1)
    command.out = disk / "run"
    yield mount
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_full_disk_is_one_sentence_and_with_room_it_resumes(
    command: Command, tiny_model: Path, policy: Server, small_disk: Callable[[int], None]
) -> None:
    small_disk(4)  # room for the first weights, but not for a checkpoint
    with serving(policy()) as url:
        said = command.refused(*options(url, tiny_model), code=1)
        assert f"cannot be written to {str(command.out)!r}"[:-1] in said
        assert "make room" in said
        small_disk(64)
        again = command.start("--resume", str(command.out))
        assert command.end(again) == 0, command.said
    assert command.steps()[-1] == 2


# interrupted


SLOW_VLLM = """
import pathlib, sys, time
arguments = set(sys.orig_argv)
if "vllm.entrypoints.openai.api_server" in arguments and "swe_core.system.server_guard" not in arguments:
    pathlib.Path(sys.orig_argv[sys.orig_argv.index("--model") + 1] + ".started").touch()
    time.sleep(1e6)
"""


@pytest.mark.slow
def test_interrupted_while_vllm_starts(command: Command, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(SLOW_VLLM)
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    model = copy(tiny_model, tmp_path / "model")
    with command.importing(tmp_path / "path") as env:
        process = command.start(*options(None, model), env=env)
        command.until((tmp_path / "model.started").exists)
        process.send_signal(signal.SIGTERM)
        assert command.end(process) == 130
    assert "resume with --resume" in command.said


@pytest.mark.slow
def test_interrupted_while_the_policy_is_loaded(command: Command, tiny_model: Path, policy: Server) -> None:
    with serving(policy()) as url:
        process = command.start(*options(url, tiny_model))
        command.until((command.out / "train.sqlite").exists)
        process.send_signal(signal.SIGINT)
        assert command.end(process) == 130, command.said


class Held(Policy):
    """Its first weights are loaded, the next ones until the client leaves."""

    asked: tuple[str, ...] = ()

    async def _done(self, request: web.Request) -> web.Response:
        self.asked += (request.path,)
        if request.path == "/collective_rpc" and self.asked.count(request.path) > 1:
            await anyio.sleep_forever()
        return await super()._done(request)


@pytest.mark.slow
def test_interrupted_while_weights_are_sent_no_server_is_left_paused(
    command: Command, tiny_model: Path, scripted: Scripted
) -> None:
    server = Held(["done"], **{**scripted.keywords, "models": (MODEL,)})
    with serving(server) as url:
        process = command.start(*options(url, tiny_model))
        command.until(lambda: server.asked[-1:] == ("/collective_rpc",) and "/resume" in server.asked)
        process.send_signal(signal.SIGINT)
        assert command.end(process) == 130, command.said
    assert server.asked[-2:] == ("/collective_rpc", "/resume")


@pytest.mark.slow
def test_training_interrupted_during_rollouts_resumes_and_is_locked_until_then(
    command: Command, tmp_path: Path, tiny_model: Path, policy: Server
) -> None:
    scratch = command.scratch.with_name(f"{command.scratch.name}-other")
    scratch.mkdir()
    other = Command(command.warm, command.out, scratch, tmp_path / "other")
    server = policy(faults=["ok"] * (2 * GROUP), then="hang")
    with serving(server) as url:
        process = command.start(*options(url, tiny_model, max_steps=3, save_total_limit=9))
        command.until(lambda: len(server.requests) > 2 * GROUP)
        said = other.refused("--resume", str(command.out), code=2)
        assert said.endswith("is in use by another process: wait for it, or stop it")
        other.scratch.rmdir()
        process.send_signal(signal.SIGTERM)
        assert command.end(process) == 130, command.said
    check_it_goes_on(command, policy, tiny_model)


@pytest.mark.slow
def test_training_interrupted_during_a_save_resumes(
    command: Command, tiny_model: Path, policy: Server
) -> None:
    server = policy(faults=["ok"] * (2 * GROUP), then="hang")  # or it might be at its end before the signal
    with serving(server) as url:
        process = command.start(*options(url, tiny_model, max_steps=3, save_total_limit=9))
        command.until((command.out / "checkpoints" / "checkpoint-1").exists)
        process.send_signal(signal.SIGINT)
        assert command.end(process) == 130, command.said
    check_it_goes_on(command, policy, tiny_model)


def check_it_goes_on(command: Command, policy: Server, model: Path) -> None:
    """With another server, to the third step, which is the last; what the steps computed is in the files."""
    from transformers import AutoModelForCausalLM

    with serving(policy()) as url:
        again = command.start("--resume", str(command.out), "--engine-url", url)
        assert command.end(again) == 0, command.said
    steps = command.steps()
    assert steps[-1] == 3
    assert set(steps) == {1, 2, 3}
    begun = [model, *(command.out / "checkpoints" / f"checkpoint-{step}" for step in (1, 2))]
    rows = check_records(command.out, [AutoModelForCausalLM.from_pretrained(one) for one in begun])
    assert rows[-1].version > 3  # the resumed process sent its first weights under a version of their own


@pytest.mark.engine
@pytest.mark.slow
def test_dead_vllm_is_restarted(command: Command, tiny_model: Path) -> None:
    why = obstacle()
    if why is not None:
        pytest.skip(why)
    more = ["--set", "worker.trl.server.max_model_len=8192", "--set", "worker.trl.no_spread=keep"]
    process = command.start(*options(None, tiny_model, *more, max_steps=100_000, save_steps=100_000))
    command.until(lambda: (command.out / "metrics.jsonl").exists())
    os.kill(_engine_core(command), signal.SIGKILL)
    command.until(lambda: "has the policy's weights again" in command.said)
    steps = len(command.steps())
    command.until(lambda: len(command.steps()) > steps + 2)  # also of attempts that it has answered
    assert "skipped" not in command.said
    process.send_signal(signal.SIGTERM)
    assert command.end(process) == 130, command.said


def _engine_core(command: Command) -> int:
    """The process in which vLLM computes, which is the one to run out of memory."""
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = str(command.scratch).encode() in (directory / "environ").read_bytes()
            if ours and b"EngineCore" in (directory / "cmdline").read_bytes():
                return int(directory.name)
    pytest.fail("vLLM has no such process")
