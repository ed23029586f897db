"""Programs inside a box: the sandbox server of a job, or a plain job's command.

Standard library only, Python >= 3.8, nothing of swe_core: the box sees this directory alone.
"""
