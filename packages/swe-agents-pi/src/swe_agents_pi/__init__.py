"""The Pi coding agent for swe-core."""
