"""A tiny real model for tests, served by vLLM's CPU build; public API for plugin authors.

pytest_plugins = ["swe_testing.serving.fixtures"]  # in the root conftest.py
"""
