"""The repository inside a sandbox: prepared, its history cut, its patch exported."""
