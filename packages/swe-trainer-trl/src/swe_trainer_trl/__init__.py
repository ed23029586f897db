"""TRL training for swe-core."""
