"""A local web page over run directories: runs, rollouts, tokens, chains, groups. Read-only."""
