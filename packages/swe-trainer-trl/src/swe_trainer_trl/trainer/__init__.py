"""The process that trains: TRL's trainer, its arguments, the queue of rows, the transfer of weights."""
