"""The types that plugins implement and receive, with pure functions on them; no I/O."""
