"""Engine: calls the agent's bash tool with the lines of a file, one per turn, and then ends.

It shows what an agent, an image and a grader do with known commands, without a model.

swe-core run -p examples/engine/swe_engine_script.py --set engine.script.file=commands.sh
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from swe_core import ChatRequest, Completion, Component, Config, Emit, Engine, EngineSession, hookimpl


class ScriptConfig(Config):
    file: Path = Field(description="one shell command per line")


class Script(Engine):
    model = "script"

    def __init__(self, config: ScriptConfig) -> None:
        self.commands = config.file.read_text().splitlines()

    def notes(self) -> list[str]:
        return ["The engine 'script' plays a file of commands: no model was called."]

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if turn >= len(self.commands):
            return Completion(message={"role": "assistant", "content": "Done."})
        arguments = json.dumps({"command": self.commands[turn]})
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "bash", "arguments": arguments},
        }
        return Completion(
            message={"role": "assistant", "content": None, "tool_calls": [call]}, finish_reason="tool_calls"
        )


@hookimpl
def swe_engines() -> list[Component[Engine]]:
    return [Component("script", Script, ScriptConfig, "commands of a file, one per turn")]
