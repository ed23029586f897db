"""What happens inside a sandbox, whichever provider opened it."""
