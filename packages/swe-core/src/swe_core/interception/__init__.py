"""Serve the agents' LLM calls: one server, one gate per rollout, dialects."""
