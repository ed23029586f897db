"""Whether this machine has a CUDA GPU, asked with the standard library alone: before anything is installed.

python tests/gpu/cards.py
"""

from __future__ import annotations

import ctypes
import sys

NONE = (
    "make test-gpu needs a CUDA GPU, and this machine's driver shows none: run it where nvidia-smi lists one"
)


def count() -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES leaves; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    found = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(found)) != 0:
        return 0
    return found.value


if __name__ == "__main__":
    sys.exit(None if count() else NONE)
