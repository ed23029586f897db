"""The Hugging Face Hub: its client, its errors, rollouts pushed to a dataset."""
