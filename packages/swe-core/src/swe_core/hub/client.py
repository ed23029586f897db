"""The Hub's client, imported only for a push or a restore, and its errors as ours."""

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
"""What a repository is used for."""
_NEEDED: dict[Use, str] = {
    "push to": "give it write access to the contents of your repositories, and name one of yours or of your "
    "organisation",
    "restore from": "give it read access to the contents of that repository",
}


class TryLater(SweError):
    """The Hub cannot be reached or is overloaded: a later attempt may succeed."""


def client(repo_id: str, use: Use = "push to") -> HfApi:
    """Return a client with the user's token.

    Raises:
        UsageError: A package is not installed, or there is no token.
    """
    doing = f"{use} {repo_id!r}"
    try:
        import pyarrow  # noqa: F401  # a push needs it too: one error names it
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise UsageError(
            f"cannot {doing} without the package {error.name!r}, which is not installed: pip install "
            "'swe-core[hub]'"
        ) from None
    if get_token() is None:
        raise UsageError(NO_TOKEN.sentence(doing))
    disable_progress_bars()  # they would disturb the display of a run
    return HfApi(library_name="swe-core", library_version=version("swe-core"))


@contextmanager
def translate_errors(repo_id: str, use: Use = "push to") -> Iterator[None]:
    """Translate the exceptions of the client into ours.

    Raises:
        TryLater: The Hub cannot be reached, or its error is temporary.
        UsageError: The token or the name is wrong.
    """
    try:
        yield
    except Exception as error:  # the client raises errors of several libraries
        problem = problem_of(error)
        if problem.kind == "unknown":  # not an error of the client
            raise
        kind = TryLater if problem.passes else UsageError
        raise kind(problem.sentence(f"{use} {repo_id!r}", {"scope": _NEEDED[use]})) from error
