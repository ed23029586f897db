"""OpenEnv for swe-core: environment server, harness sessions, capture routes, and tasks of its servers."""
