"""Gate: one rollout's access to the engine. It counts, records, and ends with the rollout."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import orjson
from anyio.abc import TaskGroup

from swe_core.api.agent import DialectName
from swe_core.api.chain import Chain
from swe_core.api.contracts import complete
from swe_core.api.deltas import join
from swe_core.api.engine import ChatRequest, Completion, Delta, Engine, EngineSession, Sampled, Usage
from swe_core.api.limits import Budgets
from swe_core.api.records import SUMMARY, Budget, Ledger, Turn, TurnTokens
from swe_core.api.request_diff import RequestDiff
from swe_core.errors import (
    AgentError,
    ContextOverflow,
    EngineError,
    EngineProtocolError,
    EngineUnavailable,
    LedgerError,
    RequestRefused,
    sentence,
)
from swe_core.interception.budgets import RemainingBudget
from swe_core.interception.calls import OVER, Call, Calls, RolloutOver
from swe_core.interception.dialects.base import ParsedRequest
from swe_core.interception.host_tools import Tools
from swe_core.interception.own_calls import OwnCalls
from swe_core.interception.redaction import redacted
from swe_core.system.callers import TICK, boot_time
from swe_core.system.detached import apart
from swe_core.system.redaction import Redactor

if TYPE_CHECKING:
    from swe_core.interception.metrics import Metrics
    from swe_core.tokens.foreign import Start
    from swe_core.tokens.token_log import TokenLog

GONE = "the agent closed the connection before the reply was complete"
SUBMITTED = "the agent has submitted its work, so this rollout answers no more calls"
SPENT = "The budget of this run is spent. Stop now."
"""Answer to a call after a budget is spent. Agents retry an empty reply, and end on a text without a call."""
SPENT_OVER = "the budget of this rollout is spent, so it answers no more calls"
_SPENT_ANSWERS = 8
"""Calls that get `SPENT`: enough for sub-agents. An agent that goes on ends on an error."""
_BEGINNING = "swe_tok_"
"""A prefix of every token: the redactor finds the tokens of all rollouts with one search."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a call ended: the answer for its listeners, the sampled tokens, and why they are not trained."""

    outcome: Completion | Exception
    sampled: Sampled | None
    dropped: str | None = None
    error: str | None = None


class Gate:
    """The LLM endpoint of one rollout.

    Attributes:
        key: Names the rollout in its URLs. It is random: the agent learns no task and no attempt from it.
        path: The agent's base URL is the server's URL as seen from inside + `path`.
        exit_path: Path of the request by which the agent submits its work.
        token: The rollout's bearer token.
        tools: The host tools that the agent may call.
        turns: Number of recorded calls, failed ones included.
        usage: Tokens of all calls.
        finish_reason: Why the last reply ended, auxiliary calls aside; None before the first.
        failure: The first error of the engine, or of the agent's `auxiliary` or `summary`, that ends the
            rollout; None until then. Afterwards no call reaches the engine. `RequestRefused` ends no rollout.
        trouble: Why the engine was trying a call again when the agent left it; None where a later call has
            a reply.
        submitted: Whether the agent submitted its work.
        called: Set by the first call.
        refusals: Number of requests that were invalid in their dialect.
        refusal: The error of the last invalid request.
        spent_answers: Number of calls that were told that the budget is spent, or refused for it.
    """

    def __init__(
        self,
        engine: Engine,
        session: EngineSession,
        on_turn: Callable[[Turn], None],
        on_undelivered: Callable[[Sequence[int]], None],
        on_foreign: Callable[[Sequence[int]], None] | None,
        tasks: TaskGroup,
        budgets: Budgets,
        metrics: Metrics,
        redactor: Redactor,
        auxiliary: Callable[[ChatRequest], str | None],
        summary: Callable[[ChatRequest], bool],
        summaries: bool,
        own: Callable[[ChatRequest], bool],
    ) -> None:
        self.engine = engine
        self.session = session
        self.key = secrets.token_hex(8)
        root = f"/rollout/{self.key}"
        self.path = f"{root}/v1"
        self.exit_path = f"{root}/exit"
        self.token = _BEGINNING + secrets.token_urlsafe(32)
        self.tools = Tools()
        self.turns = 0
        self.usage = Usage()
        self.finish_reason: str | None = None
        self._token_log: TokenLog | None = None  # made with the first tokens: it needs numpy
        self.failure: EngineError | AgentError | None = None
        self.trouble: str | None = None
        self.submitted = False
        self.called = anyio.Event()
        self.refusals = 0
        self.refusal = ""
        self.spent_answers = 0
        self._on_turn = on_turn
        self._on_undelivered = on_undelivered
        self._on_foreign = on_foreign
        self._own = own
        self._own_calls = OwnCalls()
        self._starts: dict[int, Start] = {}
        self._continued: set[int | None] = set()
        self._answered = False
        self._births = [(-math.inf, math.inf)]  # when the agent's processes were born
        self._late: set[int] = set()
        self._excused: set[int | None] = set()
        self._lives = False  # whether a process that began before the first answer goes on after it
        self._tasks = tasks
        self._allowance = RemainingBudget(budgets)
        self._counting = anyio.Lock()
        self._max_context = budgets.context
        self._metrics = metrics
        self._redactor = redactor
        self._auxiliary = auxiliary
        self._summary = summary
        self._summaries = summaries
        self._memories: dict[str, dict[str, Any]] = {}
        self._diff = RequestDiff()
        self._calls = Calls()
        self._in_flight: set[Call] = set()
        self._undelivered: dict[int, Call] = {}
        self._failed = anyio.Event()
        self._ending = anyio.Event()
        self._closing: anyio.Event | None = None
        self._spent: Budget | None = None
        self._overflowed = False

    @property
    def ended_by(self) -> Budget | None:
        """Return the budget that stopped the agent."""
        return self._spent or ("context" if self._overflowed else None)

    @property
    def context(self) -> int | None:
        """Return the tokens that prompt and completion may have together; None where unknown."""
        known = (self.engine.context, self._max_context)
        return min((tokens for tokens in known if tokens is not None), default=None)

    def start(self) -> None:
        """Start the wall budget: the agent starts."""
        self._allowance.start()

    def start_again(self) -> None:
        """Note that the agent's process starts again, so that it begins after the first answer."""
        if self._births[-1][1] < math.inf:
            self._births.append((boot_time(), math.inf))

    def _speak(self) -> None:
        """Note that the policy says something: what begins from now on may be its work."""
        if self._births[-1][1] == math.inf:
            self._births[-1] = self._births[-1][0], boot_time()

    async def failed(self) -> EngineError | AgentError:
        """Wait until the rollout cannot continue, and return the error."""
        await self._failed.wait()
        if self.failure is None:
            raise RuntimeError("the gate has failed without a failure")
        return self.failure

    async def ending(self) -> None:
        """Wait until a budget has run out or the agent has submitted its work."""
        with anyio.CancelScope(deadline=self._allowance.deadline) as clock:
            await self._ending.wait()
        if clock.cancelled_caught:
            self._run_out("wall")

    def fail(self, failure: EngineError | AgentError) -> None:
        """End the rollout with `failure`; the first failure counts."""
        if self.failure is None:
            self.failure = failure
            self._failed.set()

    def submit(self) -> None:
        """Note that the agent has submitted its work: refuse further calls."""
        self.submitted = True
        self._ending.set()

    def memory(self, dialect: str) -> dict[str, Any]:
        """Return what a dialect keeps of this rollout."""
        return self._memories.setdefault(dialect, {})

    async def count_tokens(self, asked: ParsedRequest) -> int:
        """Return the tokens of a prompt, an estimate where the engine cannot count them.

        Raises:
            EngineError: The rollout's first failure, or the engine refuses the request.
            RolloutOver: The rollout has ended.
        """
        request = ChatRequest(asked.body, asked.messages, asked.tools)
        async with self._counting:  # counts cost no budget, but threads that all rollouts share
            self._check()
            work = partial(self.engine.count_tokens, request, self.session)
            counted = await apart(work, "a count of the engine's tokens")
        return counted if counted is not None else _estimate(asked)

    def reject(self, why: str) -> None:
        """Count an invalid request."""
        self.refusals += 1
        self.refusal = why

    def overflow(self, why: ContextOverflow) -> None:
        """Count a request that cannot fit the context by its size alone.

        Raises:
            EngineError: The rollout's first failure.
            RolloutOver: The rollout has ended.
        """
        self._check()
        self._overflowed = True
        self.reject(sentence(why))

    def submit_request(
        self,
        key: bytes,
        asked: ParsedRequest,
        *,
        retried: bool,
        dialect: DialectName = "chat",
        born: float | None = None,
    ) -> Call:
        """Return the call that answers a request: a new call, or the one that the request repeats.

        Args:
            key: Equal for requests of the same bytes.
            retried: Whether the client marks the request as a retry.
            born: When the process was born that asks, in `boot_time`; None where unknown.

        Raises:
            EngineError: The rollout's first failure.
            AgentError: The agent's `auxiliary`, `summary` or `own` failed.
            RolloutOver: The rollout has ended.
        """
        self._check()
        call = self._calls.find(key, retried=retried)
        late = born is not None and not any(a - TICK <= born < b - TICK for a, b in self._births)
        if call is not None:
            call.late = call.late and late
            self._metrics.replays.inc()
            return call
        self.called.set()
        call = Call()
        spent = self._allowance.spent()
        if spent is not None or self._allowance.free == 0:
            self._run_out(spent)  # the budget is not spent while calls in flight hold the rest
            self._metrics.refused.labels(spent or "completion_tokens").inc()
            self.spent_answers += spent is not None
            if self.spent_answers > _SPENT_ANSWERS:
                raise RolloutOver(SPENT_OVER)
            call.end(Completion({"role": "assistant", "content": SPENT}))
            return call
        request = ChatRequest(
            asked.body,
            asked.messages,
            asked.tools,
            max_context=self._max_context,
            as_told=self._redactor.value,
        )
        try:
            auxiliary = self._auxiliary(request)
            summary = auxiliary is None and self._summary(request)
            call.early = not (self._answered or any(one.pieces() for one in self._in_flight))
            call.late = late and not call.early
            call.announced = not call.early and self._on_foreign is not None and self._own(request)
        except AgentError as error:
            self.fail(error)
            raise
        # No await since the checks: a close from here on finds the call in flight.
        self._calls.add(key, call)
        self._in_flight.add(call)
        granted = self._allowance.begin(asked.max_tokens, is_turn=auxiliary is None)
        request = replace(request, max_tokens=granted, auxiliary=auxiliary, summary=summary)
        call.scope.deadline = self._allowance.deadline
        self._tasks.start_soon(self._generate, call, request, asked.stream, dialect)
        return call

    async def close(self) -> None:
        """Refuse new calls, cancel those in flight, wait for them, and drop what is not trained.

        The wait is bounded whatever an engine does (`swe_core.system.detached`). Called by the server.
        """
        self._closing = anyio.Event()
        for call in self._in_flight:
            call.scope.cancel()
        if self._in_flight:
            await self._closing.wait()
        await self.tools.close()
        try:
            if self._token_log is not None and self._on_foreign is not None:
                late = self._late if self._lives else set[int]()
                if foreign := self._token_log.drop_foreign(self._starts, late):
                    self._on_foreign(foreign)
                self._undelivered = {at: call for at, call in self._undelivered.items() if at not in foreign}
            if self._token_log is not None and (
                lost := self._token_log.drop_undelivered([*self._not_delivered()])
            ):
                self._on_undelivered(lost)
        except Exception as problem:  # as in _record
            self.fail(
                EngineError(
                    f"foreign calls or undelivered replies could not be recorded: {sentence(problem)}"
                )
            )

    def ledger(self, no_reward: str | None = None) -> Ledger | None:
        """Return the ledger of all tokens of the calls; None where the engine does not own the tokens.

        Args:
            no_reward: Why the rollout has no verdict, as in `TokenLog.ledger`.

        Raises:
            LedgerError: Some tokens are not accounted for.
        """
        return None if self._token_log is None else self._token_log.ledger(no_reward)

    def chains(self) -> Sequence[Chain]:
        """Return the training rows of the calls so far, in the order in which they began."""
        return () if self._token_log is None else self._token_log.chains()

    def _not_delivered(self) -> dict[int, Call]:
        """Return the recorded calls with trainable tokens whose reply was not delivered completely."""
        self._undelivered = {at: call for at, call in self._undelivered.items() if not call.delivered}
        return self._undelivered

    async def _generate(self, call: Call, request: ChatRequest, stream: bool, dialect: DialectName) -> None:
        """Generate and record a reply; only then end the call for its listeners."""
        started_at, started = datetime.now(UTC), time.monotonic()
        outcome: Completion | Exception | None = None
        try:
            with self._metrics.in_flight.track_inprogress(), call.scope:

                async def spoken(delta: Delta) -> None:
                    if request.auxiliary is None:
                        self._speak()
                    await call.emit(delta)

                emit = spoken if stream else None
                work = partial(complete, self.engine, request, self.session, emit)
                outcome = redacted(await apart(work, "a call of the engine"), self._redactor)
        except Exception as error:  # the boundary that records any error of a plugin's engine
            outcome = error
        finally:  # also where the server is cancelled: sampled tokens are recorded
            ended = self._ended(call, request, outcome)
            self._record(call, ended, request, dialect, started_at, time.monotonic() - started)
            if isinstance(ended.outcome, Completion) and request.auxiliary is None:
                self._speak()
            call.end(self.failure or ended.outcome)
            self._leave(call)

    def _check(self) -> None:
        """Raise the reason why the rollout accepts no more calls, if there is one."""
        if self.failure is not None:
            raise self.failure
        if self._closing is not None or self.submitted:
            raise RolloutOver(SUBMITTED if self.submitted else OVER)

    def _leave(self, call: Call) -> None:
        self._in_flight.discard(call)
        if self._closing is not None and not self._in_flight:
            self._closing.set()

    def _ended(self, call: Call, request: ChatRequest, outcome: Completion | Exception | None) -> _Ended:
        sampled = outcome.sampled if isinstance(outcome, Completion) else request.progress.sampled
        trouble = None if sampled is not None or call.pieces() else request.progress.trouble
        if request.auxiliary is None and (trouble or isinstance(outcome, Completion)):
            self.trouble = trouble
        if call.abandoned or self._closing is not None:  # even if the engine finished
            text = GONE if call.abandoned else OVER
            return _Ended(RolloutOver(text), sampled, "aborted", text)
        if isinstance(outcome, Completion | RequestRefused) and request.auxiliary is None:
            self._overflowed = isinstance(outcome, ContextOverflow)
        if isinstance(outcome, Completion):
            return _Ended(outcome, sampled)
        if isinstance(outcome, RequestRefused):
            return _Ended(outcome, sampled, "failed", sentence(outcome))
        if call.scope.cancel_called and trouble:
            outcome = EngineUnavailable(f"{trouble}, until the wall budget ran out")
        elif call.scope.cancel_called:
            self._run_out("wall")
            try:
                return _Ended(redacted(_cut(call.pieces(), sampled), self._redactor), sampled, "wall")
            except Exception as error:  # a plugin's pieces and tokens
                outcome = EngineProtocolError(f"the engine's partial reply is invalid: {sentence(error)}")
        if outcome is None:
            return _Ended(RolloutOver(OVER), sampled, "aborted", OVER)
        failure = outcome if isinstance(outcome, EngineError) else EngineError(sentence(outcome))
        failure.__cause__ = outcome if failure is not outcome else failure.__cause__
        self.fail(failure)
        return _Ended(failure, sampled, "failed", sentence(failure))

    def _record(
        self,
        call: Call,
        ended: _Ended,
        request: ChatRequest,
        dialect: DialectName,
        started_at: datetime,
        seconds: float,
    ) -> None:
        tokens, error = self._tokens(ended, request, call)
        try:
            turn = self._turn(ended, request, dialect, started_at, seconds, tokens, error)
            self.usage = Usage(
                prompt_tokens=self.usage.prompt_tokens + turn.usage.prompt_tokens,
                completion_tokens=self.usage.completion_tokens + turn.usage.completion_tokens,
            )
            if turn.reply is not None and turn.auxiliary is None:
                self.finish_reason = turn.finish_reason
            used = max(turn.usage.completion_tokens, _length(ended.sampled))
            self._allowance.end(request.max_tokens, used)
            if turn.finish_reason == "length" and self._allowance.left == 0:
                self._run_out("completion_tokens")
            self._metrics.call(turn)
            self._on_turn(turn)
        except Exception as problem:  # such as a full disk: the rollout fails with this reason
            failure = EngineError(f"call {self.turns} could not be recorded: {sentence(problem)}")
            self.fail(failure)
            if tokens is not None and not isinstance(problem, OSError):
                self._record_tokens(tokens, started_at, seconds, sentence(failure))
        if tokens is not None and tokens.dropped is None:
            self._not_delivered()[self.turns] = call
        self.turns += 1

    def _record_tokens(self, tokens: TurnTokens, started_at: datetime, seconds: float, error: str) -> None:
        """Record the tokens of a call that could not be written, so that the ledger balances."""
        turn = Turn.from_request(
            RequestDiff(),
            self.turns,
            {"messages": []},
            started_at=started_at,
            seconds=round(seconds, 6),
            reply=None,
            error=error,
            tokens=tokens,
        )
        with suppress(Exception):  # the rollout's error says already that its record is incomplete
            self._on_turn(turn)

    def _tokens(
        self, ended: _Ended, request: ChatRequest, call: Call
    ) -> tuple[TurnTokens | None, str | None]:
        """Return the exact tokens of a call, and its error. Inconsistent tokens fail the rollout."""
        if ended.sampled is None:
            return None, ended.error
        from swe_core.tokens.token_log import TokenLog

        try:
            self._token_log = self._token_log or TokenLog()
            left_out = SUMMARY if request.summary and not self._summaries else None
            dropped = ended.dropped or request.auxiliary or left_out
            tokens = self._token_log.add(self.turns, ended.sampled, dropped, summary=request.summary)
            if self._on_foreign is not None and request.auxiliary is None:
                if tokens.base is None:
                    start = self._own_calls.start(request, early=call.early, announced=call.announced)
                    self._starts[self.turns] = start
                elif tokens.base in self._continued and self._own_calls.repeats_a_reply(request, tokens.base):
                    self._starts[self.turns] = "own"  # the agent has changed a part of its history
                self._continued.add(tokens.base)
                if call.announced or tokens.base in self._excused:
                    self._excused.add(self.turns)
                elif call.late:
                    self._late.add(self.turns)
                elif tokens.base is not None or self._starts[self.turns] == "own":
                    self._lives = True
                if isinstance(ended.outcome, Completion):
                    self._answered = True
                    self._own_calls.replied(self.turns, ended.outcome.message, request.summary)
            return tokens, ended.error
        except LedgerError as problem:
            failure: EngineError = problem
        except Exception as problem:  # a plugin's tokens
            failure = EngineProtocolError(f"call {self.turns} has invalid tokens: {sentence(problem)}")
        self.fail(failure)
        return None, sentence(failure)

    def _turn(
        self,
        ended: _Ended,
        request: ChatRequest,
        dialect: DialectName,
        started_at: datetime,
        seconds: float,
        tokens: TurnTokens | None,
        error: str | None,
    ) -> Turn:
        completion = ended.outcome if isinstance(ended.outcome, Completion) else None
        return Turn.from_request(
            self._diff,
            self.turns,
            request.body,
            started_at=started_at,
            seconds=round(seconds, 6),
            reply=completion.message if completion else None,
            finish_reason=completion.finish_reason if completion else None,
            usage=completion.usage if completion else Usage(completion_tokens=_length(ended.sampled)),
            error=error,
            tokens=tokens,
            dialect=dialect,
            auxiliary=request.auxiliary,
            summary=request.summary,
        )

    def _run_out(self, budget: Budget | None) -> None:
        if budget is not None and self._spent is None:
            self._spent = budget
            self._ending.set()


def _cut(pieces: Sequence[Delta], sampled: Sampled | None) -> Completion:
    """Return the reply that the wall budget cut after `pieces`; empty without streaming.

    Raises:
        ValueError: See `join`.
    """
    message = join(pieces)
    message["content"] = message["content"] or ""
    return Completion(message, "length", Usage(completion_tokens=_length(sampled)))


def _estimate(asked: ParsedRequest) -> int:
    """Return about how many tokens a prompt has: a token of text has some four characters."""
    return (len(orjson.dumps(asked.messages)) + len(orjson.dumps(asked.tools))) // 4


def _length(sampled: Sampled | None) -> int:
    return 0 if sampled is None else len(sampled.completion_ids)
