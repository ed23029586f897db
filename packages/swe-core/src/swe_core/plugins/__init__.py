"""Hook specifications; find, load and choose plugins."""
