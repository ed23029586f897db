"""Is a task worth a reward? Its gold patch must resolve it, and nothing else that is known may."""
