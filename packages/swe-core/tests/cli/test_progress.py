"""The progress of a run without a terminal: one line for each start, phase and end."""

from __future__ import annotations

import re

import pytest

from swe_core.api.records import Failure
from swe_core.cli.progress import PlainProgress
from swe_testing.records import make_request, make_rollout, make_task


def test_equal_error_is_printed_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    requests = [make_request(make_task(f"t-{number}")) for number in range(4)]
    progress = PlainProgress(requests)
    for request in requests:
        progress.started(request)
    messages = ["the key of t-0 is wrong", "the key of t-1 is wrong", "it is down", "the key of t-3 is wrong"]
    for request, message in zip(requests, messages, strict=True):
        failure = Failure(boundary="engine", type="EngineRefused", message=message)
        progress.finished(make_rollout(request.task.instance_id, outcome="error", failure=failure))
    said = re.findall(r"error \((.*)\), 0 turns", capsys.readouterr().err)
    assert said == [
        "engine: the key of t-0 is wrong",
        "engine: same as t-0-0, 2 times",
        "engine: it is down",
        "engine: same as t-0-0, 3 times",
    ]
