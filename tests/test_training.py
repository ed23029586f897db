"""Training, whole: real Pi in a real sandbox, a real vLLM, TRL's trainer, and what came of it.

A model that knows nothing calls no tools, so each rollout's first call is forced: attempt 0 applies the fix,
the others do not. Forced ids are marked, and never trained; what the policy says after them is sampled
freely, and trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from swe_core.api.chain import Chain
from swe_core.api.task import Task
from swe_testing.serving.start import MODEL, TokenServer, obstacle
from swe_testing.vllm import tool_call

from .conftest import TASK, fix
from .training import Training, check_records, logprobs, train

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = [pytest.mark.engine, pytest.mark.pi]


@pytest.fixture(scope="session")
def best_sandbox(request: pytest.FixtureRequest) -> str:
    """Docker where it runs, bubblewrap otherwise."""
    try:
        request.getfixturevalue("docker_image")
    except pytest.skip.Exception:
        request.getfixturevalue("local_sandbox")
        return "local"
    return "docker"


@pytest.fixture(scope="session")
def needs_vllm() -> None:
    """Skip the test where vLLM cannot run."""
    why = obstacle()
    if why is not None:
        pytest.skip(why)


@pytest.fixture
def script(tmp_path: Path, task: Task) -> Path:
    """What Pi's first call answers: attempt 0 fixes the bug, the others only look."""
    calls = {"0": fix(task), "1": "git log --oneline", "2": "git status"}
    replies = {attempt: [tool_call("bash", command=command)] for attempt, command in calls.items()}
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"*": replies}))
    return path


def options(sandbox: str, script: Path, steps: int, group: int = 2) -> list[str]:
    """What both ways of training have in common; a group runs at a time."""
    grpo = {
        "max_steps": steps,
        "num_generations": group,
        "per_device_train_batch_size": group,
        "gradient_accumulation_steps": 1,
        "token_budget": 0,
        "learning_rate": 1e-3,
        "save_steps": 1,
        "save_total_limit": 10,
        "report_to": "none",
    }
    return [
        *("--plugins", ",".join(["pi", "trl", *(["docker"] if sandbox == "docker" else [])])),
        *("-p", "swe_testing.serving.forced", "--engine", "vllm-forced"),
        *("--set", f"engine.vllm-forced.script={script}", "--set", "engine.vllm-forced.max_tokens=500"),
        *("--tasks", "demo", "--task", TASK, "--sandbox", sandbox, "--concurrency", str(group)),
        *("--set", f"worker.trl.grpo={json.dumps(grpo)}"),
    ]


def versions_seen(chains: Sequence[Chain]) -> list[int]:
    return sorted({int(version) for chain in chains for version in chain.versions[chain.completion_mask]})


def check(done: Training, steps: int) -> list[Chain]:
    """What must hold of a training however weights are synchronised. Returns its rows."""
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.metrics) >= steps
    chains = done.chains()
    first, *later = versions_seen(chains)
    assert first == 1
    assert later  # which of them is a matter of time: one may be replaced before a call begins
    assert later[-1] <= steps
    report = done.report()
    ledger = report["ledger"]
    assert ledger["balanced"]
    assert ledger["dropped"]["forced"] > 0
    assert ledger["trainable"] == sum(int(chain.completion_mask.sum()) for chain in chains) > 0
    assert {0.0, 1.0} <= {rollout["reward"] for rollout in report["rollouts"]}
    # At the first step of version 1 the policy in the trainer is the one that sampled.
    assert done.metrics[0]["ratio"] == pytest.approx(1, abs=1e-3)
    return chains


def load(directory: Path) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    return model


def of_version(chains: Sequence[Chain], version: int) -> list[Chain]:
    """Rows all of whose sampled ids are of one version."""
    return [chain for chain in chains if set(chain.versions[chain.completion_mask]) == {version}]


def later_version(chains: Sequence[Chain]) -> int:
    """The first version after version 1 that sampled whole rows; which one that is, is a matter of time."""
    whole = [version for version in versions_seen(chains)[1:] if of_version(chains, version)]
    assert whole, "no version after the first sampled a whole row"
    return whole[0]


def difference(models: Sequence[PreTrainedModel], chains: Sequence[Chain]) -> float:
    """Largest difference between what was recorded of a sampled id and what the nearest model gives it."""
    largest = []
    for chain in chains:
        recorded = chain.old_log_probs[chain.completion_mask]
        differences = [np.abs(logprobs(model, chain) - recorded) for model in models]
        largest.append(float(np.min(differences, axis=0).max()))
    return max(largest)


@pytest.mark.usefixtures("local_sandbox", "needs_vllm")
@pytest.mark.parametrize(
    ("steps", "nodes"), [(3, 0), pytest.param(4, 3, marks=pytest.mark.long)], ids=["local", "ray"]
)
def test_pi_is_trained_with_weights_through_files(
    tmp_path: Path,
    tiny_model: Path,
    lent_server: TokenServer,
    script: Path,
    steps: int,
    nodes: int,
) -> None:
    """With a server that is there. Three steps, for some call of the third is sampled after the first.

    With three nodes, each runs one attempt of a group, and hears of versions from the driver.
    """
    done = train(
        tmp_path / "run",
        *options("local", script, steps=steps, group=nodes or 2),
        *(("--executor", "ray", "--workers", str(nodes)) if nodes else ()),
        *("--model", MODEL, "--set", f"worker.trl.model={tiny_model}"),
        *("--engine-url", lent_server.url, "--weight-sync", "disk"),
    )
    chains = check(done, steps=steps)
    if nodes:
        groups = {row.group for row in done.rows().values() if row.step is not None}
        assert max(len(done.nodes_of(group)) for group in groups) == nodes
    # Version n is what step n - 1 left: an importance ratio of 1 where a policy is fresh, to 1e-4.
    later = later_version(chains)
    before = load(tiny_model)
    trained = [load(done.out / "checkpoints" / f"checkpoint-{step}") for step in range(1, steps + 1)]
    # A token carries the oldest version that may have sampled it, and the server has new weights before they
    # are announced: on a busy machine the end of a row may come from the version after the one it carries.
    first = of_version(chains, 1)
    assert difference([before, *trained], first) < 1e-4
    assert min(difference([before], [chain]) for chain in first) < 1e-4
    assert difference(trained[later - 2 :], of_version(chains, later)) < 1e-4
    assert difference([before], of_version(chains, later)) > 1e-3  # so this can fail
    rows = check_records(done.out, [before, *trained[:-1]])
    assert {(row.step, row.version) for row in rows} == {(step, step) for step in range(1, steps + 1)}
    # The server ends with the weights that were saved.
    saved = load(done.out / "model")
    (chain, *_) = chains
    served = asked(lent_server.url, chain)
    given = logprobs(saved, chain)
    assert np.abs(served - given).max() < 1e-4
    assert np.abs(served - logprobs(before, chain)).max() > 1e-3


def asked(url: str, chain: Chain) -> np.ndarray:
    """What the server gives each sampled id of the chain."""
    body = {
        "model": MODEL,
        "prompt": chain.input_ids.tolist(),
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "temperature": 1.0,
    }
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    given = reply["choices"][0]["prompt_logprobs"]
    places = np.flatnonzero(chain.completion_mask)
    return np.array([given[place][str(chain.input_ids[place])]["logprob"] for place in places])


@pytest.mark.docker
@pytest.mark.slow
def test_pi_is_trained_by_an_adapter_with_one_command(
    tmp_path: Path, tiny_model: Path, needs_vllm: None, best_sandbox: str, script: Path
) -> None:
    """Nothing is injected: TRL publishes the adapter, and the engine asks for it by its version."""
    lora = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    done = train(
        tmp_path / "run",
        *options(best_sandbox, script, steps=4),
        *("--model", str(tiny_model), "--set", f"worker.trl.lora={json.dumps(lora)}"),
        *("--set", "worker.trl.server.max_model_len=16384"),
    )
    chains = check(done, steps=4)
    from peft import PeftModel

    steps = [done.out / "checkpoints" / f"checkpoint-{step}" for step in (1, 2, 3)]
    adapters = [PeftModel.from_pretrained(load(tiny_model), step) for step in steps]
    check_records(done.out, [load(tiny_model), *adapters])
    before, later = load(tiny_model), later_version(chains)
    checkpoint = done.out / "checkpoints" / f"checkpoint-{later - 1}"
    adapted = PeftModel.from_pretrained(load(tiny_model), checkpoint)
    assert difference([before], of_version(chains, 1)) < 1e-4
    assert difference([adapted], of_version(chains, later)) < 1e-4
    assert difference([before], of_version(chains, later)) > 1e-3
