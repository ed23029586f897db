"""What a training prints: a line for each step, and what libraries say goes to a file."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from swe_core.system.redaction import Redactor
from swe_trainer_trl.console import LIBRARIES_LOG, LibraryMessages, step_line


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """The only handler of the root logger, as `swe-core run` has one."""
    text, root = StringIO(), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(text)])
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    package, before = logging.getLogger("swe_core"), logging.getLogger("swe_core").level
    package.setLevel(logging.INFO)
    yield text
    package.setLevel(before)


def say() -> None:
    logging.getLogger("swe_core.run").info("ours")
    logging.getLogger("my_plugin.agent").warning("a plugin's")
    logging.getLogger("library.part").warning("a library's, with s3cret-value")
    logging.getLogger("library").error("an error")
    warnings.warn("a warning of Python's", stacklevel=1)


def test_libraries_are_kept_from_the_console(console: StringIO, tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("s3cret-value")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with LibraryMessages(["my_plugin"], redactor) as messages:
            say()  # the run directory does not exist yet
            messages.write_to(tmp_path)
            logging.getLogger("another").warning("later")
        logging.getLogger("another").warning("at the end")
    assert console.getvalue().splitlines() == ["ours", "a plugin's", "an error", "at the end"]
    text = (tmp_path / LIBRARIES_LOG).read_text()
    assert "WARNING library.part: a library's, with " in text
    for there in ("an error", "a warning of Python's", "WARNING another: later"):
        assert there in text
    for absent in ("s3cret-value", "ours", "plugin", "at the end"):
        assert absent not in text


def test_handler_of_a_library_is_taken_from_it(console: StringIO, tmp_path: Path) -> None:
    """As torch, transformers and vLLM have one."""
    library = logging.getLogger("library")
    library.addHandler(logging.StreamHandler(sys.stderr))
    library.propagate = False
    with LibraryMessages([], Redactor()) as messages:
        messages.imported()
        messages.write_to(tmp_path)
        library.warning("a library's")
    assert library.handlers == []
    assert console.getvalue() == ""
    assert "a library's" in (tmp_path / LIBRARIES_LOG).read_text()


def test_verbose_console_has_everything(console: StringIO, tmp_path: Path) -> None:
    logging.getLogger("swe_core").setLevel(logging.DEBUG)
    with LibraryMessages(["my_plugin"], Redactor()) as messages:
        messages.write_to(tmp_path)
        logging.getLogger("library").warning("a library's")
    assert "a library's" in console.getvalue()
    assert not (tmp_path / LIBRARIES_LOG).exists()


def test_step_has_a_line() -> None:
    values = {
        **{"loss": -0.0123, "grad_norm": 0.8, "batch/reward_mean": 0.43, "batch/rollouts_per_step": 32.0},
        **{"batch/trained_tokens_per_step": 51204.0, "batch/staleness_mean": 0.6, "perf/step_s": 14.21},
        **{"perf/rollout_wait_s": 3.1, "ratio": 1.0},
    }
    assert step_line(12, values, steps=100, version=13) == (
        "step 12/100  reward 0.43  loss -0.012  grad 0.80  rollouts 32  tokens 51,204  staleness 0.6  "
        "14.2 s  waited 3.1 s  version 13"
    )
    assert step_line(1, {"loss": 0.0}, steps=None, version=2) == "step 1  loss 0.000  version 2"
