"""This process and this machine: the event loop, files, ports, processes, secrets kept out of text."""
