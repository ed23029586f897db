"""An inference server that has its answers ready: python _mock_engine.py REPLIES.json; it prints its port.

    /v1/models   /v1/chat/completions   /v1/completions   /inference/v1/generate

The last two are vLLM's token-in, token-out endpoints; /v1/completions gives back exactly the ids that it was
sent, as vLLM does with `return_token_ids`. HTTP is spoken by hand, so that on a machine with few cores the
mock takes as little as possible from the proxy that is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

LOGPROB = -0.0123456789
Body = dict[str, Any]
Reply = dict[str, Any]


class Replies:
    """The answers of each endpoint, whole or as the events of a stream."""

    def __init__(self, config: Body) -> None:
        self.model = config["model"]
        self.max_model_len = config["max_model_len"]
        self._replies = itertools.cycle(config["replies"])
        self._number = itertools.count()

    def models(self, body: Body) -> Body:
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": "mock"}
        return {"object": "list", "data": [{**card, "root": self.model, "max_model_len": self.max_model_len}]}

    def chat(self, body: Body) -> Body | Iterable[Body]:
        reply, number = next(self._replies), next(self._number)
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "bash", "arguments": reply["arguments"]},
        }
        usage = _usage(0, len(reply["ids"]))
        head = {"id": f"chatcmpl-{number}", "created": 0, "model": self.model}
        if body.get("stream"):
            chunk = {**head, "object": "chat.completion.chunk"}
            pieces = [
                {"role": "assistant", "content": reply["content"]},
                {"tool_calls": [{"index": 0, **call}]},
            ]
            events = [_chunk(chunk, {"delta": piece, "finish_reason": None}) for piece in pieces]
            events.append(_chunk(chunk, {"delta": {}, "finish_reason": "tool_calls"}))
            return [*events, {**chunk, "choices": [], "usage": usage}]
        message = {"role": "assistant", "content": reply["content"], "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def completion(self, body: Body) -> Body | Iterable[Body]:
        reply, prompt = next(self._replies), body["prompt"]
        ids = reply["ids"]
        head = {"id": f"cmpl-{next(self._number)}", "object": "text_completion", "created": 0}
        head["model"] = self.model
        usage = _usage(len(prompt), len(ids))
        if body.get("stream"):
            events = [
                _chunk(
                    head,
                    {
                        "text": reply["pieces"][at],
                        "logprobs": _logprobs(1),
                        "finish_reason": "stop" if at == len(ids) - 1 else None,
                        "stop_reason": None,
                        "token_ids": [token],
                        "prompt_token_ids": prompt if at == 0 else None,
                    },
                )
                for at, token in enumerate(ids)
            ]
            return [*events, {**head, "choices": [], "usage": usage}]
        choice = {
            "index": 0,
            "text": reply["text"],
            "logprobs": _logprobs(len(ids)),
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": ids,
            "prompt_token_ids": prompt,
        }
        return {**head, "choices": [choice], "usage": usage}

    def generate(self, body: Body) -> Body:
        ids = next(self._replies)["ids"]
        logprobs = [
            {"token": f"token_id:{token}", "logprob": LOGPROB, "bytes": None, "top_logprobs": []}
            for token in ids
        ]
        choice = {"index": 0, "logprobs": {"content": logprobs}, "finish_reason": "stop", "token_ids": ids}
        return {"request_id": str(next(self._number)), "choices": [choice], "prompt_logprobs": None}


def _usage(prompt: int, completion: int) -> Body:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(count: int) -> Body:
    return {
        "text_offset": [0] * count,
        "token_logprobs": [LOGPROB] * count,
        "tokens": ["x"] * count,
        "top_logprobs": [{"x": LOGPROB}] * count,
    }


def _chunk(head: Body, choice: Body) -> Body:
    return {**head, "choices": [{"index": 0, **choice}]}


class Http(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, for clients that send a Content-Length."""

    def __init__(self, routes: dict[bytes, Callable[[Body], Body | Iterable[Body]]]) -> None:
        self._routes = routes
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

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
        if isinstance(answer, dict):
            self._send(b"200 OK", orjson.dumps(answer))
            return
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for event in (*map(orjson.dumps, answer), b"[DONE]"):
            data = b"data: " + event + b"\n\n"
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
        self._write(b"0\r\n\r\n")

    def _send(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % (status, len(body)) + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(replies: Replies) -> None:
    """Answer until the process is ended."""
    routes: dict[bytes, Callable[[Body], Body | Iterable[Body]]] = {
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
