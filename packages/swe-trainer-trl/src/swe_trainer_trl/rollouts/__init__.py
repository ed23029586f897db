"""The rollout process: schedules groups, follows policy versions and counts."""
