"""Asynchronous client of Hugging Face: `huggingface_hub` in threads, with retries and readable errors.

Versions 1 and 2 of `huggingface_hub` use different HTTP libraries, so this module names neither. It takes the
transport's error class from the bases of the client's own HTTP error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import anyio
import anyio.to_thread
import tenacity
from huggingface_hub import HfApi, JobInfo, Sandbox, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.errors import SandboxError as HubSandboxError

from swe_core.errors import SandboxError
from swe_core.hub.errors import NO_TOKEN, Advice, Problem, one_line, problem_of, said_by
from swe_core.sandboxing.followed.failures import BrokenOff, Tail
from swe_core.system.redaction import Redactor, redact

logger = logging.getLogger(__name__)

CALLS = 48
"""Maximum number of concurrent blocking calls; more wait."""
FOLLOWING = 4096
"""Maximum number of commands followed at once. Each occupies a waiting thread."""
ATTEMPTS = 9
BACKOFF = tenacity.wait_exponential(multiplier=0.1, max=8.0) + tenacity.wait_random(0.0, 0.2)
"""Seconds between two attempts, up to half a minute in total."""
TERMINAL = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
"""Stages of a job that has ended."""

TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
"""`HTTPError` of the client's HTTP library, raised when the answer is missing or incomplete."""
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_FOUND = 404
_MAX_REASON = 400
_MAX_SAID = 64 * 1024
_LOG_LINES = 5
_LOG_SECONDS = 10.0


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a client error, or None if no answer arrived."""
    if isinstance(error, HfHubHTTPError):
        return int(error.response.status_code)
    return error.status_code if isinstance(error, HubSandboxError) else None


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, (HfHubHTTPError, HubSandboxError)):
        return status_of(error) in _TRANSIENT
    return isinstance(error, (TRANSPORT, BrokenOff))


class Client:
    """Hugging Face for one user. Tasks of one event loop may share a client.

    Attributes:
        redactor: Removes the credentials from errors and log lines, even outside of a run.

    Raises:
        SandboxError: No token is configured.
    """

    def __init__(self) -> None:
        token = get_token()
        if not token:
            raise SandboxError(NO_TOKEN.sentence("use Hugging Face Sandboxes"))
        self.api = HfApi()
        self.token = token
        self.redactor = Redactor()
        self.redact(token)
        self._calls = anyio.CapacityLimiter(CALLS)
        self._following = anyio.CapacityLimiter(FOLLOWING)

    def redact(self, secret: str, *, temporary: bool = False) -> None:
        """Keep a credential out of every error, log and record."""
        self.redactor.add(secret)
        redact(secret, temporary=temporary)

    @property
    def scheme(self) -> str:
        """The URL scheme of the service with its slashes, which is also that of ports inside."""
        return str(self.api.endpoint).partition("//")[0] + "//"

    async def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        between: Callable[[], Awaitable[None]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a blocking function of the client in a thread, and repeat it after transient failures.

        The function must be safe to repeat. If the caller is cancelled, the thread runs to its own end.

        Args:
            between: Called after each failure. An exception that it raises ends the attempts.

        Raises:
            Exception: The function's own, after the last attempt.
        """

        async def attempt() -> Any:
            return await anyio.to_thread.run_sync(
                partial(function, *args, **kwargs), limiter=self._calls, abandon_on_cancel=True
            )

        async def pause(seconds: float) -> None:
            if between is not None:
                await between()
            await anyio.sleep(seconds)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=BACKOFF,
            sleep=pause,
            before_sleep=self._log_retry,
            reraise=True,
        )
        return await retrying(attempt)

    async def unhurried(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a slow blocking function once in a thread, without retries, and wait for its end."""
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._following)

    async def follow(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        hear: Callable[[str], None],
        *,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
    ) -> tuple[int, str]:
        """Run a command to its end, without retries.

        Args:
            hear: Called in the thread with each piece of standard output.

        Returns:
            The exit code (137 if a signal killed the command) and the end of standard error.

        Raises:
            BrokenOff: The stream ended before the command.
            Exception: The client's own, if the request is refused or unanswered.
        """
        said = Tail(_MAX_REASON)
        asked = partial(
            sandbox.run,
            list(argv),
            env=env,
            stdin=stdin,
            check=False,
            capture_output=False,
            on_stdout=hear,
            on_stderr=said.add,
        )
        run = partial(_complete, asked)
        result = await anyio.to_thread.run_sync(run, limiter=self._following, abandon_on_cancel=True)
        code = 137 if result.exit_code is None else int(result.exit_code)
        return code, " ".join(said.text.split())

    async def run(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[int, str, str]:
        """Run a short command, and repeat it after transient failures. It must be safe to repeat.

        Returns:
            The exit code, and the ends of standard output and standard error.

        Raises:
            Garbled: The output is too long.
            Exception: The client's own, after the last attempt.
        """

        def asked() -> tuple[int, str, str]:
            out, err = Tail(_MAX_SAID), Tail(_MAX_SAID)
            result = _complete(
                partial(
                    sandbox.run,
                    list(argv),
                    check=False,
                    capture_output=False,
                    on_stdout=out.add,
                    on_stderr=err.add,
                )
            )
            return 137 if result.exit_code is None else int(result.exit_code), out.text, err.text

        found: tuple[int, str, str] = await self.call(asked, between=between)
        return found

    async def job(self, id: str, namespace: str) -> JobInfo | None:
        """Return the service's record of a job, or None if the job does not exist.

        Raises:
            Exception: The client's own, after the first attempt.
        """
        inspect = partial(self.api.inspect_job, job_id=id, namespace=namespace)
        try:
            return await anyio.to_thread.run_sync(inspect, limiter=self._calls, abandon_on_cancel=True)
        except HfHubHTTPError as error:
            if status_of(error) == _NOT_FOUND:
                return None
            raise

    async def last_words(self, id: str, namespace: str) -> str:
        """Return the last lines of a job's log as one line, or "" if the service does not send them soon."""

        def fetch() -> list[str]:
            return list(islice(self.api.fetch_job_logs(job_id=id, namespace=namespace), 10_000))[-_LOG_LINES:]

        lines: list[str] = []
        with anyio.move_on_after(_LOG_SECONDS):
            try:
                lines = await anyio.to_thread.run_sync(fetch, limiter=self._calls, abandon_on_cancel=True)
            except (HfHubHTTPError, TRANSPORT):
                return ""
        return self.line(" | ".join(line.strip() for line in lines if line.strip()))

    def line(self, text: str) -> str:
        """Return `text` as one shortened line without credentials."""
        return one_line(self.redactor.text(text), _MAX_REASON)

    def reason(self, error: BaseException) -> str:
        """Return the message of a client exception as one line, with the server's own text if it sent one."""
        return self.line(said_by(error))

    def problem(self, error: Exception) -> Problem:
        """Classify an error of the client."""
        return problem_of(error, said=self.reason(error), endpoint=str(self.api.endpoint))

    def explained(self, error: Exception, doing: str) -> SandboxError:
        """Return a client error as a `SandboxError` of one sentence.

        Args:
            doing: The failed action, such as "open a sandbox".
        """
        settings = f"{self.api.endpoint}/settings"
        advice: Advice = {
            "payment": f"add credits at {settings}/billing, lower sandbox.hf.max_concurrent, or choose "
            "another sandbox.hf.namespace",
            "scope": "use one with the permissions to read and start Jobs (job.read, job.write) in that "
            f"namespace, from {settings}/tokens",
            "rate": "lower run.concurrency or sandbox.hf.max_concurrent",
        }
        return SandboxError(self.problem(error).sentence(doing, advice))

    def _log_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            logger.debug("attempt %d failed: %s", state.attempt_number, self.reason(error))


def _complete(run: Callable[[], Any]) -> Any:
    """Return the result of a command, or raise `BrokenOff` if its stream is incomplete."""
    try:
        return run()
    except HubSandboxError as error:
        if error.status_code is None:
            raise BrokenOff(str(error)) from error
        raise
    except (ValueError, KeyError) as error:  # a line that was cut, or that a proxy wrote
        raise BrokenOff(f"an answer that is not the sandbox server's: {error}") from error
