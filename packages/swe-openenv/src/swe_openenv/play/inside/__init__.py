"""Programs that run inside an environment."""
