"""`swe-core doctor`: what this machine can do."""
