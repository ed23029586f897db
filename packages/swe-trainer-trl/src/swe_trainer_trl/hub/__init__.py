"""Checkpoints on the Hugging Face Hub: pushed, and restored."""
