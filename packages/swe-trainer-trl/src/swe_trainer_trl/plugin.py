"""The entry point. It registers nothing yet: the package reserves the name and the seam."""
