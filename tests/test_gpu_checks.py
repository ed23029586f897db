"""The checks of `make test-gpu`, as far as they can be tried without a GPU: how they go on, what they log,
what they notice. One training runs some of them whole on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from swe_testing.serving.start import missing, obstacle

from .gpu import __main__ as program
from .gpu import busy, cards, cases, checks, steps
from .gpu.report import Failed, Log, Result, Skipped, Status
from .gpu.run import Bench

ROOT = Path(__file__).parents[1]
needs_no_gpu = pytest.mark.skipif(cards.count() > 0, reason="this machine has a GPU")


@needs_no_gpu
@pytest.mark.parametrize("command", [["tests/gpu/cards.py"], ["-m", "tests.gpu"]])
def test_without_a_gpu_one_sentence_says_so(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [cards.NONE]


@needs_no_gpu
def test_nothing_is_installed_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    command = ["make", "-f", str(ROOT / "Makefile"), "-C", str(ROOT), "test-gpu", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert cards.NONE in done.stderr
    assert "installing" not in done.stdout


Run = Callable[[Bench, float], checks.Figures]


def check(name: str, run: Run, gpus: int = 0) -> checks.Check:
    return checks.Check(name, "an example", 10, gpus, run)


def raises(error: BaseException) -> Run:
    def run(bench: Bench, seconds: float) -> checks.Figures:
        raise error

    return run


def test_every_check_runs_and_the_log_says_what_became_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = (
        check("first", raises(Failed("the server | died"))),
        check("second", raises(ValueError("an error\nof two lines"))),
        check("third", lambda bench, seconds: {"tokens/s": 1234.5, "busy, %": [91.0, 3.25]}),
        check("fourth", lambda bench, seconds: {}, gpus=2),
        check("fifth", raises(Skipped("it reads what another leaves behind"))),
    )
    monkeypatch.setattr(checks, "CHECKS", made)
    assert program.main(["--cpu", "--out", str(tmp_path)]) == 1
    about, *results = [json.loads(line) for line in (tmp_path / "checks.jsonl").read_text().splitlines()]
    assert about["GPUs"] == 0
    assert "nothing of CUDA" in about["proves"]
    states = ["failed", "failed", "passed", "skipped", "skipped"]
    assert [(one["check"], one["status"]) for one in results] == [
        (one.name, state) for one, state in zip(made, states, strict=True)
    ]
    assert results[0]["reason"] == "the server | died"
    assert results[1]["reason"].startswith("ValueError in run, line ")
    assert results[1]["reason"].endswith(": an error of two lines")
    assert results[3]["reason"] == "it needs 2 GPUs, and this machine has 0"
    text = (tmp_path / "checks.md").read_text()
    assert "| first | failed | 0 | the server \\| died |" in text
    assert "| third | passed | 0 | tokens/s 1,234; busy, % 91, 3.25 |" in text
    assert text.endswith("1 passed, 2 failed, 2 skipped\n")
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("states", "failed"),
    [
        (["passed", "skipped"], False),
        (["passed", "failed"], True),
        (["skipped", "skipped"], True),
        ([], True),
    ],
)
def test_skipped_checks_alone_prove_nothing(tmp_path: Path, states: list[Status], failed: bool) -> None:
    log = Log(tmp_path, {})
    for state in states:
        log.add(Result("x", state, None, 0.0, {}))
    assert log.failed is failed


def test_results_are_written_when_a_check_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (check("first", lambda bench, seconds: {}), check("second", raises(KeyboardInterrupt())))
    monkeypatch.setattr(checks, "CHECKS", made)
    with pytest.raises(KeyboardInterrupt):
        program.main(["--cpu", "--out", str(tmp_path)])
    assert "1 passed, 0 failed, 0 skipped" in (tmp_path / "checks.md").read_text()


def test_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--cpu", "--only", "dsk"])
    assert "invalid choice: 'dsk'" in capsys.readouterr().err


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of swe-core; the test writes it."""
    path = tmp_path / "swe-core"
    path.touch(mode=0o700)
    monkeypatch.setattr("tests.gpu.run.PROGRAM", str(path))
    return path


def test_training_that_takes_too_long_is_ended_and_its_last_line_kept(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('interrupted at step 3'))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "signal.pause()\n"
    )

    class Late(subprocess.Popen[str]):
        """Its limit is over once the program has begun."""

        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            if timeout == 7:
                ready.read_text()
                raise subprocess.TimeoutExpired("swe-core", timeout)
            return super().communicate(input, timeout)

    monkeypatch.setattr("tests.gpu.run.subprocess.Popen", Late)
    with pytest.raises(Failed, match="did not end within 7 s: interrupted at step 3"):
        Bench((), tmp_path).train("slow", tmp_path, 7, steps=1)


def test_training_that_fails_says_why(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('vLLM did not start: out of memory')\n")
    with pytest.raises(Failed, match="exit code 1: vLLM did not start: out of memory"):
        Bench((), tmp_path).train("failing", tmp_path, 60, steps=1)


@pytest.mark.parametrize("gpus", [(), ("3", "5")])
def test_server_has_few_blocks_on_a_gpu_and_the_environment_of_tests_on_a_cpu(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = tmp_path / "seen.json"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv, dict(os.environ)], open({str(seen)!r}, 'w'))\nsys.exit(1)\n"
    )
    with pytest.raises(Failed):
        Bench(gpus, tmp_path).train("x", tmp_path, 60, steps=3, worker={"weight_sync": "disk"})
    arguments, environment = json.loads(seen.read_text())
    (server,) = (one for one in arguments if one.startswith("--set=worker.trl.server="))
    assert ("--num-gpu-blocks-override" in server) is bool(gpus)
    assert ("TORCH_COMPILE_DISABLE" in environment) is not bool(gpus)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment.get("CUDA_VISIBLE_DEVICES") == (gpus[0] if gpus else None)
    assert "--set=worker.trl.weight_sync=disk" in arguments
    (grpo,) = (one.partition("grpo=")[2] for one in arguments if one.startswith("--set=worker.trl.grpo="))
    assert json.loads(grpo)["max_steps"] == 3


def test_share_of_time_counts_the_window_and_each_card() -> None:
    sampled = busy.Busy()
    sampled.samples = [(0.0, [100, 0], [1, 2]), (1.0, [50, 10], [3 * 10**9, 2]), (2.0, [70, 20], [1, 2])]
    assert sampled.share(0.5, 2.0) == [60.0, 15.0]
    assert sampled.share(5.0, 6.0) == []
    assert sampled.peak_gb() == [3.0, 0.0]


def test_rate_of_sampling_counts_time_in_which_calls_overlap_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    # Start, seconds and ids of each; the last one failed.
    calls = [(0, 4, 30), (1, 2, 10), (3, 3, 20), (16, 4, 40), (18, 1, 0)]
    turns = [
        SimpleNamespace(
            started_at=begin + timedelta(seconds=start),
            seconds=seconds,
            usage=SimpleNamespace(completion_tokens=ids),
        )
        for start, seconds, ids in calls
    ]
    run = SimpleNamespace(turns=lambda rollout_id: turns)
    monkeypatch.setattr(checks, "RunDirectory", SimpleNamespace(open=lambda out: run))
    done = SimpleNamespace(out=None, rollouts=lambda: [SimpleNamespace(id="a")])
    # A stand-in for a finished training, with what is read of it.
    assert checks.sampling(done) == {  # type: ignore[arg-type]
        "sampled tokens/s of wall time": 5.0,
        "sampled tokens/s while a call ran": 10.0,
        "calls at a time": 1.3,
    }


def test_samples_come_from_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()

    def used(card: int) -> SimpleNamespace:
        if len(sampled.samples) == 2:
            enough.set()
        return SimpleNamespace(used=card)

    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=10 + card),
        nvmlDeviceGetMemoryInfo=used,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(busy, "find_spec", lambda name: True)
    monkeypatch.setattr(busy, "_EVERY", 0.001)
    sampled = busy.Busy()
    with sampled:
        assert enough.wait(60)
    assert {(tuple(shares), tuple(used)) for _, shares, used in sampled.samples} == {((10, 11), (0, 1))}


def test_attention_that_looks_ahead_is_noticed() -> None:
    from torch import float32

    from swe_trainer_trl.trainer.cuda_attention import by_segments

    from .gpu.attention import error

    # As in the kernel that it replaces, torch gives no types.
    def from_the_first(query, key, value, *others, **more):  # type: ignore[no-untyped-def]
        """The window is one too wide."""
        left, right = more.pop("window_size")
        return by_segments(query, key, value, *others, window_size=(left + 1, right), **more)

    assert error(by_segments, float32, "cpu", window=40) < 1e-4
    assert error(from_the_first, float32, "cpu", window=40) > 0.03


@pytest.mark.parametrize(
    ("kind", "weights", "logprobs", "right"),
    [
        ("32 bits", 1e-5, 1e-5, True),
        ("16 bits", 0.1, 0.1, True),
        ("FSDP2", 0.1, 1e-5, False),
        ("32 bits", 1e-5, 0.1, False),
        ("16 bits", 0.3, 0.1, False),
        ("32 bits", float("nan"), 0.0, False),
    ],
)
def test_step_that_differs_from_the_cpus_is_noticed(
    kind: str, weights: float, logprobs: float, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({kind: {"weights": weights, "logprobs": logprobs}})
    monkeypatch.setattr(checks, "_python", lambda *arguments, seconds: said)
    monkeypatch.setattr(Bench, "tiny", tmp_path)
    if right:
        assert checks.steps(Bench((), tmp_path), 10) == {
            f"{kind}: weights": weights,
            f"{kind}: logprobs": logprobs,
        }
    else:
        with pytest.raises(Failed, match="the steps differ from those on the CPU"):
            checks.steps(Bench((), tmp_path), 10)


def test_what_takes_more_than_planned_is_noticed_after_the_other_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        "fits": '{"planned, GiB": 9, "used of the GPU, GiB": 8}',
        "more": '{"planned, GiB": 9, "used of the GPU, GiB": 9.5}',
    }
    asked = []

    def python(*arguments: str, seconds: float) -> str:
        asked.append(arguments[2])
        if arguments[2] == "breaks":
            raise Failed("out of memory")
        return said[arguments[2]]

    monkeypatch.setattr(checks, "_python", python)
    monkeypatch.setattr(checks, "CASES", dict.fromkeys(("more", "breaks", "fits")))
    with pytest.raises(
        Failed, match=r"more: it takes more than planned; breaks: out of memory: .*'fits: used"
    ):
        checks.memory(Bench((), tmp_path), 10)
    assert asked == ["more", "breaks", "fits"]
    monkeypatch.setattr(checks, "CASES", {"fits": None})
    assert checks.memory(Bench((), tmp_path), 10) == {
        "fits: planned, GiB": 9,
        "fits: used of the GPU, GiB": 8,
    }


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_steps_are_compared_and_measured_on_a_cpu(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(steps, "KINDS", {"16 bits": steps.KINDS["16 bits"]})
    steps.main(tiny_model, tmp_path / "steps", True)
    found = json.loads(capsys.readouterr().out)["16 bits"]
    assert 1e-3 < found["weights"] < checks.MOVED["16 bits"]
    assert 1e-3 < found["logprobs"] < checks.LOGPROBS["16 bits"]
    monkeypatch.setattr(checks, "CASES", {"1.7B, FSDP2": cases.CASES["1.7B, FSDP2"]})
    figures = checks.memory(Bench((), tmp_path), 600)
    assert figures["1.7B, FSDP2: tokens/s of a pass"] > 0


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.skipif(obstacle() is not None, reason=f"vLLM cannot run here: {obstacle()}")
@pytest.mark.usefixtures("local_sandbox")
def test_checks_of_one_training_pass_on_a_cpu(tmp_path: Path) -> None:
    only = ("environment", "disk", "logprobs")
    code = program.main(["--cpu", "--out", str(tmp_path), *(f"--only={name}" for name in only)])
    text = (tmp_path / "checks.md").read_text()
    assert code == 0, text
    assert "3 passed, 0 failed, 0 skipped" in text
    _, _, disk, exact = (json.loads(line) for line in (tmp_path / "checks.jsonl").read_text().splitlines())
    assert disk["figures"]["sync, s"] > 0
    assert exact["figures"]["largest"] < 1e-4  # a CPU is more exact than the check asks for
    assert exact["figures"]["first"] > 0.05
