"""A scripted vLLM server on loopback: token ids in, token ids out, and its failures.

    async with ScriptedVLLM(["hello"], encode=tokenizer.encode, stop_id=2) as server:
        ...  # point the engine `vllm` at server.url
        assert server.requests[0].prompt == [5, 7, 11]

It answers `/v1/completions` (complete and streamed), `/v1/models` and `/health` in the shapes of vLLM 0.31.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import orjson
from aiohttp import web

from swe_testing.loopback import LoopbackServer

VLLMFault = Literal[
    "ok",
    "400",
    "401",
    "404",
    "429",
    "500",
    "context",
    "vocabulary",
    "hang",
    "refuse",
    "not-json",
    "error-in-reply",
    "no-ids",
    "no-logprobs",
    "null-logprobs",
    "short-logprobs",
    "wrong-prompt",
    "other-text",
    "empty",
    "length",
    "abort",
    "drop",
    "drop-at-end",
    "stall",
    "garbage",
    "error-event",
]
"""How one request is answered. `refuse` closes the connection unanswered; `hang` answers nothing until the
client leaves. `length` and later faults strike after `after` ids, which a streamed reply sends first.
`length` and `abort` end the reply so; `drop` breaks the connection; `drop-at-end` breaks it after all ids,
before the finish reason; `stall` sends nothing more until the client leaves. `garbage` and `error-event` are
`not-json` and `error-in-reply` in a reply that is not streamed."""
_WHOLE: Mapping[VLLMFault, VLLMFault] = {"garbage": "not-json", "error-event": "error-in-reply"}

Reply = str | Sequence[int] | Callable[[Sequence[int]], Sequence[int]]
"""A sampled reply: text, ids, or a function of the prompt's ids."""


def logprob_of(token: int) -> float:
    """Return the log-probability of `token` in any context; exact in float32."""
    return -(1 + token % 7) / 8


def echo(count: int) -> Reply:
    """Return a reply that repeats the last `count` ids of the prompt."""
    return lambda prompt: list(prompt[-count:])


def noise(count: int, vocabulary: int, seed: int = 0) -> Reply:
    """Return a reply of `count` random ids below `vocabulary`."""
    source = random.Random(seed)
    return lambda prompt: [source.randrange(vocabulary) for _ in range(count)]


def tool_call(name: str, **arguments: Any) -> str:
    """Return the text with which Qwen3 calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(slots=True)
class ReceivedRequest:
    """A completions request that arrived."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    sent: list[int] = field(default_factory=list)
    """The ids of the reply."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    """Set when the first ids are sent, or the reply stalls."""
    finished: anyio.Event = field(default_factory=anyio.Event)
    """Set when the request is over, in any way."""
    disconnected: bool = False
    """Whether the client left before the reply was complete."""

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.body["prompt"]
        return ids


class ScriptedVLLM(LoopbackServer):
    """Serve the endpoints of vLLM that the engine `vllm` uses.

    `requests` are the completions requests that arrived. A request that resumes a broken reply (its prompt is
    the earlier prompt and the ids sent so far) gets the rest of that reply.

    Args:
        replies: Replies in order; the last one is repeated.
        encode: Text to ids, for replies that are text.
        stop_id: The id that ends a reply of text; None adds no id.
        faults: Faults of the requests, in order; those after the last one as `then`.
        then: See `faults`.
        after: Number of ids before a fault inside a reply.
        piece: Ids in a streamed chunk.
        between: Awaited after each chunk, with the number of ids sent.
        models: Names in `/v1/models`; None answers it with 404.
        root: Path of the served model in `/v1/models`.
        max_model_len: Tokens of the context in `/v1/models`.
        vocabulary: Prompt ids from here on are refused; None refuses none.
        probe: Fault of probes: requests for one token with top log-probabilities, or with `ignore_eos`.
            Probes are kept in `probes` and use up no reply and no fault.
        processed: Whether logprobs are those after temperature, as with `--logprobs-mode processed_logprobs`.
        key: Where not None, another bearer token is answered with 401.
    """

    def __init__(
        self,
        replies: Sequence[Reply] = (),
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        stop_id: int | None = None,
        faults: Iterable[VLLMFault] = (),
        then: VLLMFault = "ok",
        after: int = 2,
        piece: int = 2,
        between: Callable[[int], Awaitable[None]] | None = None,
        models: Sequence[str] | None = ("scripted",),
        root: str | None = None,
        max_model_len: int | None = 32768,
        vocabulary: int | None = None,
        probe: VLLMFault = "ok",
        processed: bool = True,
        key: str | None = None,
    ) -> None:
        super().__init__()
        self.requests: list[ReceivedRequest] = []
        self.probes: list[dict[str, Any]] = []
        script = list(replies) or [echo(4)]
        self._replies = itertools.chain(script, itertools.repeat(script[-1]))
        self._encode = encode
        self._stop_id = stop_id
        self._faults = itertools.chain(faults, itertools.repeat(then))
        self._after = after
        self._piece = piece
        self._between = between
        self._models = models
        self._root = root
        self._max_model_len = max_model_len
        self._vocabulary = vocabulary
        self._probed = probe
        self._processed = processed
        self._key = key
        self._rest: dict[tuple[int, ...], list[int]] = {}

    def routes(self) -> Iterable[web.RouteDef]:
        """See `LoopbackServer.routes`."""
        return [
            web.post("/v1/completions", self._complete),
            web.get("/v1/models", self._list),
            web.get("/health", self._health),
        ]

    @property
    def url(self) -> str:
        """The base URL, without `/v1`."""
        return self.origin

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _list(self, request: web.Request) -> web.Response:
        if not self._may(request):
            return _error(401, "Unauthorized")
        if self._models is None:
            return _error(404, "Not Found")
        return _json(
            {
                "object": "list",
                "data": [
                    {
                        "id": name,
                        "object": "model",
                        "created": 1,
                        "owned_by": "vllm",
                        "root": self._root,
                        "max_model_len": self._max_model_len,
                    }
                    for name in self._models
                ],
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = ReceivedRequest(orjson.loads(await request.read()), dict(request.headers))
        if not self._may(request):
            return _error(401, "Unauthorized")
        if asked.body["max_tokens"] == 1 and asked.body["logprobs"]:
            self.probes.append(asked.body)
            return self._probe(asked.body)
        if asked.body.get("ignore_eos"):
            self.probes.append(asked.body)
            return await self._stream(request, asked, "ok", [0] * asked.body["max_tokens"], "length")
        self.requests.append(asked)
        try:
            return await self._answer(request, asked, next(self._faults))
        except (anyio.get_cancelled_exc_class(), ConnectionError):
            asked.disconnected = True
            raise
        finally:
            asked.finished.set()

    def _may(self, request: web.Request) -> bool:
        return self._key is None or request.headers.get("Authorization") == f"Bearer {self._key}"

    def _probe(self, body: Mapping[str, Any]) -> web.Response:
        refused = self._refuse(body, self._probed)
        if refused is not None:
            return refused
        temperature = body["temperature"] if self._processed else 1.0
        top = {f"token_id:{token}": -(1.0 + token) / temperature for token in range(body["logprobs"])}
        logprobs = {"token_logprobs": [-1.0 / temperature], "top_logprobs": [top], "tokens": ["token_id:0"]}
        choice = _choice([0], logprobs, "length", prompt=body["prompt"])
        return _json({**_head(body), "choices": [self._faulty(choice, self._probed)]})

    async def _answer(
        self, request: web.Request, asked: ReceivedRequest, fault: VLLMFault
    ) -> web.StreamResponse:
        body = asked.body
        if not body.get("stream"):
            fault = _WHOLE.get(fault, fault)
        refused = self._refuse(body, fault)
        if refused is not None:
            return refused
        if fault == "hang":
            asked.begun.set()
            await anyio.sleep_forever()
        if fault == "refuse" and request.transport is not None:
            request.transport.abort()
            return web.Response()  # is never sent
        ids, finish = self._sample(body, fault)
        asked.sent = ids
        if body.get("stream"):
            return await self._stream(request, asked, fault, ids, finish)
        if fault.startswith("drop") and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if fault == "stall":
            asked.begun.set()
            await anyio.sleep_forever()
        choice = self._faulty(_choice(ids, _logprobs(ids), finish, prompt=asked.prompt), fault)
        count = {"prompt_tokens": len(asked.prompt), "completion_tokens": len(ids)}
        return _json({**_head(body), "choices": [choice], "usage": count})

    def _refuse(self, body: Mapping[str, Any], fault: VLLMFault) -> web.Response | None:
        known = self._models is None or body["model"] in self._models
        if not known:
            return _error(404, f"The model `{body['model']}` does not exist.")
        highest = max(body["prompt"])
        if fault == "vocabulary" or (self._vocabulary is not None and highest >= self._vocabulary):
            return _error(400, f"Token id {highest} is out of vocabulary")
        wanted = len(body["prompt"]) + body["max_tokens"]
        if fault == "context" or (self._max_model_len is not None and wanted > self._max_model_len):
            return _error(
                400,
                f"This model's maximum context length is {self._max_model_len} tokens. However, you "
                f"requested {body['max_tokens']} output tokens and your prompt contains "
                f"{len(body['prompt'])} input tokens, for a total of {wanted} tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens.",
            )
        if fault in ("400", "401", "404", "429", "500"):
            return _error(int(fault), f"scripted {fault}")
        if fault == "not-json":
            return web.Response(text="hello {", content_type="application/json")
        if fault == "error-in-reply":
            return _json(_error_body(500, "scripted error"))
        return None

    def _sample(self, body: Mapping[str, Any], fault: VLLMFault) -> tuple[list[int], str]:
        """Return the ids of the reply and its finish reason; a resumed request gets what a fault cuts off."""
        if fault == "empty":
            return [], "stop"
        prompt: list[int] = body["prompt"]
        ids = self._rest.pop(tuple(prompt), None) if self._rest else None
        if ids is None:
            ids = self._ids(next(self._replies), prompt)
        finish = "stop"
        if fault in ("abort", "length", "drop", "stall", "garbage", "error-event") and len(ids) > self._after:
            ids, rest = ids[: self._after], ids[self._after :]
            if fault != "length":
                kept = ids if body.get("stream") or fault == "abort" else []
                self._rest[(*prompt, *kept)] = rest if kept else [*ids, *rest]
            finish = {"abort": "abort", "length": "length"}.get(fault, "stop")
        if len(ids) > body["max_tokens"]:
            ids, finish = ids[: body["max_tokens"]], "length"
        return ids, finish

    def _ids(self, reply: Reply, prompt: Sequence[int]) -> list[int]:
        if callable(reply):
            return list(reply(prompt))
        if not isinstance(reply, str):
            return list(reply)
        if self._encode is None:
            raise ValueError("replies of text need `encode`")
        return [*self._encode(reply), *([] if self._stop_id is None else [self._stop_id])]

    async def _stream(
        self, request: web.Request, asked: ReceivedRequest, fault: VLLMFault, ids: Sequence[int], finish: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        head = _head(asked.body)
        breaks = fault in ("drop", "stall", "garbage", "error-event", "drop-at-end")
        pieces = [ids[at : at + self._piece] for at in range(0, len(ids), self._piece)] or [ids]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1 and not breaks
            prompt = asked.prompt if number == 0 else None
            choice = _choice(piece, _logprobs(piece), finish if last else None, prompt=prompt)
            await _send(response, {**head, "choices": [self._faulty(choice, fault)]})
            asked.begun.set()
            if self._between is not None:
                await self._between(number * self._piece + len(piece))
        if fault.startswith("drop") and request.transport is not None:
            request.transport.close()  # not abort: written data is still delivered
            return response
        if fault == "stall":
            await anyio.sleep_forever()
        if fault == "garbage":
            await response.write(b"data: {not json\n\n")
        if fault == "error-event":
            await _send(response, _error_body(500, "scripted error"))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _faulty(self, choice: dict[str, Any], fault: VLLMFault) -> dict[str, Any]:
        if fault == "no-ids":
            del choice["token_ids"], choice["prompt_token_ids"]
        elif fault == "no-logprobs":
            choice["logprobs"] = None
        elif fault == "null-logprobs":
            choice["logprobs"]["token_logprobs"] = [None for _ in choice["token_ids"]]
        elif fault == "short-logprobs":
            choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:-1]
        elif fault == "other-text":
            choice["text"] = "\N{SNOWMAN}"
        elif fault == "wrong-prompt" and choice["prompt_token_ids"]:
            choice["prompt_token_ids"] = [*choice["prompt_token_ids"][:-1], 0]
        return choice


def _logprobs(ids: Sequence[int]) -> dict[str, Any]:
    return {"token_logprobs": [logprob_of(token) for token in ids]}


def _choice(
    ids: Sequence[int], logprobs: Mapping[str, Any], finish: str | None, prompt: Sequence[int] | None
) -> dict[str, Any]:
    return {
        "index": 0,
        "text": "",
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "prompt_token_ids": prompt,
    }


def _head(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def _send(response: web.StreamResponse, data: Mapping[str, Any]) -> None:
    await response.write(b"data: " + orjson.dumps(data) + b"\n\n")


def _error_body(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def _error(status: int, message: str) -> web.Response:
    return _json(_error_body(status, message), status)
