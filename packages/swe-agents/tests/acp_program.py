"""A small agent of the Agent Client Protocol, for tests. Standard library only: it runs inside a sandbox."""

import json
import os
import sys
import urllib.request
from pathlib import Path

MODE = os.environ.get("MODE", "")
STATE = Path(os.environ["STATE"])
calls = 0


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(kind, **more):
    send(method="session/update", params={"sessionId": "s-1", "update": {"sessionUpdate": kind, **more}})


def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["LLM_KEY"]}
    request = urllib.request.Request(os.environ["LLM"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def answer(wanted):
    """Wait for the response to our own request."""
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == wanted and "method" not in message:
            return message["result"]
    return sys.exit("the client has left")


def prompt(text):
    if MODE.startswith("exits") and not STATE.exists():
        STATE.write_text("once")
        ask("lost")
        sys.exit(3)
    if MODE == "always-exits":
        sys.exit(3)
    if MODE == "hangs":
        ask(text)
        for line in sys.stdin:  # until it is cancelled
            if json.loads(line).get("method") == "session/cancel":
                return "cancelled"
    said = ask(text)
    for piece in (said[:2], said[2:]):
        update("agent_message_chunk", content={"type": "text", "text": piece})
    if MODE == "asks":
        call = {"toolCallId": "t-1", "title": "write", "rawInput": {"path": "made.txt"}}
        update("tool_call", **call)
        options = [
            {"optionId": "never", "name": "No", "kind": "reject_once"},
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "once", "name": "Yes", "kind": "allow_once"},
        ]
        params = {"sessionId": "s-1", "toolCall": call, "options": options}
        send(id="p-1", method="session/request_permission", params=params)
        chosen = answer("p-1")["outcome"].get("optionId")
        if chosen in ("once", "always"):
            Path("made.txt").write_text(chosen)
        shown = [{"type": "content", "content": {"type": "text", "text": str(chosen)}}]
        update("tool_call_update", toolCallId="t-1", status="completed", content=shown)
    return "refusal" if MODE == "refuses" else "end_turn"


print("a line that is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        can = {"loadSession": MODE != "exits-forgets"}
        result = {"protocolVersion": 99 if MODE == "newer" else 1, "agentCapabilities": can}
    elif method == "session/new":
        if MODE == "locked":
            send(id=message["id"], error={"code": -32000, "message": "Authentication required"})
            continue
        result = {"sessionId": "s-1"}
    elif method == "session/load" and MODE == "exits-loses":
        send(id=message["id"], error={"code": -32002, "message": "Resource not found"})
        continue
    elif method == "session/load":
        update("agent_message_chunk", content={"type": "text", "text": "told again"})
        result = {}
    elif method == "session/prompt":
        result = {"stopReason": prompt(params["prompt"][0]["text"])}
    else:
        continue
    send(id=message["id"], result=result)
