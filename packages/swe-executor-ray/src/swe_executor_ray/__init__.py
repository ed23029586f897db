"""Rollouts of swe-core on the nodes of a Ray cluster."""
