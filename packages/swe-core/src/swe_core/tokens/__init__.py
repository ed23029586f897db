"""Messages to token ids and back, and sampled ids of turns to training rows."""
