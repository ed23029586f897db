"""Shared by engines that call a server over HTTP: its errors as sentences, retries, and the key."""

from __future__ import annotations

import logging
import os
import re
import string
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp
import anyio
import orjson
import tenacity
from pydantic import SecretStr

from swe_core.api.checks import Check, Finding
from swe_core.api.engine import Progress
from swe_core.builtin.bounds import loads
from swe_core.errors import (
    ConfigError,
    EngineError,
    EngineProtocolError,
    EngineRefused,
    EngineUnavailable,
    RequestRefused,
)
from swe_core.system.redaction import SHORTEST, Redactor, redact
from swe_core.system.urls import without_secrets

T = TypeVar("T")

MAX_WAIT = 60.0
"""Longest time between two attempts, seconds, also if Retry-After is longer."""
BACKOFF = tenacity.wait_exponential(multiplier=0.5, max=30.0) + tenacity.wait_random(0.0, 1.0)
"""Time between two attempts without Retry-After, seconds."""
_EXCERPT = 400
_PLACEHOLDERS = frozenset(
    {"not-needed", "not-required", "no-key-required", "sk-no-key-required", "placeholder", "dummy-key"}
)
"""Values that users give in place of a key, in lower case. They are not redacted: texts contain them."""
_TRANSIENT = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({400, 413, 422})
"""Statuses for which the agent's request is to blame."""
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
"""Codes of errors for which it is to blame too."""
_INSTEAD = {
    401: re.compile(
        "(?:incorrect|invalid) api key|api key (?:not valid|not found|expired|invalid)", re.IGNORECASE
    ),
    404: re.compile(
        "invalid model|model not exist|model_not_found|.{1,200} is not a valid model"
        "|(?:the )?model .{1,200} (?:does not exist|not found|is not found)",
        re.IGNORECASE,
    ),
}
"""Status → beginnings of messages that mean it, though the status blames the request."""
_SPENT_CODES = frozenset(
    {
        "insufficient_quota",
        "insufficient_user_quota",
        "insufficient_balance",
        "insufficient_credits",
        "insufficient_funds",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "exceeded_current_quota_error",
        "credits_exhausted",
        "payment_required",
        "Arrearage",
    }
)
"""Codes and types of errors with which providers say that an account is out of money."""
_SPENT = re.compile(
    r"(?:your )?credit balance is too low|(?:billing )?hard limit has been reached"
    r"|insufficient (?:account )?(?:balance|credits?|funds|quota)",
    re.IGNORECASE,
)
"""The same as messages, where the code is that of any bad request."""

log = logging.getLogger(__name__)


class Transient(Exception):
    """A failure after which another attempt may succeed. `retry_after` is the server's, seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def pause(backoff: tenacity.wait.wait_base, attempt: int) -> float:
    """Return the seconds to wait after an attempt, counted from 1."""
    state = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
    state.attempt_number = attempt
    return backoff(state)


async def with_retries(
    make: Callable[[], Awaitable[T]], attempts: int, backoff: tenacity.wait.wait_base, progress: Progress
) -> T:
    """Return the result of `make`, which is called up to `attempts` times while it raises `Transient`.

    Args:
        progress: Its `trouble` is the last attempt's.

    Raises:
        Transient: The last one's.
    """
    try:
        return await make()  # by itself: tenacity costs a tenth of a small request
    except Transient as error:
        made = [error]
        progress.trouble = str(error)

    async def again() -> T:
        if made:  # the first attempt, as tenacity counts them
            raise made.pop()
        try:
            result = await make()
        except Transient as error:
            progress.trouble = str(error)
            raise
        progress.trouble = None
        return result

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Transient),
        stop=tenacity.stop_after_attempt(attempts),
        wait=RetryAfterWait(backoff),
        before_sleep=_log_retry,
        sleep=anyio.sleep,
        reraise=True,
    )
    return await retrying(again)


class RetryAfterWait(tenacity.wait.wait_base):
    """Seconds until the next attempt: Retry-After up to a maximum, else `backoff`."""

    def __init__(self, backoff: tenacity.wait.wait_base) -> None:
        self._backoff = backoff

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        if isinstance(error, Transient) and error.retry_after is not None:
            return min(max(error.retry_after, 0.0), MAX_WAIT)
        return self._backoff(retry_state)


def as_final_error(error: Exception, attempts: int = 1) -> Exception:
    """Return `error` as it is raised after the last attempt."""
    if isinstance(error, Transient):
        tried = f" (tried {attempts} times)" if attempts > 1 else ""
        return EngineUnavailable(f"{error}{tried}: check that it is up, and its limits")
    return error


def key_from(variable: str) -> SecretStr | None:
    """Return the key in an environment variable; None if it is unset or empty.

    From here on the key is redacted (`swe_core.system.redaction.redact`), unless it is a placeholder.

    Raises:
        ConfigError: It cannot be sent in a header.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        return None
    if not set(value) <= set(string.ascii_letters + string.digits + string.punctuation):
        raise ConfigError(
            f"the key in the environment variable {variable!r} has characters that no key has: set it again"
        )
    if value.lower() not in _PLACEHOLDERS:
        redact(value)
    return SecretStr(value)


def key_check(variable: str) -> Check:
    """Return a check for `swe-core doctor` whether the variable is set."""

    def look() -> Finding:
        key = key_from(variable)
        if key is None:
            return Finding("info", "is not set: no key is sent")
        hidden = len(key.get_secret_value()) >= SHORTEST
        more = "" if hidden else f"; it has less than {SHORTEST} characters, so no text is searched for it"
        return Finding("ok", f"is set{more}")

    return Check(variable, "servers that want a key", look)


class ErrorTranslator:
    """Turns the errors of a server into sentences without the key in them.

    Args:
        kind: What the server is, such as "provider".
        url: Its base URL, and `base` what that must be, for who got it wrong.
    """

    def __init__(
        self, kind: str, url: str, base: str, model: str, key_variable: str, key: SecretStr | None
    ) -> None:
        self.where = f"the {kind} at {url!r}"
        self._kind = kind
        self._base = base
        self._model = model
        self._variable = key_variable
        self._has_key = key is not None
        self._redactor = Redactor()
        if key is not None:
            self._redactor.add(key.get_secret_value())

    def redact(self, text: str) -> str:
        """Return `text` without the key."""
        return self._redactor.text(text)

    def of(self, status: int, headers: Mapping[str, str], content: bytes) -> Transient | EngineError:
        """Return the error for a response whose status is not 200."""
        if 300 <= status < 400:
            target = self.redact(without_secrets(headers.get("location") or "elsewhere"))[:_EXCERPT]
            return EngineRefused(f"{self.where} redirects to {target!r} ({status}): pass that URL")
        try:
            body = loads(content)
        except ValueError:
            said = "an HTML page" if is_html(headers, content) else content.decode(errors="replace")
            return self._error(status, self._clean(said), None, _retry_after(headers))
        return self._error(status, self._clean(_text_of(body)), body, _retry_after(headers))

    def lost(self, error: Exception, timeout: float | None = None) -> str:
        """Return the sentence for an error without a response; `timeout` is the limit, seconds."""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"{self.where} accepts no connection in time"
        if isinstance(error, TimeoutError):
            return f"{self.where} sent nothing {'in time' if timeout is None else f'for {timeout:g} s'}"
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"{self.where} cannot be reached ({self.redact(str(error)) or 'connection failed'})"
        return f"{self.where} broke the connection ({type(error).__name__})"

    def in_reply(self, body: Mapping[str, Any], *, begun: bool = False) -> Transient | EngineError:
        """Return the error in a reply with status 200, or in an event of a stream.

        Args:
            begun: Whether the reply has begun: the provider took the request, so the fault is its own.
        """
        error = body["error"]
        code = str(error.get("code")) if isinstance(error, Mapping) else ""
        status = int(code) if re.fullmatch("[45][0-9]{2}", code) else 400 if code in _TOO_LONG else 500
        if begun and status in _REFUSED:
            status = 500
        return self._error(status, self._clean(_text_of(body)), body, None)

    def unbounded(self, why: object) -> EngineProtocolError:
        """Return the error for a server that sends too much; `why` says of what."""
        return EngineProtocolError(f"{self.where} sends {why}, which no reply needs: check what it is")

    def _error(
        self, status: int, said: str, body: object, retry_after: float | None
    ) -> Transient | EngineError:
        because = f": {said}" if said else ""
        if _is_spent(status, said, body):
            return EngineRefused(
                f"{self.where} says that the account has no credit or quota left ({status}){because}", 403
            )
        if status in _REFUSED:
            status = next((other for other, words in _INSTEAD.items() if words.match(said)), status)
        if status in _TRANSIENT or status >= 500:
            kind = "has too many requests" if status == 429 else "fails"
            return Transient(f"{self.where} {kind} ({status}){because}", retry_after)
        if status in _REFUSED:
            return RequestRefused(f"the {self._kind} refuses this request ({status}){because}", status)
        if status == 401 and not self._has_key:
            advice = f"wants a key (401): put it into the environment variable {self._variable!r}"
        elif status == 401:
            advice = f"refuses the key in the environment variable {self._variable!r} (401)"
        elif status == 404:
            advice = (
                f"finds no such model or path (404): check the model {self._model!r} and that the URL is "
                f"{self._base}"
            )
        else:
            advice = f"refuses access ({status})"
        return EngineRefused(f"{self.where} {advice}{because}", status)

    def _clean(self, text: str) -> str:
        """Return an excerpt, redacted before it is cut: half a key would not be found."""
        return " ".join(self.redact(text).split())[:_EXCERPT]


def is_html(headers: Mapping[str, str], content: bytes) -> bool:
    """Return whether a response is a web page, so that the URL is probably not that of an API."""
    return "html" in headers.get("content-type", "") or content.lstrip()[:1] == b"<"


def _text_of(body: Any, levels: int = 8) -> str:
    """Return the message of an error body, in any of the shapes that providers use."""
    if isinstance(body, Mapping) and levels:
        for key in ("error", "message", "detail"):
            if body.get(key):
                code = body.get("code")
                text = _text_of(body[key], levels - 1)
                return f"{text} [{code}]" if isinstance(code, str) and code not in text else text
    try:
        return body if isinstance(body, str) else orjson.dumps(body).decode()
    except orjson.JSONEncodeError:  # too many levels
        return ""


def _is_spent(status: int, said: str, body: object) -> bool:
    """Return whether an error says that the account is out of money. A message that may quote the agent's
    request counts by its beginning."""
    error = body.get("error") if isinstance(body, Mapping) else None
    words = [one.get(key) for one in (body, error) if isinstance(one, Mapping) for key in ("code", "type")]
    return (
        status == 402
        or any(word in _SPENT_CODES for word in words if isinstance(word, str))
        or (status == 429 and any(code in said for code in _SPENT_CODES))
        or _SPENT.match(said) is not None
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks for; None where it asks for none, or for no time at all."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):  # absent, or no date, or one without a zone
            return None
    return seconds if seconds > 0 else None


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("%s; attempt %d follows in %.1f s", error, state.attempt_number + 1, state.upcoming_sleep)
