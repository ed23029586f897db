"""A Hugging Face model behind the HTTP endpoints of vLLM that a token-in, token-out client uses.

    python -m swe_testing.serving.hf_server --model DIRECTORY --port 8000

It stands in for vLLM in tests, where the machine cannot run it: it samples for real and answers as vLLM's
OpenAI-compatible server does, errors included, but one token of one request at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from asyncio import Event
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import anyio.to_thread
import orjson
import torch
from aiohttp import web
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from swe_testing.serving.wire import CompletionRequest, Refusal, RemoteCall, Reply, Token, event

_GREEDY = 1e-5
"""A temperature below this is 0."""
_NEVER = -9999.0
"""What stands for a log-probability of minus infinity, which JSON does not have."""


class PauseMode(StrEnum):
    """What becomes of requests that have begun."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


@dataclass(slots=True, eq=False)
class Generation:
    """One request while it is sampled."""

    aborted: bool = False


@dataclass(slots=True)
class Gate:
    """What `/pause` and `/resume` open and close."""

    admits: Event = field(default_factory=Event)
    """Set while new requests may begin."""
    steps: Event = field(default_factory=Event)
    """Set while requests that have begun may go on."""
    idle: Event = field(default_factory=Event)
    """Set while none is being sampled."""
    running: set[Generation] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.resume()
        self.idle.set()

    @contextlib.contextmanager
    def generation(self) -> Iterator[Generation]:
        """One request, from its first step to its last."""
        one = Generation()
        self.running.add(one)
        self.idle.clear()
        try:
            yield one
        finally:
            self.running.remove(one)
            if not self.running:
                self.idle.set()

    async def pause(self, mode: PauseMode) -> None:
        """Begin no request until `resume`; those that have begun end, finish or stay as they are."""
        self.admits.clear()
        if mode is PauseMode.KEEP:
            self.steps.clear()
            return
        self.steps.set()
        if mode is PauseMode.ABORT:
            for one in self.running:
                one.aborted = True
        await self.idle.wait()

    def resume(self) -> None:
        """Undo `pause`."""
        self.admits.set()
        self.steps.set()


class Sampler:
    """A causal language model from a directory, and how the next token is drawn from it."""

    def __init__(self, directory: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        ends = self.model.generation_config.eos_token_id
        self.eos_ids: frozenset[int] = frozenset([ends] if isinstance(ends, int) else ends or [])
        self.vocabulary: int = self.model.config.vocab_size

    def step(self, ids: list[int], cache: DynamicCache) -> torch.Tensor:
        """The logits [vocabulary] of what follows `cache` and then `ids`, which `cache` takes in."""
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        logits: torch.Tensor = out.logits[0, -1]
        return logits

    def forced(self, request: CompletionRequest) -> list[int]:
        """The ids that the reply must be; none where it is free."""
        if request.structured_outputs is None:
            return []
        (text,) = request.structured_outputs.choice
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def reload(self, directory: Path) -> None:
        """Take other weights of the same model.

        Args:
            directory: Has `model.safetensors`, or its parts and `model.safetensors.index.json`.

        Raises:
            Refusal: They cannot be read, or are those of another model; the weights are as they were.
        """
        index = directory / "model.safetensors.index.json"
        weights: dict[str, torch.Tensor] = {}
        try:
            parts = set(orjson.loads(index.read_bytes())["weight_map"].values()) if index.exists() else None
            for part in parts or {"model.safetensors"}:
                weights |= load_file(directory / part)
        except (OSError, SafetensorError, orjson.JSONDecodeError, KeyError) as error:
            raise Refusal(f"no weights in {str(directory)!r}: {error}", status=500) from error
        have = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        if {name: tensor.shape for name, tensor in weights.items()} != have:
            raise Refusal(f"the weights in {str(directory)!r} are those of another model", status=500)
        self.model.load_state_dict(weights)

    def draw(
        self, logits: torch.Tensor, request: CompletionRequest, generator: torch.Generator
    ) -> tuple[int, dict[int, float]]:
        """One id, and natural log-probabilities in the distribution that it was drawn from: its own, and
        those of the most likely ids that the request asks for."""
        greedy = request.temperature < _GREEDY
        logprobs = (logits if greedy else self._processed(logits, request)).log_softmax(-1)
        if greedy:
            drawn = int(logits.argmax())
        else:
            drawn = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
        shown = [drawn, *logprobs.topk(request.logprobs or 0).indices.tolist()]
        return drawn, {one: max(float(logprobs[one]), _NEVER) for one in shown}

    def _processed(self, logits: torch.Tensor, request: CompletionRequest) -> torch.Tensor:
        """The logits that are sampled from, in the order in which vLLM changes them."""
        logits = logits / request.temperature
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < request.min_p * probabilities.max(), -torch.inf)
        if 0 < request.top_k < self.vocabulary:
            logits = logits.masked_fill(logits < logits.topk(request.top_k).values[-1], -torch.inf)
        if request.top_p < 1:
            ranked, order = logits.sort(descending=True)
            likely = ranked.softmax(-1)
            before = likely.cumsum(-1) - likely
            logits = logits.index_fill(0, order[before >= request.top_p], -torch.inf)
        return logits


class Server:
    """The routes, and the one model behind them.

    Args:
        directory: The model's.
        name: What clients call it.
        context: Tokens that prompt and completion may have together.
    """

    def __init__(self, directory: str, name: str, context: int) -> None:
        self.sampler = Sampler(directory)
        self.directory = directory
        self.name = name
        self.context = context
        self.gate = Gate()
        self._one_step = anyio.CapacityLimiter(1)
        self._numbers = itertools.count()

    def app(self) -> web.Application:
        """The application, for `aiohttp.web`; it wants `handler_cancellation`, so that who leaves is not
        sampled for."""
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/collective_rpc", self._collective_rpc)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {
            "id": self.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "swe-core",
            "root": self.directory,
            "max_model_len": self.context,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _pause(self, request: web.Request) -> web.Response:
        try:
            mode = PauseMode(request.query.get("mode", "abort"))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        await self.gate.pause(mode)
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.gate.resume()
        return web.json_response({"status": "resumed"})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})  # there is none

    async def _collective_rpc(self, http: web.Request) -> web.Response:
        """`reload_weights`, between two steps; who wants more than that between them pauses the server."""
        try:
            call = RemoteCall.model_validate_json(await http.text())
            await anyio.to_thread.run_sync(
                self.sampler.reload, call.kwargs.weights_path, limiter=self._one_step
            )
        except ValidationError as error:
            return Refusal(str(error)).response()
        except Refusal as refusal:
            return refusal.response()
        return web.json_response({"results": [None]})

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        try:
            request = self._checked(await http.text())
        except Refusal as refusal:
            return refusal.response()
        reply = Reply(f"cmpl-{next(self._numbers)}", self.name, request, self.sampler.tokenizer)
        async with contextlib.aclosing(self._sample(request)) as tokens:
            if not request.stream:
                async for token in tokens:
                    reply.add(token)
                return web.Response(body=orjson.dumps(reply.whole()), content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(http)
            async for token in tokens:
                await response.write(event(reply.add(token)))
        if request.stream_options.include_usage:
            await response.write(event(reply.last()))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _checked(self, text: str) -> CompletionRequest:
        try:
            request = CompletionRequest.model_validate_json(text)
        except ValidationError as error:
            raise Refusal(str(error)) from error
        if request.model != self.name:
            raise Refusal(f"The model `{request.model}` does not exist.", "model", 404, "NotFoundError")
        unknown = [one for one in request.prompt if not 0 <= one < self.sampler.vocabulary]
        if unknown:
            raise Refusal(f"Token id {unknown[0]} is out of vocabulary")
        if len(request.prompt) + request.max_tokens > self.context:
            raise Refusal(
                f"This model's maximum context length is {self.context} tokens. However, you requested "
                f"{request.max_tokens} output tokens and your prompt contains {len(request.prompt)} input "
                "tokens.",
                "input_tokens",
            )
        return request

    async def _sample(self, request: CompletionRequest) -> AsyncGenerator[Token]:
        generator = torch.Generator()
        if request.seed is not None:
            generator.manual_seed(request.seed)
        else:
            generator.seed()
        await self.gate.admits.wait()
        cache = DynamicCache()
        ids = request.prompt
        forced = self.sampler.forced(request)
        with self.gate.generation() as generation:
            for count in itertools.count(1):
                await self.gate.steps.wait()
                if generation.aborted:
                    yield Token(None, finish_reason="abort")
                    return
                logits = await anyio.to_thread.run_sync(self.sampler.step, ids, cache, limiter=self._one_step)
                if forced:
                    logits = torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(forced[:1]), 0)
                    del forced[0]
                drawn, logprobs = self.sampler.draw(logits, request, generator)
                finish, stop = None, None
                if drawn in self.sampler.eos_ids and not request.ignore_eos:
                    finish = "stop"
                elif drawn in request.stop_token_ids:
                    finish, stop = "stop", drawn
                elif count == request.max_tokens:
                    finish = "length"
                yield Token(drawn, logprobs, finish, stop)
                if finish is not None:
                    return
                ids = [drawn]


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="its directory")
    parser.add_argument("--served-model-name", help="what clients call it; the directory if not given")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, default=32768, help="tokens of context")
    args = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for each other on a small model
    server = Server(args.model, args.served_model_name or args.model, args.max_model_len)
    web.run_app(
        server.app(),
        host=args.host,
        port=args.port,
        print=None,
        access_log=None,
        shutdown_timeout=0,
        handler_cancellation=True,
    )


if __name__ == "__main__":
    main()
