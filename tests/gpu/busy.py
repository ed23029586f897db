"""How busy GPUs are during a run, by NVML."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from statistics import mean

_EVERY = 0.2
"""Seconds between two samples; NVML itself reports the share of its last period, 1/6 to 1 s."""


class Busy:
    """A context manager whose thread samples all GPUs. Without NVML it has no samples.

    `samples` holds time (of `time.time`), busy share (%) and used memory (bytes) of each GPU.
    """

    def __init__(self) -> None:
        self.samples: list[tuple[float, list[int], list[int]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="busy", daemon=True)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def share(self, begin: float, end: float) -> list[float]:
        """Return the mean busy share of each GPU between two times, in percent; empty without samples."""
        shares = [share for at, share, _ in self.samples if begin <= at <= end]
        return [round(mean(card), 1) for card in zip(*shares, strict=True)]

    def peak_gb(self) -> list[float]:
        """Return the most memory that was used of each GPU, in 10⁹ bytes; empty without samples."""
        return [round(max(card) / 1e9, 2) for card in zip(*(used for *_, used in self.samples), strict=True)]

    def _sample(self) -> None:
        if find_spec("pynvml") is None:
            return
        import pynvml

        with suppress(pynvml.NVMLError):  # no driver, or a card that does not say
            pynvml.nvmlInit()
            cards = [pynvml.nvmlDeviceGetHandleByIndex(card) for card in range(pynvml.nvmlDeviceGetCount())]
            while not self._over.wait(_EVERY):
                shares = [int(pynvml.nvmlDeviceGetUtilizationRates(card).gpu) for card in cards]
                used = [int(pynvml.nvmlDeviceGetMemoryInfo(card).used) for card in cards]
                self.samples.append((time.time(), shares, used))
            pynvml.nvmlShutdown()
