"""OpenEnv for swe-core: environment server, export, and harness sessions."""
