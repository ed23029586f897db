"""Docker containers for swe-core."""
