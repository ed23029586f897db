"""Read the rows of a data set, on the Hub or in a local directory, with the library `datasets`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swe_core.errors import TaskError, sentence

KNOWN = (
    "SWE-Gym/SWE-Gym",
    "SWE-Gym/SWE-Gym-Lite",
    "SWE-bench/SWE-bench",
    "SWE-bench/SWE-bench_Lite",
    "SWE-bench/SWE-bench_Verified",
    "SWE-bench/SWE-smith",
    "SWE-bench/SWE-smith-py",
    "nebius/SWE-rebench",
    "nebius/SWE-rebench-V2",
    "nebius/SWE-rebench-leaderboard",
    "R2E-Gym/R2E-Gym-Lite",
    "R2E-Gym/R2E-Gym-Subset",
    "R2E-Gym/R2E-Gym-V1",
)
"""Known data sets, to suggest a similar name."""

_PREFERRED = ("test", "train")


def load_rows(name: str, split: str | None, *, local: bool) -> tuple[str, Iterable[Mapping[str, Any]]]:
    """Return the name and the rows of one split of a data set.

    Args:
        name: OWNER/NAME on the Hub, or a directory.
        split: Default is the only one, else `test`, else `train`.

    Raises:
        TaskError: The library is missing, the Hub cannot be reached, or there is no such data set or split.
    """
    what = f"the directory {name!r}" if local else f"the data set {name!r}"
    try:
        import datasets
        from datasets.exceptions import DatasetNotFoundError
    except ImportError:
        raise TaskError(f"{what} is read by the library datasets: pip install 'swe-core[datasets]'") from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        chosen = _split(datasets.get_dataset_split_names(name), split, what)
        return chosen, datasets.load_dataset(name, split=chosen)
    except TaskError:
        raise
    except DatasetNotFoundError as error:
        if local:
            raise TaskError(f"{what} holds no data set: {sentence(error)}") from None
        close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]!r}? " if close and close[0] != name else ""
        raise TaskError(
            f"{what} is not on the Hub, or this machine may not read it: {hint}A private or gated one needs "
            "`hf auth login`"
        ) from None
    except ConnectionError as error:
        raise TaskError(
            f"{what} cannot be had, for the Hub cannot be reached ({error}): check the network, HF_ENDPOINT "
            "and HF_HUB_OFFLINE, or pass a local file"
        ) from None
    except Exception as error:  # a data set can make the library raise any error
        raise TaskError(f"{what} cannot be read: {sentence(error)}") from error


def _split(names: Sequence[str], wanted: str | None, what: str) -> str:
    listed = ", ".join(names)
    if wanted is not None:
        if wanted in names:
            return wanted
        close = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise TaskError(f"{what} has no split {wanted!r}: {hint}There are: {listed}")
    if len(names) == 1:
        return names[0]
    for name in _PREFERRED:
        if name in names:
            return name
    raise TaskError(f"{what} has several splits: choose one with --split ({listed})")
