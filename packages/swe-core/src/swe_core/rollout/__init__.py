"""The loop for one rollout, the runner for many, and the run directory that they write."""
