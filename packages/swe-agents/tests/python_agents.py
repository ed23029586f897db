"""What the tests of the agents in Python share."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from swe_agents.python_agent import PythonAgent
from swe_core.api.engine import Completion, Usage
from swe_testing.agents import ScriptedModel

from .trials import context


def settings_of(agent: PythonAgent) -> Any:
    """Return the settings file."""
    return json.loads(agent.files(context())["/tmp/swe-home/settings.json"])


def calls(tool: str, arguments: str, text: str | None = None) -> Completion:
    """Return a reply that calls `tool`; `arguments` are the raw text that the model sampled."""
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    return Completion(message, "tool_calls", Usage(completion_tokens=1))


def extends(model: ScriptedModel) -> bool:
    """Return whether each request begins with the messages of the one before."""
    asked = [request.messages for request in model.asked]
    return all(later[: len(earlier)] == earlier for earlier, later in pairwise(asked))
