"""What ships with the core: ordinary plugins on the same hooks as everybody's."""
