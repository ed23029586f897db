"""A local Hugging Face in a process of its own, for benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx
from _common import IMAGE


class LocalHF:
    """A context manager; its sandboxes are made by bubblewrap, and the demo's image is one that it has.

    Attributes:
        environment: What points a client to it.
    """

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "swe_testing.hf", IMAGE]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.environment: dict[str, str] = self._read()
        self._client = httpx.Client(
            base_url=self.environment["HF_ENDPOINT"],
            headers={"Authorization": f"Bearer {self.environment['HF_TOKEN']}"},
            timeout=60,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.stdout.close()
        self._process.wait()

    def calls(self, **faults: object) -> Counter[str]:
        """Route → how often it was called since this was asked last; sets faults for what comes."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(faults) + "\n")
            self._process.stdin.flush()
        return Counter(self._read())

    def running(self) -> int:
        """How many jobs run now. This is a call, too."""
        return len(self._client.get("/api/jobs/tester", params={"stage": "RUNNING"}).json())

    def _read(self) -> Any:
        return json.loads(self._process.stdout.readline() if self._process.stdout is not None else "")
