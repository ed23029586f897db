"""The built-in plugins, which use the same hooks as all others."""
