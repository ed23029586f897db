# mypy: ignore-errors
# The agent's packages exist in its bundle only.
"""Runs mini-swe-agent inside the sandbox. Each message of its history is an event."""

import json

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.utils.serialize import recursive_merge


def run(settings, token, prompt, emit):
    """Run the agent to its end. An LLM call that fails raises, after an event."""

    class Agent(DefaultAgent):
        def add_messages(self, *messages):
            for message in messages:
                emit(json.dumps(message))
            return super().add_messages(*messages)

    config = recursive_merge(get_config_from_spec("mini"), settings)
    config["model"]["model_kwargs"]["api_key"] = token
    del config["agent"]["mode"]  # confirmations are of its terminal interface
    environment = LocalEnvironment(**config["environment"])
    Agent(LitellmModel(**config["model"]), environment, **config["agent"]).run(prompt)
