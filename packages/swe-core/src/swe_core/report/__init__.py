"""The report of a run: statistics, tables, text, JSON and HTML."""
