"""Experiment trackers: results and traces of an evaluation, sent while it runs."""
