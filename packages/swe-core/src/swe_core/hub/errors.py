"""What `huggingface_hub` raises, as sentences: one wording, for whoever asks Hugging Face for something.

Which of our exceptions it becomes is the caller's to say. Nothing heavy is imported before an error is there.
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
"""What went wrong: there is no token; it is not accepted (401); it lacks a permission (403); there is no such
thing, or it may not be seen (404); the account's quota or credit (402); too many requests (429); a repository
of that name exists (409 of a creation); another client changed it meanwhile (409, 412); what was given is no
name of a repository; the service failed (5xx, 408, 425); there was no answer; any other status; an exception
that is none of the client's."""

Advice = Mapping[Kind, str]
"""What to do about some kinds, where the caller knows more than `Problem.remedy` says."""

_PASSING: frozenset[Kind] = frozenset({"rate", "changed", "server", "unreachable"})
_MOST = 300
"""Characters of somebody else's words in a sentence of ours."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong.

    Args:
        kind: For the caller to choose an exception by.
        why: Half a sentence, with the service's own words.
        remedy: The other half: what to do; empty where nobody knows.
    """

    kind: Kind
    why: str
    remedy: str = ""

    @property
    def passes(self) -> bool:
        """Whether the same may succeed later."""
        return self.kind in _PASSING

    def sentence(self, doing: str, advice: Advice | None = None) -> str:
        """One sentence.

        Args:
            doing: What could not be done, such as "push to 'owner/name'".
        """
        remedy = (advice or {}).get(self.kind, self.remedy)
        return f"cannot {doing}: {self.why}" + (f"; {remedy}" if remedy else "")


NO_TOKEN = Problem(
    "no token", "there is no Hugging Face token", "set HF_TOKEN, or log in with `hf auth login`"
)


def problem_of(error: Exception, *, said: str | None = None, endpoint: str | None = None) -> Problem:
    """What an exception of the client means.

    Args:
        said: Its words in one line, where the caller has taken secrets out of them; default is `said_by`.
        endpoint: URL of the service that was asked; default is the client's own.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # that of the client's own HTTP library, which changed with version 2
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
    )

    words = said or one_line(said_by(error), _MOST)
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
    """The words of an exception: the service's own where it has any."""
    from huggingface_hub.errors import HfHubHTTPError

    own = error.server_message if isinstance(error, HfHubHTTPError) else None
    return own or str(error) or type(error).__name__


def one_line(text: str, most: int) -> str:
    """In one line of `most` characters, cut within a word if need be: a body of JSON may be one long word."""
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
