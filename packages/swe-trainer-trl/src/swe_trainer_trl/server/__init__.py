"""The vLLM server of the policy: its GPUs, its start, its health, its recovery."""
