"""The way from inside a sandbox to a host endpoint."""
