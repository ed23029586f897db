"""Programs that run inside a sandbox: one file each, standard library only."""
