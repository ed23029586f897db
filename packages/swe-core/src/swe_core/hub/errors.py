"""The exceptions of `huggingface_hub` as sentences, the same for all packages that call Hugging Face.

The caller decides which of our exceptions a sentence becomes. The client is imported only after an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

Kind = Literal[
    "no token",
    "token",
    "scope",
    "missing",
    "payment",
    "rate",
    "taken",
    "changed",
    "name",
    "server",
    "unreachable",
    "refused",
    "unknown",
]
"""What went wrong, in the order of the names: there is no token; the token is invalid (401); it lacks a
permission (403); the thing does not exist or is hidden (404); the account's quota or credit is used up (402);
too many requests (429); the repository exists (409 on creation); someone else has changed it (409, 412); the
name is no repository's; the service failed (5xx, 408, 425); it did not answer; it answered any other status;
the exception is not the client's."""

Advice = Mapping[Kind, str]
"""Remedies by kind, which replace `Problem.remedy` where the caller knows a better one."""

_TEMPORARY: frozenset[Kind] = frozenset({"rate", "changed", "server", "unreachable"})
_MAX_QUOTE = 300
"""Length of the longest quotation from an exception or a service, characters."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of Hugging Face or of its client.

    Args:
        kind: Decides which exception the caller raises.
        why: The first half of a sentence, with a quotation from the service.
        remedy: The second half: what to do; empty if unknown.
    """

    kind: Kind
    why: str
    remedy: str = ""

    @property
    def passes(self) -> bool:
        """Return whether a later attempt may succeed."""
        return self.kind in _TEMPORARY

    def sentence(self, doing: str, advice: Advice | None = None) -> str:
        """Return the error as one sentence.

        Args:
            doing: The action that failed, such as "push to 'owner/name'".
            advice: Remedies that replace this problem's own.
        """
        remedy = (advice or {}).get(self.kind, self.remedy)
        return f"cannot {doing}: {self.why}" + (f"; {remedy}" if remedy else "")


NO_TOKEN = Problem(
    "no token", "there is no Hugging Face token", "set HF_TOKEN, or log in with `hf auth login`"
)


def problem_of(error: Exception, *, said: str | None = None, endpoint: str | None = None) -> Problem:
    """Return the problem that an exception of the client stands for.

    Args:
        said: The message in one line, if the caller has removed secrets from it; default is `said_by`.
        endpoint: URL of the service; default is the client's own.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # that of the client's own HTTP library, which changed with version 2
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
    )

    words = said or one_line(said_by(error), _MAX_QUOTE)
    where = endpoint or constants.ENDPOINT
    if isinstance(error, HfHubHTTPError):
        return _answered(error, words, where)
    if isinstance(error, LocalTokenNotFoundError):
        return NO_TOKEN
    if isinstance(error, HFValidationError):
        return Problem("name", f"that is no name of a repository ({words})", "name it as OWNER/NAME")
    if isinstance(error, (HTTPError, ConnectionError, TimeoutError, LocalEntryNotFoundError)):
        return Problem(
            "unreachable",
            f"Hugging Face at {where!r} does not answer ({words})",
            "check the network, and HF_ENDPOINT and HF_HUB_OFFLINE if they are set",
        )
    return Problem("unknown", words)


def said_by(error: BaseException) -> str:
    """Return the message of an exception: the service's own if there is one."""
    from huggingface_hub.errors import HfHubHTTPError

    own = error.server_message if isinstance(error, HfHubHTTPError) else None
    return own or str(error) or type(error).__name__


def one_line(text: str, most: int) -> str:
    """Return `text` in one line of at most `most` characters, cut within a word if necessary."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _answered(error: HfHubHTTPError, words: str, where: str) -> Problem:
    response = error.response
    status = int(response.status_code)
    if status == 404 or response.headers.get("X-Error-Code") == "RepoNotFound":
        return Problem(
            "missing",
            f"Hugging Face has nothing of that name, or the token may not see it ({words})",
            "check the name, and what the token permits",
        )
    if status in (409, 412):
        if str(response.url).endswith("/api/repos/create"):
            return Problem("taken", f"the name is taken ({words})", "choose another")
        return Problem("changed", f"another client changed it meanwhile ({words})", "try again")
    answered = f"Hugging Face at {where!r} answered {status} ({words})"
    if status >= 500 or status in (408, 425):
        return Problem("server", answered, "try again later")
    match status:
        case 401:
            return Problem(
                "token",
                f"Hugging Face does not accept the token ({words})",
                f"make one at {where}/settings/tokens, and set HF_TOKEN to it or use `hf auth login`",
            )
        case 402:
            return Problem(
                "payment",
                f"Hugging Face refuses it for the account's limits ({words})",
                f"see {where}/settings/billing",
            )
        case 403:
            return Problem(
                "scope",
                f"the Hugging Face token may not do that ({words})",
                f"give it the permission at {where}/settings/tokens, or use another",
            )
        case 429:
            return Problem("rate", f"Hugging Face limits how often it is asked ({words})", "try again later")
    return Problem("refused", answered)
