"""The training journal: groups, rows, policies and checkpoints, kept so that a killed training resumes."""
