"""Plans a training, and prints who would have initialised CUDA, whose GPUs are then fixed."""

from __future__ import annotations

import os
import sys

import torch

asked: list[str] = []


def available() -> bool:
    if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
        asked.append("is_available")
    return False


def init() -> None:
    asked.append("init")


torch.cuda.is_available = available
torch.cuda._lazy_init = init

# Only now, when the functions that initialise CUDA are watched: hence "noqa".
from swe_trainer_trl.config import TRLConfig  # noqa: E402
from swe_trainer_trl.planning.cards import of_hardware  # noqa: E402
from swe_trainer_trl.planning.training_plan import plan_training  # noqa: E402

config = TRLConfig(lora={"r": 8})
plan = plan_training(config, sys.argv[1], of_hardware("2x80GB"), url=None, longest=None)
assert plan.size is not None, plan.unchecked
print(plan.size.parameters, "asked:", *asked)
assert "trl" not in sys.modules, "TRL's import asks CUDA"
