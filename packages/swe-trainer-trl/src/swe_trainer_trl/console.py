"""What a training prints: a line for each step, and none of what its libraries say, which goes to a file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Mapping
from logging.handlers import MemoryHandler
from pathlib import Path

from swe_core.system.redaction import RedactingFormatter, Redactor

LIBRARIES_LOG = "libraries.log"
"""Name in the run directory."""


_KEPT = 10_000
"""Messages that are kept until the run directory exists."""


class LibraryMessages:
    """A context manager that keeps messages of libraries from the console: log records, warnings, and bars.

    Errors are shown too. With `--verbose`, under which swe-core logs all that it does, everything is.

    Args:
        ours: Packages whose log records the console shows.
        redactor: Replaces secrets in the file.
    """

    def __init__(self, ours: Collection[str], redactor: Redactor) -> None:
        self._ours = {"swe_core", *ours}
        self._formatter = RedactingFormatter(redactor, "%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._first = MemoryHandler(_KEPT, flushLevel=sys.maxsize, flushOnClose=False)
        self._file: logging.FileHandler | None = None
        self._shown: list[logging.Handler] = []

    def __enter__(self) -> LibraryMessages:
        root = logging.getLogger()
        if logging.getLogger("swe_core").isEnabledFor(logging.DEBUG):
            return self
        self._shown = list(root.handlers)
        for handler in self._shown:
            handler.addFilter(self._is_shown)
        root.addHandler(self._first)
        logging.captureWarnings(True)
        os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # read at its import: no handlers of its own
        return self

    def imported(self) -> None:
        """Do the rest, once libraries were imported, some of which have handlers and bars of their own."""
        if not self._shown:
            return
        loggers = logging.getLogger().manager.loggerDict
        for name, library in loggers.items():
            if isinstance(library, logging.Logger) and name.partition(".")[0] not in self._ours:
                for handler in list(library.handlers):
                    if isinstance(handler, logging.StreamHandler) and handler.stream in (
                        sys.stdout,
                        sys.stderr,
                    ):
                        library.removeHandler(handler)
                        library.propagate = True
        if "transformers" in sys.modules:
            from transformers.utils.logging import disable_progress_bar

            disable_progress_bar()

    def write_to(self, directory: Path) -> None:
        """Append what was said so far, and what follows, to `LIBRARIES_LOG` in `directory`."""
        if self._shown:
            self._file = logging.FileHandler(directory / LIBRARIES_LOG, encoding="utf-8", delay=True)
            self._file.setFormatter(self._formatter)
            self._file.addFilter(lambda record: not self._is_ours(record))
            self._first.setTarget(self._file)
            self._first.flush()
            logging.getLogger().removeHandler(self._first)
            logging.getLogger().addHandler(self._file)

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        for handler in self._shown:
            handler.removeFilter(self._is_shown)
        for own in (self._first, self._file):
            if own is not None:
                root.removeHandler(own)
                own.close()
        if self._shown:
            logging.captureWarnings(False)

    def _is_ours(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in self._ours

    def _is_shown(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or self._is_ours(record)


def step_line(step: int, values: Mapping[str, float], *, steps: int | None, version: int) -> str:
    """Return the line of a step; what was not logged is left out.

    Args:
        values: What TRL logged, by its names.
        steps: Steps of the training; None if its groups decide its length.
        version: Version of the policy that the step has made.
    """
    words = [f"step {step}" if steps is None else f"step {step}/{steps}"]
    for name, word, form in _SHOWN:
        if name in values:
            words.append(f"{word} {values[name]:{form}}")
    if "perf/step_s" in values:
        words.append(f"{values['perf/step_s']:.1f} s")
    if "perf/rollout_wait_s" in values:
        words.append(f"waited {values['perf/rollout_wait_s']:.1f} s")
    return "  ".join([*words, f"version {version}"])


_SHOWN = (
    ("batch/reward_mean", "reward", ".2f"),
    ("loss", "loss", ".3f"),
    ("grad_norm", "grad", ".2f"),
    ("batch/rollouts_per_step", "rollouts", ",.0f"),
    ("batch/trained_tokens_per_step", "tokens", ",.0f"),
    ("batch/staleness_mean", "staleness", ".1f"),
)
"""Names of metrics, their words, and the format of their values."""
