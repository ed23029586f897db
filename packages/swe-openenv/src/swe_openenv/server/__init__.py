"""The environment server: each episode is a rollout on this host."""
