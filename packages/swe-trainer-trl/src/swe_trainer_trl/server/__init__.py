"""The vLLM server of the policy: GPU layout, start, health checks and recovery."""
