"""The process and the machine: event loop, files, ports, processes, redaction."""
