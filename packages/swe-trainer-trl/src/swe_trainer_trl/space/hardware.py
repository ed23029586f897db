"""Check that hardware of the Hub has the GPUs that a training needs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core.errors import ConfigError, sentence
from swe_trainer_trl.space.deployment import Training

if TYPE_CHECKING:
    from huggingface_hub import JobHardwareInfo

logger = logging.getLogger(__name__)

_NAMED = re.compile(r"(?:t4|l4|l40s|a10g|a100|h100|h200|b200)(?:-small|-medium|-large)?(?:x([0-9]+))?")
"""Hardware names with the number of GPUs, such as `l4x4`; a name without a number means one GPU."""


def gpus_of(name: str, listed: Iterable[JobHardwareInfo] = ()) -> int | None:
    """Return the number of GPUs of hardware; None if neither the Hub's list nor the name gives it.

    Args:
        name: The Hub's name of the hardware.
        listed: The hardware that the Hub offers; empty without a request to the Hub.
    """
    for one in listed:
        if one.name == name and one.accelerator is not None:
            known = one.accelerator.type == "gpu" and one.accelerator.quantity.isdecimal()
            return int(one.accelerator.quantity) if known else None
    if name.startswith("cpu"):
        return 0
    named = _NAMED.fullmatch(name)
    return int(named[1] or 1) if named else None


def require_gpus(name: str, training: Training | None, listed: Iterable[JobHardwareInfo] = ()) -> None:
    """Refuse hardware whose GPUs the run would refuse. Warn if the number of GPUs is unknown.

    Args:
        name: The Hub's name of the hardware.
        training: Requirements of the training; None without training.
        listed: See `gpus_of`.

    Raises:
        ConfigError: The hardware has too few GPUs, or not the GPUs that the settings name.
    """
    if training is None:
        return
    count = gpus_of(name, listed)
    if count is None:
        logger.warning(
            "how many GPUs --hardware %r has is not known, so whether the training can start on it was not "
            "checked",
            name,
        )
        return
    from swe_trainer_trl.server.gpus import layout  # imports torch, which takes seconds

    try:
        if training.serves:
            visible = [str(number) for number in range(count)]
            layout(visible, training.server, nccl=training.nccl, processes=training.processes)
        elif training.nccl and not count:
            raise ConfigError(
                "weights go to vLLM through NCCL, which needs CUDA: train an adapter ([worker.trl.lora]) or "
                "set worker.trl.weight_sync to 'disk'"
            )
    except ConfigError as error:
        gpus = "1 GPU" if count == 1 else f"{count or 'no'} GPUs"
        raise ConfigError(
            f"--hardware {name!r} has {gpus}, and {sentence(error)}; or choose hardware with more GPUs, such "
            "as 'a10g-largex2'"
        ) from None
