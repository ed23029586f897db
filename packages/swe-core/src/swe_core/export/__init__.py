"""The data of runs in formats that other programs read (docs/data.md)."""
