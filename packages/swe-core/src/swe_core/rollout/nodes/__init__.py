"""Rollouts in other processes and on other machines: the side of the driver, which submits them."""
