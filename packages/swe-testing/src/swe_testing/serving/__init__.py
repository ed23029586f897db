"""A real model for tests: made by a script, served by vLLM's CPU build, or by a stand-in where that cannot
run; public API for plugin authors.

    pytest_plugins = ["swe_testing.serving.fixtures"]  # in the root conftest.py
"""
