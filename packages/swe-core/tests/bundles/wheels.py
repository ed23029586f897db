"""Wheels for the tests, and pip that finds nothing else."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

FILES = {
    "tiny/__init__.py": "ANSWER = 42\n",
    "tiny/tests/test_tiny.py": "not kept",
    "tiny/template.py": "{{ no Python }}",
    "tiny-1.0.data/purelib/tiny_more.py": "MORE = 1\n",
    "tiny-1.0.data/scripts/tiny": "#!python\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}


def make_wheel(folder: Path, files: Mapping[str, str] = FILES, name: str = "tiny") -> str:
    """Put a wheel into a folder, and return its lock."""
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def pip_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip take packages from a folder alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
