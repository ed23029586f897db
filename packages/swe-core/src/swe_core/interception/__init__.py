"""The host's side of the agents' LLM calls: one server, a gate per rollout, dialects."""
