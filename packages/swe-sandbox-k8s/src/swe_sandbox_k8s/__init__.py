"""Kubernetes sandboxes for swe-core."""
