"""What the author of a plugin implements and receives: types and pure functions, no I/O."""
