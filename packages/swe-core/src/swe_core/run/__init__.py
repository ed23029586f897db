"""Settings and plugins to a plan, the plan to a run; resume, regrade, verify."""
