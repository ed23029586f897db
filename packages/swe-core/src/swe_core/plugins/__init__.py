"""The hook specifications; plugins found, loaded and named."""
