"""Run one training by its command, as users do: the toy agent and its reward, on a model made here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_testing.serving.start import FRUGAL
from swe_testing.serving.tiny_model import make_tiny_model

from ..training import PROGRAM, Training
from .busy import Busy
from .report import Failed

GROUP = 8
"""Attempts in a group, which is also a step."""
LARGE = {
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
"""A model of 83 million parameters."""
_HERE = Path(__file__).parent
_GRACE = 60.0
"""Seconds for a training to end its server and sandboxes."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(_HERE.parent),  # toy_probe.py imports toy_reward.py
    "TRITON_F32_DEFAULT": "ieee",  # vLLM's attention in 32 bits multiplies in 19 (TF32) otherwise
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # NCCL's meeting point
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Ran:
    """A training that has ended well.

    Args:
        training: What it left behind.
        busy: Samples of the GPUs during it.
        note: Of `toy_probe`; empty if the trainer wrote none.
    """

    training: Training
    busy: Busy
    note: Mapping[str, Any]

    def median(self, name: str) -> float | None:
        """Return the median of a metric over the steps but the first; None if it has no value."""
        values = sorted(step[name] for step in self.training.metrics[1:] if step.get(name) is not None)
        return values[len(values) // 2] if values else None

    def busy_share(self) -> list[float]:
        """Return the busy share of each GPU from the first step's end to the last one's, in percent."""
        times = [
            datetime.fromisoformat(line["time"]).timestamp()
            for line in self.training.log()
            if "loss" in line["values"]
        ]
        return self.busy.share(times[0], times[-1])


@dataclass
class Bench:
    """What all checks share.

    Args:
        gpus: Names of the GPUs in CUDA_VISIBLE_DEVICES; empty on the CPU.
        scratch: Directory of models and runs.
    """

    gpus: tuple[str, ...]
    scratch: Path
    runs: dict[str, Ran] = field(default_factory=dict)

    @cached_property
    def tiny(self) -> Path:
        """The tiny model of the tests."""
        return make_tiny_model(self.scratch / "tiny")

    @cached_property
    def large(self) -> Path:
        """A model of `LARGE` on a GPU, and of a tenth of that on the CPU; its replies end late."""
        shape = LARGE if self.gpus else {**LARGE, "num_hidden_layers": 1}
        return make_tiny_model(self.scratch / "large", ends=False, **shape)

    def train(
        self,
        name: str,
        model: Path,
        seconds: float,
        *,
        steps: int,
        tokens: int = 32,
        letters: int = 10,
        gpus: int = 1,
        concurrency: int = 2 * GROUP,
        grpo: Mapping[str, Any] | None = None,
        worker: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
        compiled: bool = False,
    ) -> Ran:
        """Run a training in `scratch/NAME`, with a server that its command starts.

        Args:
            seconds: Limit of the wall time.
            steps: Optimizer steps, of one group each unless `grpo` says otherwise.
            tokens: Longest reply.
            letters: Letters e of a reply that is rewarded.
            gpus: GPUs that it sees; one is shared by the server and the trainer.
            concurrency: Rollouts at a time; 4 on the CPU.
            grpo, worker, server: Settings of `[worker.trl.grpo]`, `[worker.trl]`, `[worker.trl.server]`.
            compiled: vLLM compiles the model and records CUDA graphs, which takes most of a minute.

        Raises:
            Failed: It took too long, or its exit code is not 0.
        """
        settings = {
            "no_spread": "keep",
            "groups_ahead": 2,
            **(worker or {}),
            "grpo": {
                "max_steps": steps,
                "num_generations": GROUP,
                "per_device_train_batch_size": GROUP,
                "gradient_accumulation_steps": 1,
                "token_budget": 0,
                "save_strategy": "no",
                "report_to": "none",
                "disable_tqdm": True,
                **(grpo or {}),
            },
            "server": {"max_model_len": 4096, **self._server(compiled), **(server or {})},
        }
        command = [
            *("run", "--plugins", "trl", "-p", str(_HERE / "toy_probe.py"), "--agent", "toy"),
            *("--grader", "letters", "--tasks", "demo", "--task", "demo__memofn-1", "--sandbox", "local"),
            *("--concurrency", str(concurrency if self.gpus else 4), "--model", str(model)),
            *("--set", f"engine.vllm.max_tokens={tokens}", "--set", f"grader.letters.enough={letters}"),
            *("--set", f"sandbox.local.unisolated={json.dumps(unisolated())}"),
            *(f"--set=worker.trl.{key}={_text(value)}" for key, value in settings.items()),
        ]
        with Busy() as busy:
            training = self._run(name, command, self.gpus[:gpus], seconds)
        note = self.scratch / f"{name}.note"
        said = json.loads(note.read_text()) if note.exists() else {}
        self.runs[name] = Ran(training, busy, said)
        return self.runs[name]

    def _server(self, compiled: bool) -> Mapping[str, Any]:
        if not self.gpus or compiled:
            return {}
        # As many blocks as these runs need: a tiny model would get millions.
        blocks = ["--enforce-eager", "--num-gpu-blocks-override", "8192"]
        return {"args": blocks, "gpu_memory_utilization": 0.2}

    def _run(self, name: str, command: list[str], gpus: tuple[str, ...], seconds: float) -> Training:
        out = self.scratch / name
        environment = {**_ENVIRONMENT, **({} if self.gpus else FRUGAL), **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [_ENVIRONMENT["PYTHONPATH"], os.environ.get("PYTHONPATH")])
        )
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        environment["GPU_PROBE"] = str(self.scratch / f"{name}.note")
        program = subprocess.Popen(
            [PROGRAM, *command, "--out", str(out)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said = program.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {seconds:.0f} s: {_last(_ended(program))}") from None
        except BaseException:  # Ctrl-C: it ends its server itself
            _ended(program)
            raise
        (self.scratch / f"{name}.log").write_text(said[1])
        if program.returncode != 0:
            raise Failed(f"exit code {program.returncode}: {_last(said[1])}")
        return Training(0, *said, out)


def unisolated() -> bool:
    """Return whether sandboxes cannot be isolated here, as in most containers."""
    return why_not(find_bwrap()) is not None


def _ended(program: subprocess.Popen[str]) -> str:
    """End a program, and return what it said on stderr."""
    program.terminate()
    try:
        return program.communicate(timeout=_GRACE)[1]
    except subprocess.TimeoutExpired:
        program.kill()  # the server's guard and the rollouts' process see that it is gone
        return program.communicate()[1]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it said nothing"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
