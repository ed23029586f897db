"""What a finished run says: statistics, tables, text, JSON and HTML."""
