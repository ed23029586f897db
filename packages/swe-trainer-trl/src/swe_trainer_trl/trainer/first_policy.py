"""FirstPolicy: the frozen policy from which the KL term measures the divergence.

It is the model that the training began with, also after a resume: a trainer is made from that model, and the
weights of a checkpoint are loaded later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import is_peft_model

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class FirstPolicy:
    """The model without its adapter, or a copy of a model without adapters.

    Args:
        model: The policy, before a checkpoint is loaded and before it is prepared for training.
        accelerator: The trainer's.
    """

    def __init__(self, model: torch.nn.Module, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._copy: torch.nn.Module | None = None
        if not is_peft_model(model):
            frozen: Any = copy.deepcopy(model).requires_grad_(False).eval()
            # Autocast converts these weights in each forward pass. Converted once, they give the same numbers
            # in half of the memory. The fused head expects its own type.
            precision, head = _AUTOCAST.get(accelerator.mixed_precision), frozen.get_output_embeddings()
            for layer in frozen.modules():
                if precision is not None and isinstance(layer, torch.nn.Linear) and layer is not head:
                    layer.to(precision)
            self._copy = accelerator.prepare_model(frozen, device_placement=True, evaluation_mode=True)

    def log_probs(self, policy: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the log-probabilities that the policy's forward pass gives, under the first weights.

        Args:
            policy: The policy as it is trained.
            inputs: The arguments of its forward pass.
        """
        with torch.no_grad(), self._model(policy) as model:
            found: torch.Tensor = model(**inputs).log_probs
        return found

    @contextmanager
    def _model(self, policy: torch.nn.Module) -> Iterator[torch.nn.Module]:
        if self._copy is not None:
            yield self._copy
            return
        adapted: Any = self._accelerator.unwrap_model(policy)
        adapted.eval()  # no dropout, and no gradient checkpoints of a pass without a gradient
        try:
            with adapted.disable_adapter():
                yield adapted
        finally:
            adapted.train()
