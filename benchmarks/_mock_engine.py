"""An inference server that has its answers ready: python _mock_engine.py REPLIES.json; it prints its port.

    /v1/models   /v1/chat/completions   /v1/completions   /inference/v1/generate

The last two are vLLM's token-in, token-out endpoints; /v1/completions gives back exactly the ids that it was
sent, as vLLM does with `return_token_ids`. Chat completions with `return_token_ids` bring ids too: a prompt
continues those of the one before it. A stream has an event a token, or as the request's `stream_interval`
says, and is sent at once unless it is paced. HTTP is spoken by hand, so that on a machine with few cores the
mock takes as little as possible from the proxy that is measured.

    POST /mode   {"replies", "interval", "pace"} which replies are given from now on, how many tokens an event
                 of a stream holds at most whatever the request says (null leaves it that), and seconds from
                 one token to the next, for whole replies too
    /sampled     by the reply's text, of each token of the paced replies since then: the characters up to its
                 end, and when it was sampled, seconds of the machine's monotonic clock
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

LOGPROB = -0.012345679104328156
Body = dict[str, Any]
Reply = dict[str, Any]


Event = tuple[Body, Sequence[str]]
"""What is sent at once, and the texts of the tokens in it."""


@dataclass(frozen=True)
class Answer:
    """What a request is answered.

    Args:
        events: Of a stream, or the one body of a whole answer.
        pace: Seconds from one token to the next.
        sampled: Where each token's end and time are written.
    """

    events: Sequence[Event]
    streamed: bool = False
    pace: float = 0.0
    sampled: list[tuple[int, float]] = field(default_factory=list)


class Ids:
    """Prompts of chats as ids.

    Args:
        file: The tokenizer, as the library `tokenizers` reads it.
        replies: What assistant messages may be.
    """

    def __init__(self, file: str, replies: Iterable[Reply]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(file)
        self._replies = {(reply["content"], reply["arguments"]): reply["ids"] for reply in replies}
        self._known: dict[str, list[int]] = {}

    def of(self, body: Body) -> list[int]:
        """The prompt of a request: what the same messages were before, and the new ones."""
        ids = [*self._encoded(orjson.dumps(body.get("tools")).decode())]
        for message in body["messages"]:
            ids += self._encoded(f"<|im_start|>{message['role']}\n")
            calls = message.get("tool_calls") or [{"function": {"arguments": ""}}]
            said = message.get("content") or "", calls[0]["function"]["arguments"]
            ids += self._replies.get(said) or self._encoded(f"{said[0]}<|im_end|>")
            ids += self._encoded("\n")
        return ids + self._encoded("<|im_start|>assistant\n")

    def _encoded(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text).ids
        return self._known[text]


class Replies:
    """The answers of each endpoint, whole or as a stream."""

    def __init__(self, config: Body) -> None:
        self.model = config["model"]
        self.max_model_len = config["max_model_len"]
        self._all: dict[str, list[Reply]] = config["replies"]
        self._tokenizer: str | None = config.get("tokenizer")
        self._number = itertools.count()
        self.mode({"replies": next(iter(self._all)), "interval": None, "pace": 0.0})

    def mode(self, body: Body) -> Answer:
        self._replies = itertools.cycle(self._all[body["replies"]])
        self._interval: int | None = body["interval"]
        self._pace: float = body["pace"]
        self._sampled: dict[str, list[tuple[int, float]]] = {}
        return Answer([({}, ())])

    def sampled(self, body: Body) -> Answer:
        return Answer([(self._sampled, ())])

    def models(self, body: Body) -> Answer:
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": "mock"}
        card |= {"root": self.model, "max_model_len": self.max_model_len}
        return Answer([({"object": "list", "data": [card]}, ())])

    @cached_property
    def _ids(self) -> Ids:
        if self._tokenizer is None:
            raise ValueError("the configuration has no tokenizer, so that no chat can be answered with ids")
        return Ids(self._tokenizer, itertools.chain(*self._all.values()))

    def chat(self, body: Body) -> Answer:
        reply, number = next(self._replies), next(self._number)
        call = {
            "id": f"chatcmpl-tool-{number:032x}",
            "type": "function",
            "function": {"name": "bash", "arguments": reply["arguments"]},
        }
        head: Body = {"id": f"chatcmpl-{number:032x}", "created": int(time.time()), "model": self.model}
        if body.get("stream"):
            head |= {"object": "chat.completion.chunk"}
            return self._stream(
                body, head, _usage(0, len(reply["ids"])), reply, self._deltas(body, reply, call)
            )
        message = {"role": "assistant", "content": reply["content"], "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        whole, prompt = {**head, "object": "chat.completion", "choices": [choice]}, []
        if body.get("return_token_ids"):
            prompt = self._ids.of(body)
            choice |= {"logprobs": {"content": _entries(reply)}, "token_ids": reply["ids"]}
            whole["prompt_token_ids"] = prompt
        return self._whole({**whole, "usage": _usage(len(prompt), len(reply["ids"]))}, reply)

    def completion(self, body: Body) -> Answer:
        reply, prompt = next(self._replies), body["prompt"]
        ids, pieces = reply["ids"], reply.get("pieces", [])
        head: Body = {"id": f"cmpl-{next(self._number):032x}", "object": "text_completion"}
        head |= {"created": int(time.time()), "model": self.model}
        usage = _usage(len(prompt), len(ids))
        if body.get("stream"):
            return self._stream(body, head, usage, reply, self._parts(body, reply, prompt))
        most = body["max_tokens"]
        ids, pieces, text = ids[:most], pieces[:most], reply["text"] if len(ids) <= most else ""
        choice = {
            "index": 0,
            "text": text,
            "logprobs": _logprobs(pieces or ["x"] * len(ids), 0),
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": ids,
            "prompt_token_ids": prompt,
        }
        return self._whole({**head, "choices": [choice], "usage": usage}, reply)

    def generate(self, body: Body) -> Answer:
        reply = next(self._replies)
        choice = {"index": 0, "logprobs": {"content": _entries(reply)}, "finish_reason": "stop"}
        choice["token_ids"] = reply["ids"]
        whole = {"request_id": str(next(self._number)), "choices": [choice], "prompt_logprobs": None}
        return self._whole(whole, reply)

    def _whole(self, body: Body, reply: Reply) -> Answer:
        sampled = self._sampled.setdefault(reply.get("content", ""), [])
        return Answer([(body, reply.get("pieces", ()))], False, self._pace, sampled)

    def _stream(self, body: Body, head: Body, usage: Body, reply: Reply, choices: Iterator[Event]) -> Answer:
        events = [({**head, "choices": [{"index": 0, **choice}]}, held) for choice, held in choices]
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(({**head, "choices": [], "usage": usage}, ()))
        return Answer(events, True, self._pace, self._sampled.setdefault(reply["content"], []))

    def _deltas(self, body: Body, reply: Reply, call: Body) -> Iterator[Event]:
        """The choices of a chat's stream."""
        content, arguments = reply["content_pieces"], reply["arguments_pieces"]

        def choice(delta: Body) -> Body:
            return {"delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}

        yield choice({"role": "assistant", "content": ""}), ()
        for start, end in self._spans(body, len(content)):
            yield choice({"content": "".join(content[start:end])}), content[start:end]
        function = {**call, "function": {"name": "bash"}}
        yield choice({"tool_calls": [{"index": 0, **function}]}), ()
        for start, end in self._spans(body, len(arguments)):
            function = {"arguments": "".join(arguments[start:end])}
            yield choice({"tool_calls": [{"index": 0, "function": function}]}), arguments[start:end]
        yield {"delta": {}, "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None}, ()

    def _parts(self, body: Body, reply: Reply, prompt: list[int]) -> Iterator[Event]:
        """The choices of a completion's stream."""
        ids, pieces, offset = reply["ids"], reply["pieces"], 0
        for start, end in self._spans(body, len(ids)):
            held = pieces[start:end]
            text = "".join(held)
            choice = {
                "text": text,
                "logprobs": _logprobs(held, offset),
                "finish_reason": "stop" if end == len(ids) else None,
                "stop_reason": None,
                "prompt_token_ids": prompt if start == 0 else None,
                "token_ids": ids[start:end],
            }
            yield choice, held
            offset += len(text)

    def _spans(self, body: Body, count: int) -> Iterator[tuple[int, int]]:
        """Where each event's tokens begin and end: the first holds one, those after it the interval's."""
        interval = self._interval or body.get("stream_interval") or 1
        start = 0
        for end in itertools.chain(range(1, count, interval), [count]):
            yield start, end
            start = end


def _usage(prompt: int, completion: int) -> Body:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _logprobs(pieces: Sequence[str], offset: int) -> Body:
    offsets = list(itertools.accumulate(map(len, pieces[:-1]), initial=offset))
    return {
        "text_offset": offsets,
        "token_logprobs": [LOGPROB] * len(pieces),
        "tokens": pieces,
        "top_logprobs": [{piece: LOGPROB} for piece in pieces],
    }


def _entries(reply: Reply) -> list[Body]:
    """The log-probabilities of a chat, as with `--return-tokens-as-token-ids`."""
    return [
        {"token": f"token_id:{token}", "logprob": LOGPROB, "bytes": list(piece.encode()), "top_logprobs": []}
        for token, piece in zip(reply["ids"], reply["pieces"], strict=True)
    ]


class Http(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, for clients that send a Content-Length."""

    def __init__(self, routes: dict[bytes, Callable[[Body], Answer]]) -> None:
        self._routes = routes
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end])
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
            whole = end + 4 + int(fields.get(b"content-length", b"0"))
            if len(self._data) < whole:
                return
            body = bytes(self._data[end + 4 : whole])
            del self._data[:whole]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        route = self._routes.get(path)
        if route is None:
            self._send(b"404 Not Found", orjson.dumps({"error": {"message": "no such path", "code": 404}}))
            return
        answer = route(orjson.loads(body) if body else {})
        if answer.pace:
            self._sending = asyncio.create_task(self._pace(answer))
        elif answer.streamed:
            self._write(b"".join([_HEAD, *(_event(orjson.dumps(event)) for event, _ in answer.events), _END]))
        else:
            self._send(b"200 OK", orjson.dumps(answer.events[0][0]))

    async def _pace(self, answer: Answer) -> None:
        """Send each event when its last token is sampled."""
        started, tokens, end = time.monotonic(), 0, 0
        if answer.streamed:
            self._write(_HEAD)
        for event, pieces in answer.events:
            tokens += len(pieces)
            data = orjson.dumps(event)
            await asyncio.sleep(started + tokens * answer.pace - time.monotonic())
            now = time.monotonic()
            if answer.streamed:
                self._write(_event(data))
            else:
                self._send(b"200 OK", data)
            for later, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
                end += len(piece)
                answer.sampled.append((end, now - later * answer.pace))
        if answer.streamed:
            self._write(_END)

    def _send(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % (status, len(body)) + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _event(content: bytes) -> bytes:
    """One event, as a chunk of HTTP."""
    data = b"data: " + content + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = _event(b"[DONE]") + b"0\r\n\r\n"


async def serve(replies: Replies) -> None:
    """Answer until the process is ended."""
    routes: dict[bytes, Callable[[Body], Answer]] = {
        b"/mode": replies.mode,
        b"/sampled": replies.sampled,
        b"/v1/models": replies.models,
        b"/v1/chat/completions": replies.chat,
        b"/v1/completions": replies.completion,
        b"/inference/v1/generate": replies.generate,
    }
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http(routes), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Replies(json.loads(Path(sys.argv[1]).read_bytes()))))
