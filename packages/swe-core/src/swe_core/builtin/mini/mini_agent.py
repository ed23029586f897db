"""mini: an LLM, one tool (bash), one loop. Standard library only, Python 3.8 and later.

Reads the prompt from standard input, calls chat completions at $SWE_MINI_BASE_URL, and prints one JSON event
a line: {"kind": "text", "text": "..."}. Other kinds are "reasoning", "info", "error" (with "fatal": true),
and "tool_call" and "tool_result" (with "tool": "...").
It ends when the model answers without a tool call: exit code 0; 1 after an error event.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import IO, Any

SYSTEM = """\
You are a software engineer who works in a shell. Call the tool `bash` to read, change and test code. Each \
command runs in a new shell in {workdir}: `cd` and variables do not last. Commands cannot be answered: avoid \
editors, pagers and prompts. When the task is done, answer with a short summary and no tool call.\
"""
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command; returns its exit code, and stdout and stderr together.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "the command"}},
            "required": ["command"],
        },
    },
}


class Problem(Exception):
    """Ends the agent; its text becomes the error event."""


def emit(kind: str, text: str, **more: object) -> None:
    event = {"kind": kind, "text": text, **more}
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def complete(url: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the assistant message of one chat completion. The host retries, so this does not."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as reply:
            answer = reply.read()
    except urllib.error.HTTPError as error:
        said = error.read(2000).decode(errors="replace")
        raise Problem(f"the endpoint answered HTTP {error.code}: {said}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Problem(f"the endpoint cannot be reached: {error}") from None
    try:
        message = json.loads(answer)["choices"][0]["message"]
        if message["role"] != "assistant":
            raise ValueError(message["role"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise Problem(
            f"the endpoint answered no completion: {answer[:500].decode(errors='replace')}"
        ) from None
    # What a server says besides (refusal, annotations, empty lists) other servers refuse to be sent back.
    kept = ("content", "reasoning_content", "tool_calls")
    return {"role": "assistant", "content": None, **{key: message[key] for key in kept if message.get(key)}}


class Output:
    """The first and the last bytes of a stream, read by a thread so that the command never blocks."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream, self.half = stream, limit // 2
        self.head, self.tail, self.total = b"", b"", 0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        for chunk in iter(lambda: os.read(self.stream.fileno(), 65536), b""):
            self.total += len(chunk)
            room = self.half - len(self.head)
            self.head += chunk[:room]
            self.tail = (self.tail + chunk[room:])[-self.half :]

    def text(self) -> str:
        self.thread.join(1.0)  # a background child may hold the stream open: do not wait for it
        left_out = self.total - len(self.head) - len(self.tail)
        note = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        return (self.head + note + self.tail).decode(errors="replace")


def run_bash(command: str, workdir: str, timeout: float, limit: int) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SWE_MINI_")}
    try:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=workdir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # no bash, no directory, too long, a NUL byte
        return f"error: the command could not be started: {error}"
    if process.stdout is None:
        raise Problem("the command has no output stream")
    output = Output(process.stdout, limit)
    try:
        code = process.wait(timeout)
        ended = f"exit code: {code if code >= 0 else 128 - code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        ended = f"killed: it did not end within {timeout:g} s"
    return f"{ended}\n{output.text()}"


def answer_call(call: Any, workdir: str, timeout: float, limit: int) -> tuple[str, str, str]:
    """Run one tool call: (tool, what was called, its result). A malformed call gets an answer too."""
    function: Any = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        function = {}
    name, raw = str(function.get("name")), function.get("arguments")
    if name != "bash":
        return name, str(raw), f"error: there is no tool {name!r}; the only tool is 'bash'"
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
        command = arguments["command"]
        if not isinstance(command, str):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        return name, str(raw), 'error: the arguments must be a JSON object {"command": "..."}'
    return name, command, run_bash(command, workdir, timeout, limit)


def main() -> None:
    settings = {name: os.environ["SWE_MINI_" + name] for name in ("BASE_URL", "API_KEY", "MODEL", "WORKDIR")}
    max_turns = int(os.environ.get("SWE_MINI_MAX_TURNS", "100"))
    timeout = float(os.environ.get("SWE_MINI_COMMAND_TIMEOUT", "120"))
    limit = int(os.environ.get("SWE_MINI_OUTPUT_CHARS", "10000"))
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM.format(workdir=settings["WORKDIR"])},
        {"role": "user", "content": sys.stdin.buffer.read().decode(errors="replace")},
    ]
    for _ in range(max_turns):
        body = {"model": settings["MODEL"], "messages": messages, "tools": [BASH]}
        message = complete(settings["BASE_URL"], settings["API_KEY"], body)
        messages.append(message)
        for kind, key in (("reasoning", "reasoning_content"), ("text", "content")):
            if isinstance(message.get(key), str) and message[key]:
                emit(kind, message[key])
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return
        for call in calls:
            tool, called, result = answer_call(call, settings["WORKDIR"], timeout, limit)
            emit("tool_call", called, tool=tool)
            emit("tool_result", result, tool=tool)
            call_id = call.get("id") if isinstance(call, dict) else None
            messages.append({"role": "tool", "tool_call_id": str(call_id), "content": result})
    emit("info", f"stopped after {max_turns} turns")


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        emit("error", str(problem), fatal=True)
        sys.exit(1)
