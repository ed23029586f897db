"""From messages to token ids and back, and from the sampled ids of turns to training rows."""
