"""A one-file plugin of an agent that stores, prints and sends back all that it receives. Loaded with -p."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swe_core import AgentContext, AgentSpec, Component, hookimpl

SCRIPT = """
import json, os, urllib.request
FUNCTION = {"name": "bash", "parameters": {"type": "object", "properties": {}}}
def joined(raw):
    message, calls = {"role": "assistant", "content": ""}, {}
    for line in raw.split("\\n\\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                if delta.get(key):
                    message[key] = message.get(key, "") + delta[key]
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
                call["id"], call["type"] = call.get("id") or piece.get("id"), "function"
                for key, text in piece.get("function", {}).items():
                    call["function"][key] += text
    return {**message, "tool_calls": list(calls.values())}
messages = [{"role": "user", "content": "hello"}]
stream = True
while len(messages) == 1 or reply.get("tool_calls"):
    stream = not stream
    tools = [{"type": "function", "function": FUNCTION}]
    body = json.dumps({"messages": messages, "tools": tools, "stream": stream}).encode()
    headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["BASE"] + "/chat/completions", body, headers)
    raw = urllib.request.urlopen(request, timeout=60).read().decode()
    reply = joined(raw) if stream else json.loads(raw)["choices"][0]["message"]
    print(raw, reply, flush=True)
    with open("heard.txt", "a") as heard:
        print(raw, json.dumps(reply), file=heard)
    messages.append(reply)
    for call in reply.get("tool_calls") or ():
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(call)})
"""


class Echoing(AgentSpec):
    """Asks until a reply calls no tool, and wants each second one streamed."""

    name = "echoing"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-c", SCRIPT]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key}


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("echoing", lambda _config: Echoing())]
