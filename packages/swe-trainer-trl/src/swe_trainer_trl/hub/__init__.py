"""Push and restore of checkpoints on the Hugging Face Hub."""
