"""`swe-core openenv export`: the environment server as a folder that OpenEnv's tools build and push."""
