"""The Hub's client, imported only when somebody pushes or restores, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from swe_core.errors import SweError, UsageError
from swe_core.hub.errors import NO_TOKEN, problem_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Use = Literal["push to", "restore from"]
"""What a repository is asked for."""
_NEEDED: dict[Use, str] = {
    "push to": "give it write access to the contents of your repositories, and name one of yours or of your "
    "organisation",
    "restore from": "give it read access to the contents of that repository",
}


class TryLater(SweError):
    """The Hub cannot be reached or has no time: the same may succeed later."""


def client(repo_id: str, use: Use = "push to") -> HfApi:
    """A client with the user's own token.

    Raises:
        UsageError: What it needs is not installed, or there is no token.
    """
    doing = f"{use} {repo_id!r}"
    try:
        import pyarrow  # noqa: F401  # what else a push needs is told at the same time
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise UsageError(
            f"cannot {doing} without the package {error.name!r}, which is not installed: pip install "
            "'swe-core[hub]'"
        ) from None
    if get_token() is None:
        raise UsageError(NO_TOKEN.sentence(doing))
    disable_progress_bars()  # they would be drawn across the display of a run
    return HfApi(library_name="swe-core", library_version=version("swe-core"))


@contextmanager
def translate_errors(repo_id: str, use: Use = "push to") -> Iterator[None]:
    """What the client raises as one of our sentences.

    Raises:
        TryLater: The Hub cannot be reached, or answered what it may not answer the next time.
        UsageError: The token or the name is wrong.
    """
    try:
        yield
    except Exception as error:  # the client raises errors of several libraries
        problem = problem_of(error)
        if problem.kind == "unknown":  # none of the client's
            raise
        kind = TryLater if problem.passes else UsageError
        raise kind(problem.sentence(f"{use} {repo_id!r}", {"scope": _NEEDED[use]})) from error
