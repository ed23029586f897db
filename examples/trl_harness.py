"""Train with TRL's own trainer and rollout worker on rollouts of swe-core. docs/trl-harness.md explains it.

    python trl_harness.py MODEL http://127.0.0.1:8000 env.toml

The second argument is the vLLM server of MODEL, the third a file of settings for the rollouts.
"""

import sys
from functools import partial

from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

from swe_openenv.harness import SweSessionFactory, task_prompts


def train(model, rollouts, arguments, weight_transfer=None, out="runs/trl"):
    tokenizer = AutoTokenizer.from_pretrained(model)
    tasks = Dataset.from_list(task_prompts(**rollouts))
    worker = HarnessRolloutWorker(
        harness_session_factory=partial(SweSessionFactory, out=out, **rollouts),
        model_name=model,
        dataset=tasks,
        reward_funcs=[],  # the reward is the grader's
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=arguments.num_generations,
        max_inflight_tasks=arguments.max_inflight_tasks,
        queue_maxsize=arguments.queue_maxsize,
        vllm_server_url=arguments.vllm_server_base_url,
        temperature=arguments.temperature,
    )
    trainer = AsyncGRPOTrainer(
        model=model,
        args=arguments,
        train_dataset=tasks,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=weight_transfer,  # None: NCCL
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    model, vllm, config = sys.argv[1:]
    arguments = AsyncGRPOConfig(
        output_dir="trained",
        vllm_server_base_url=vllm,
        num_generations=8,
        max_inflight_tasks=32,
        max_steps=100,
    )
    train(model, {"config": config}, arguments)
