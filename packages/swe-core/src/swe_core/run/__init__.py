"""Plan, run, resume, regrade and verify."""
