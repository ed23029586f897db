"""Our agents play the tasks of an OpenEnv server, in its environments, for its rewards."""
