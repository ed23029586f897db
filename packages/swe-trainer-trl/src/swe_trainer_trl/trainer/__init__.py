"""The process that trains: TRL's trainer, its arguments, the queue of rows and the weight transfer."""
