"""Coding agents for swe-core, one module an agent."""
