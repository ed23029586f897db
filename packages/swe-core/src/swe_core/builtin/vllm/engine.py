"""VLLMEngine: sends the prompt of a conversation to a server as ids, and returns the sampled reply."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from swe_core.api.engine import (
    ChatRequest,
    Completion,
    Emit,
    Engine,
    EngineSession,
    Progress,
    TokenTable,
    Usage,
)
from swe_core.builtin.http_engine import (
    BACKOFF,
    ErrorTranslator,
    Transient,
    as_final_error,
    key_from,
    pause,
    with_retries,
)
from swe_core.builtin.vllm import VLLMConfig
from swe_core.builtin.vllm.check import ask_served, calls_problem, check_server, format_notes
from swe_core.builtin.vllm.client import Client, open_session
from swe_core.builtin.vllm.generation import Generation
from swe_core.builtin.vllm.policy import AdapterUnknown, Policy
from swe_core.builtin.vllm.replies import Asked
from swe_core.builtin.vllm.request import RequestWriter, most_calls, offered_tools, sampling, stop_texts
from swe_core.builtin.vllm.servers import Server, Servers
from swe_core.builtin.vllm.streaming import Streamer, assistant_message, first_stop
from swe_core.errors import (
    ConfigError,
    ContextOverflow,
    EngineProtocolError,
    EngineRefused,
    EngineUnavailable,
    RequestRefused,
)
from swe_core.system.urls import base_url
from swe_core.tokens.conversation import Conversation
from swe_core.tokens.load_renderer import load_renderer
from swe_core.tokens.renderer import Renderer
from swe_core.tokens.vocabulary import model_size, token_table

_BACKOFF = BACKOFF
_BASE = "what /v1/completions is appended to"
_OVERFLOW = "maximum context length"
"""Part of vLLM's message about a prompt that is too long."""
_ENOUGH = 32
"""Least number of sampled tokens for a significant share."""
_FEW = 8
"""Tokens that an attempt brings at least, or there is a pause after it."""
_MEAGRE = 10
"""Attempts, one after the other, that bring fewer."""
_HUGE_PROMPTS = 2
"""Prompts of a million characters that are rendered at a time."""
FORCED = "forced"
"""Why forced tokens are dropped."""

log = logging.getLogger(__name__)


class _Empty(Transient):
    """The server answered without a token."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The served model.

    Args:
        context: Tokens of the context, of the server with the shortest.
        vocabulary: How many ids it can sample.
    """

    renderer: Renderer
    requests: RequestWriter
    context: int
    vocabulary: int


@dataclass(slots=True, eq=False)
class _Rollout:
    """The state of an open rollout."""

    id: str
    conversation: Conversation
    server: Server
    calls: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One call of the agent.

    Args:
        name: The base of its seeds.
        vocabulary: How many ids there are.
        progress: What the gate knows of it. The generation has no reference to it: the two in a cycle would
            stay in memory until the garbage collector runs.
        stops: Texts that end the reply.
        constraint: Keys of the request that force the reply; None leaves it free.
        streamer: None where the agent gets its reply whole. The server streams all the same, so
            that what was sampled is known whenever the call ends.
    """

    name: str
    requests: RequestWriter
    vocabulary: int
    generation: Generation
    progress: Progress
    stops: Sequence[str]
    constraint: Mapping[str, Any] | None
    streamer: Streamer | None


class VLLMEngine(Engine):
    """Samples from vLLM servers by token ids.

    Attributes:
        model: The name under which the servers serve the model.
        urls: Their base URLs, without `/v1`.

    Raises:
        ConfigError: The url or the model is missing or unusable, or the key cannot be a header.
    """

    limits_context = True

    def __init__(self, config: VLLMConfig) -> None:
        self.urls, self.model = _required(config)
        self.sampling = sampling(config)
        self._config = config
        self._key = key_from(config.api_key_env)
        self._attempts = config.max_retries + 1
        self._policy = Policy(self.model, config.adapter)
        self._rollouts: dict[str, _Rollout] = {}
        self._loading = anyio.Lock()
        self._huge = anyio.CapacityLimiter(_HUGE_PROMPTS)
        self._model: _Model | None = None
        self._session: aiohttp.ClientSession | None = None
        self._clients: list[Client] = []
        self._servers = Servers([])
        self._sampled = self._missing = 0

    async def __aenter__(self) -> VLLMEngine:
        key = self._key
        self._session = open_session(self._config.timeout, key.get_secret_value() if key else None)
        self._clients = [self._client(self._session, url) for url in self.urls]
        self._servers = Servers(self._clients)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def context(self) -> int | None:
        """Return the shortest context of the servers."""
        return self._model.context if self._model is not None else None

    async def check(self) -> None:
        """Check on each server that it serves the model, and that ids and log-probabilities come back.

        The log-probabilities must be those of the sampling distribution. Then log `notes`.
        """
        model, policy = await self._ready(), self._policy
        for client in self._clients:
            try:
                await check_server(client, policy.name, model.renderer, self._config)
            except Transient as error:
                raise as_final_error(error) from None
            except EngineRefused as refusal:
                refused = policy.unknown(client.where, refusal, policy.version)
                raise refused.refusal() if isinstance(refused, AdapterUnknown) else refused from None
        for note in self.notes():
            log.info("%s", note)

    def set_policy_version(self, version: int) -> None:
        """See `Engine.set_policy_version`. Tokens carry the oldest version that may have sampled them
        (`Client.sample`). With an adapter a request keeps the version that it named."""
        self._policy = replace(self._policy, version=version)

    def take_out(self, url: str) -> Collection[str]:
        """See `Engine.take_out`."""
        self._servers.take_out(url)
        return [
            rollout_id for rollout_id, rollout in self._rollouts.items() if rollout.server.client.url == url
        ]

    def put_in(self, url: str) -> None:
        """See `Engine.put_in`. It may be a server that `check` did not see."""
        if self._session is not None:
            self._servers.put_in(self._client(self._session, url))

    def constraint(self, request: ChatRequest, session: EngineSession, call: int) -> Mapping[str, Any] | None:
        """Return what is added to the request so that its reply is forced, such as `structured_outputs`; None
        leaves it free, as each is here. For engines of tests: what is forced was not the policy's choice, so
        the turn is marked as dropped and never trained.

        Args:
            call: Which call of the session it is, counted from 0.
        """
        return None

    @property
    def without_calls(self) -> str | None:  # type: ignore[override]  # read only
        return calls_problem(self._model.renderer) if self._model is not None else None

    def notes(self) -> Sequence[str]:
        """Return what the model's chat format does not give, and where its prompts are not those of the
        model's own chat template, if anything; known once a server was asked."""
        return format_notes(self._model.renderer) if self._model is not None else ()

    def vocabulary(self) -> TokenTable | None:
        """Return the tokens of the tokenizer that renders the prompts; None before a server was asked."""
        return token_table(self._model.renderer.tokenizer) if self._model is not None else None

    async def end(self, session: EngineSession) -> None:
        """Free the rollout's conversation and its place on a server."""
        rollout = self._rollouts.pop(session.rollout_id, None)
        if rollout is not None:
            self._servers.leave(rollout.server)

    async def count_tokens(self, request: ChatRequest, session: EngineSession) -> int:
        """Return the tokens of the prompt that the rollout's next call with this history would have."""
        model = await self._ready()
        rollout = self._rollouts.get(session.rollout_id)
        conversation = rollout.conversation if rollout else Conversation(model.renderer, self._huge)
        try:
            prompt = await conversation.prepare(request.messages, offered_tools(request), model.context)
        except ContextOverflow as overflow:
            return overflow.prompt_tokens
        return prompt.length

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        tools, stops = offered_tools(request), stop_texts(request.body)
        model = await self._ready()
        rollout = self._rollout(session, model.renderer)
        number, rollout.calls = rollout.calls, rollout.calls + 1
        constraint = self.constraint(request, session, number)
        context = min(model.context, request.max_context or model.context)
        prompt = await rollout.conversation.prepare(request.messages, tools, context)
        if prompt.length >= context:
            raise ContextOverflow(prompt.length, context)
        limits = (context - prompt.length, request.max_tokens, self._config.max_tokens)
        limit = min(limit for limit in limits if limit is not None)
        generation = Generation(
            prompt,
            limit,
            model.renderer.stop_ids,
            request.progress,
            stops,
            model.renderer.text,
            None if constraint is None else FORCED,
        )
        streamer = None
        if emit is not None and model.renderer.streams:
            streamer = Streamer(model.renderer, generation.ids, prompt.tail, tools, emit, stops)
        # By the rollout, whose id has its group in it: two groups of one task are to differ.
        name = f"{session.rollout_id}:{number}"
        call = _Call(
            name,
            model.requests,
            model.vocabulary,
            generation,
            request.progress,
            stops,
            constraint,
            streamer,
        )
        try:
            await self._generate(rollout, call)
        except RequestRefused as refusal:
            if _OVERFLOW in str(refusal):
                raise ContextOverflow(prompt.length, context) from None
            raise
        ids, sampled = generation.ids, generation.sampled()
        self._count(generation)
        parsed = model.renderer.parse(ids, prompt.tail, tools)
        message = assistant_message(parsed, stops, most_calls(request.body))
        if streamer is not None:
            await streamer.finish(message)
        told = request.as_told({**message, "content": message["content"] or ""})
        rollout.conversation.add(prompt, sampled, told)
        ended = "tool_calls" if "tool_calls" in message else "stop"
        return Completion(
            message=message,
            finish_reason="length" if generation.finish == "length" else ended,
            usage=Usage(prompt_tokens=prompt.length, completion_tokens=len(ids)),
            model=self.model,
            sampled=sampled,
            stopped_by=first_stop((parsed.reasoning or "") + parsed.content, stops),
        )

    def _client(self, session: aiohttp.ClientSession, url: str) -> Client:
        variable = self._config.api_key_env
        errors = ErrorTranslator("vLLM server", url, _BASE, self.model, variable, self._key)
        return Client(session, url, errors, self._config.timeout)

    async def _ready(self) -> _Model:
        """Return the model; the first call asks all servers, and loads the tokenizer."""
        if self._model is not None:
            return self._model
        async with self._loading:
            if self._model is None:
                try:
                    served = [await ask_served(client, self.model) for client in self._clients]
                except Transient as error:
                    raise as_final_error(error) from None
                root = served[0].root
                here = root if root and await anyio.Path(root).is_dir() else self.model
                renderer = await anyio.to_thread.run_sync(self._load, self._config.tokenizer or here)
                requests = RequestWriter(self._config, renderer.stop_ids)
                context = min(one.context for one in served)
                names = {self._config.tokenizer or here, *([here] if here == root else [])}
                size = await anyio.to_thread.run_sync(model_size, renderer.tokenizer, names)
                self._model = _Model(renderer, requests, context, size)
            return self._model

    def _load(self, tokenizer: str) -> Renderer:
        config = self._config
        return load_renderer(
            tokenizer,
            renderer=config.renderer,
            chat_template=config.chat_template,
            template_kwargs=config.template_kwargs,
            tool_parser=config.tool_parser,
            special_tokens=config.special_tokens,
        )

    def _count(self, generation: Generation) -> None:
        """Check that the server gives log-probabilities: without them no token can be trained.

        Raises:
            EngineProtocolError: Their share has passed the limit; the run ends.
        """
        self._sampled += len(generation.ids)
        self._missing += generation.missing()
        limit = self._config.max_missing_logprobs
        if self.unfit is None and self._sampled >= _ENOUGH and self._missing > limit * self._sampled:
            self.unfit = (
                f"the servers of the model {self.model!r} gave no log-probability for {self._missing} of "
                f"{self._sampled} sampled tokens, more than the share of {limit:g} that "
                "engine.vllm.max_missing_logprobs allows: without them nothing can be trained, so check that "
                "each server is vLLM and that no proxy in front of it leaves them out"
            )
        if self.unfit is not None:
            raise EngineProtocolError(self.unfit)

    def _rollout(self, session: EngineSession, renderer: Renderer) -> _Rollout:
        rollout = self._rollouts.get(session.rollout_id)
        if rollout is None:
            server = self._servers.join(session.rollout_id)
            if server is None:
                raise EngineUnavailable(f"all servers of the model {self.model!r} are dead: start them again")
            rollout = _Rollout(session.rollout_id, Conversation(renderer, self._huge), server)
            self._rollouts[session.rollout_id] = rollout
        return rollout

    async def _generate(self, rollout: _Rollout, call: _Call) -> None:
        """Sample until the reply has ended, on the rollout's server or, once that one fails, on another."""
        failed: list[Server] = []
        while True:
            server = rollout.server
            try:
                return await self._sample(server.client, call)
            except _Empty as error:
                raise EngineProtocolError(f"{error} (tried {self._attempts} times)") from None
            except AdapterUnknown as error:
                raise error.refusal(self._attempts) from None
            except Transient as error:
                failed.append(server)
                if rollout.server is server:  # else another call of the rollout has moved it already
                    other = self._servers.move(rollout.id, server, failed)
                    if other is None:
                        raise as_final_error(error, self._attempts) from None
                    rollout.server = other

    async def _sample(self, client: Client, call: _Call) -> None:
        """Sample until the reply has ended. Attempts without a new token count as `max_retries` says; those
        that bring a few have a pause after them, and a limit of their own.

        Raises:
            Transient | EngineError: The server gave no whole reply.
        """
        generation, meagre = call.generation, 0
        while generation.finish is None:
            before = len(generation.ids)
            await with_retries(partial(self._attempt, client, call), self._attempts, _BACKOFF, call.progress)
            meagre = meagre + 1 if len(generation.ids) - before < _FEW else 0
            if generation.finish is None and meagre:
                if meagre == _MEAGRE:
                    raise Transient(f"{client.where} broke replies off after a few tokens {meagre} times")
                await anyio.sleep(pause(_BACKOFF, meagre))

    async def _attempt(self, client: Client, call: _Call) -> None:
        """Send one request.

        Raises:
            Transient: The request brought no token.
        """
        generation, streamer, asked = call.generation, call.streamer, self._policy
        before, prompt = len(generation.ids), generation.prompt()
        if before and call.constraint is not None:  # which would force the whole reply after its beginning
            raise EngineUnavailable(f"{client.where} broke a forced reply off, which cannot be continued")
        body = call.requests.body(
            prompt,
            model=asked.name,
            max_tokens=generation.room,
            stops=call.stops,
            constraint=call.constraint,
            call=f"{call.name}:{before}",
        )

        def announced() -> int:
            return (self._policy if asked.adapter is None else asked).version

        try:
            wanted = Asked(prompt, generation.room, call.vocabulary)
            async with aclosing(client.sample(body, wanted, announced)) as chunks:
                async for chunk in chunks:
                    generation.add(chunk)
                    if streamer is not None:
                        await streamer.grown()
                    if generation.finish is not None and chunk.finish is None:
                        break  # the server samples on: it does not see a stop text that the break cut in two
            if generation.finish is not None and len(generation.ids) == before:
                generation.finish = None
                raise _Empty(f"{client.where} answered with no token")
            if generation.finish is None:
                raise Transient(f"{client.where} broke the reply off")
        except EngineRefused as refusal:
            raise asked.unknown(client.where, refusal, self._policy.version) from None
        except Transient:
            generation.break_off()
            if generation.finish is None and len(generation.ids) == before:
                raise


def _required(config: VLLMConfig) -> tuple[list[str], str]:
    given = [config.url] if isinstance(config.url, str) else config.url
    urls = [url.strip() for text in given for url in text.split(",") if url.strip()]
    options = {"--engine-url URL": urls, "--model NAME": config.model}
    missing = [option for option, value in options.items() if not value]
    if missing or not config.model:
        raise ConfigError(
            f"the engine 'vllm' does not know which servers and which model: pass {' '.join(missing)}"
        )
    return [base_url(url).removesuffix("/v1") for url in urls], config.model
