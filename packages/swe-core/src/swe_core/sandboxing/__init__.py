"""What happens inside a sandbox, for every provider."""
