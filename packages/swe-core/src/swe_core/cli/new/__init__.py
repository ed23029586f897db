"""`swe-core new`: write the skeleton of a plugin package."""
