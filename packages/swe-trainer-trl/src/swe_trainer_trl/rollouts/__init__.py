"""The process that runs rollouts: it schedules groups, follows policies and counts."""
