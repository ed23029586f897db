"""The training journal: groups, rows, policies and checkpoints, from which a killed training resumes."""
