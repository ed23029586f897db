"""Replay recorded conversations against a tokenizer and template, and say which turns leave their row."""
