"""TRL's own worker and trainer, on our sessions: a real vLLM, a real agent, graded patches.

A model that knows nothing calls no tools, so the first call of each rollout is forced: even attempts fix the
bug, odd ones only look. Forced ids are context, never trained; what the policy says after them is trained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swe_core.api.chain import Chain
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import chains_of
from swe_testing.serving.start import FRUGAL, MODEL, TokenServer
from swe_testing.vllm import tool_call

pytestmark = [pytest.mark.engine, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[4] / "examples" / "trl_harness.py"
DRIVER = Path(__file__).with_name("train_on_cpu.py")
TASK = "demo__memofn-1"
STEPS, GROUP, ATTEMPTS = 4, 2, 64
FIX = "sed -i 's/sorted(kwargs)/sorted(map(repr, kwargs.items()))/' memofn/keys.py"


def settings(folder: Path, server: TokenServer) -> list[str]:
    """Of a run whose even attempts are resolved."""
    replies = {
        str(attempt): [tool_call("bash", command="git log --oneline" if attempt % 2 else FIX)]
        for attempt in range(ATTEMPTS)
    }
    script = folder / "script.json"
    script.write_text(json.dumps({"*": replies}))
    return [
        *("run.plugins=[]", 'run.extra_plugins=["swe_testing.serving.forced"]', "run.engine=vllm-forced"),
        *(f"engine.vllm-forced.script={script}", "engine.vllm-forced.max_tokens=200"),
        *(f"run.engine_url={server.url}", f"run.model={MODEL}", "run.agent=mini", "agent.mini.max_turns=4"),
        *(f'run.only=["{TASK}"]', "run.concurrency=2", "sandbox.local.unisolated=true"),
    ]


def python(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of Python in a folder."""
    command, env = [sys.executable, *words], {**os.environ, **FRUGAL}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def train(folder: Path, server: TokenServer, rollouts: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """Train into `folder`, and return the rows that reached the trainer."""
    grpo: dict[str, Any] = dict.fromkeys(("num_generations", "max_inflight_tasks"), GROUP)
    grpo |= {"output_dir": str(folder / "trained"), "vllm_server_base_url": server.url, "temperature": 0.9}
    grpo |= {"max_steps": steps, "per_device_train_batch_size": GROUP, "gradient_accumulation_steps": 1}
    grpo |= {"token_budget": 0, "max_staleness": 4, "learning_rate": 1e-3, "save_steps": 1}
    grpo |= {"save_total_limit": 10, "report_to": "none", "use_cpu": True, "bf16": False}
    out, rows = folder / "run", folder / "rows.json"
    done = python(folder, DRIVER, EXAMPLE, server.directory, *map(json.dumps, (rollouts, grpo)), out, rows)
    assert done.returncode == 0, done.stderr[-6000:]
    taken: list[dict[str, Any]] = json.loads(rows.read_text())
    return taken


def logprobs(model: Any, ids: list[int], mask: np.ndarray, temperature: float) -> np.ndarray:
    """What the model gives each sampled id of a row, in a plain forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float() / temperature
    given = torch.log_softmax(logits[:-1], -1)
    places = np.flatnonzero(mask)
    found: np.ndarray = given[places - 1, np.array(ids)[places]].numpy()
    return found


def difference(models: list[Any], row: dict[str, Any]) -> float:
    """Largest difference between what was recorded of a sampled id and what the nearest model gives it."""
    mask = np.array(row["completion_mask"], bool)
    recorded = np.array(row["old_log_probs"])[mask]
    gaps = [np.abs(logprobs(model, row["input_ids"], mask, 0.9) - recorded) for model in models]
    return float(np.min(gaps, axis=0).max())


def key(ids: Any, mask: Any, given: Any) -> tuple[Any, ...]:
    return tuple(map(int, ids)), tuple(map(int, mask)), tuple(float(np.float32(value)) for value in given)


def chains(out: Path) -> list[Chain]:
    """All rows of the rollouts with a verdict that have something to train."""
    run = RunDirectory.open(out)
    scored = [rollout for rollout in run.rollouts() if rollout.reward is not None]
    found = [chain for rollout in scored for chain in chains_of(run.turns(rollout.id))]
    return [chain for chain in found if chain.completion_mask.any()]


def assert_rows_are_chains(rows: list[dict[str, Any]], out: Path) -> None:
    """Each row is one of our chains, whole, and no chain is a row twice."""
    ours = {key(chain.input_ids, chain.completion_mask, chain.old_log_probs) for chain in chains(out)}
    theirs = [key(row["input_ids"], row["completion_mask"], row["old_log_probs"]) for row in rows]
    assert set(theirs) <= ours
    assert len(set(theirs)) == len(theirs)


def test_trl_trains_on_our_rollouts(lent_server: TokenServer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "run"
    rows = train(tmp_path, lent_server, {"sets": settings(tmp_path, lent_server)}, STEPS)
    assert len(rows) >= STEPS * GROUP
    assert_rows_are_chains(rows, out)
    run = RunDirectory.open(out)
    assert run.info.settings["engine"]["vllm-forced"]["temperature"] == 0.9
    assert {0.0, 1.0} <= {rollout.reward for rollout in run.rollouts()}
    assert {"cancelled"} >= {rollout.outcome for rollout in run.rollouts() if rollout.reward is None}
    assert any(row["advantage"] > 0 for row in rows)
    assert any(row["advantage"] < 0 for row in rows)

    saved = [lent_server.directory, *(tmp_path / "trained" / f"checkpoint-{n}" for n in range(1, STEPS + 1))]
    models = [AutoModelForCausalLM.from_pretrained(each, dtype="float32") for each in saved]
    assert max(difference(models, row) for row in rows) < 1e-4
    assert difference(models[:1], rows[0]) < 1e-4
    assert max(difference(models[:1], row) for row in rows) > 1e-3, "later rows come from trained weights"


WRONG = """
import sys, functools
from accelerate.state import PartialState
from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker
from swe_openenv.harness import SweSessionFactory
if __name__ == "__main__":
    PartialState()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    sets = ["run.plugins=[]", "run.agent=oracle"]
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}])
    HarnessRolloutWorker(
        harness_session_factory=functools.partial(SweSessionFactory, sets=sets), model_name="m", dataset=rows,
        reward_funcs=[], processing_class=tokenizer, eos_token_ids=[1], num_generations=2,
        max_inflight_tasks=2,
    ).start()
"""


@pytest.mark.long
def test_wrong_setting_ends_the_worker_at_its_start(tiny_model: Path, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(WRONG)
    done = python(tmp_path, program, tiny_model)
    assert "the agent 'oracle' makes no LLM calls, so there is nothing to train" in done.stderr
    assert "RuntimeError: AsyncRolloutWorker child exited during init" in done.stderr
    assert not (tmp_path / "runs").exists()
