"""The pages: one module each, with its path, its data and its template."""
