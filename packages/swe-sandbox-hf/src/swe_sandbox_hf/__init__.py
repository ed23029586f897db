"""Hugging Face Sandboxes for swe-core."""
