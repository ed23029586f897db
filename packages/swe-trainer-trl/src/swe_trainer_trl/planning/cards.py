"""The GPUs and the memory that a training may use: those of this machine, or those of `--hardware`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_core.errors import ConfigError
from swe_core.system.plural import counted

GIB = 1 << 30
_HARDWARE = re.compile(r"(\d{1,3})\s*x\s*(\d{1,4}(?:\.\d+)?)\s*(?:GB|GiB|G)?", re.IGNORECASE)
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
_ASK = 20.0
"""Timeout of nvidia-smi, in seconds."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Cards:
    """What a training may use.

    Args:
        names: GPUs, as names in CUDA_VISIBLE_DEVICES; empty for a training on the CPU.
        memory: GPU → its memory [bytes]. A GPU whose memory is unknown is missing.
        ram: Memory of the machine [bytes]; None if unknown.
    """

    names: tuple[str, ...]
    memory: Mapping[str, int]
    ram: int | None = None

    @property
    def smallest(self) -> int | None:
        """Return the memory of the smallest GPU [bytes]; None if one is unknown, or there is none."""
        known = [self.memory.get(name) for name in self.names]
        return min((one for one in known if one is not None), default=None) if None not in known else None

    def __str__(self) -> str:
        """Return `8 GPUs of 80.0 GiB`, or `no GPU, 23.4 GiB of memory`."""
        if not self.names:
            return "no GPU" + (f", {self.ram / GIB:.1f} GiB of memory" if self.ram else "")
        size = f" of {self.smallest / GIB:.1f} GiB" if self.smallest else ", whose memory is unknown"
        return counted(len(self.names), "GPU") + size


def of_hardware(text: str) -> Cards:
    """Return the GPUs that a text such as `8x80GB` describes. A GB of a vendor is taken as a GiB.

    Raises:
        ConfigError: The text has another form.
    """
    found = _HARDWARE.fullmatch(text.strip())
    count, size = (int(found[1]), float(found[2])) if found else (0, 0.0)
    if not count or not size:
        raise ConfigError(
            f"worker.trl.hardware is {text!r}, but must be a number of GPUs and the memory of each, such as "
            "'8x80GB'"
        )
    names = tuple(str(number) for number in range(count))
    return Cards(names, dict.fromkeys(names, int(size * GIB)))


def of_this_machine(visible: tuple[str, ...]) -> Cards:
    """Return what this machine has. CUDA is not initialised.

    Args:
        visible: The GPUs that this process may use.
    """
    return Cards(visible, _memory(visible) if visible else {}, _ram())


def _memory(visible: tuple[str, ...]) -> dict[str, int]:
    """Return GPU → memory [bytes], as nvidia-smi lists it; empty without nvidia-smi."""
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_ASK, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    found = {}
    for line in listed.splitlines():
        index, uuid, size = (part.strip() for part in line.split(","))
        for name in visible:
            if size.isdecimal() and (name == index or (name.startswith("GPU-") and uuid.startswith(name))):
                found[name] = int(size) << 20
    return found


def _ram() -> int | None:
    """Return the memory of this machine, or of its control group if that is less [bytes]."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not on every system
        return None
    try:
        limit = _CGROUP.read_text().strip()
    except OSError:
        limit = "max"
    return min(total, int(limit)) if limit.isdecimal() else total
