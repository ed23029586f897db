# mypy: ignore-errors
# The agent's packages exist in its bundle only.
"""Runs the default agent of the OpenHands SDK inside the sandbox. The events are the SDK's own."""

import json
import os
import sys

from openhands.sdk import LLM, Agent, Conversation, LLMSummarizingCondenser, Tool
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalTool


def run(settings, token, prompt, emit):
    """Run the agent to its end. An LLM call that fails ends the process, after an event."""
    llm = LLM(**settings["llm"], api_key=token)
    condenser = None
    if settings["condense_after"] is not None:
        condenser = LLMSummarizingCondenser(llm=llm, max_size=settings["condense_after"])
    tools = [
        Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}),  # an image may lack tmux
        Tool(name=FileEditorTool.name),
        Tool(name=TaskTrackerTool.name),
    ]
    agent = Agent(llm=llm, tools=tools, condenser=condenser, system_prompt_kwargs={"cli_mode": True})
    conversation = Conversation(
        agent,
        workspace=os.getcwd(),
        callbacks=[lambda event: emit(event.model_dump_json())],
        visualizer=None,
        max_iteration_per_run=sys.maxsize,
        stuck_detection=settings["stuck_detection"],
    )
    conversation.send_message(prompt)
    try:
        conversation.run()
    except ConversationRunError:
        sys.exit(1)
    finally:
        conversation.close()
    emit(json.dumps({"kind": "End", "status": conversation.state.execution_status}))
