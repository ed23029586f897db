"""What runs inside a local job's box: the sandbox server, or a plain job's command. Standard library only,
Python >= 3.8, nothing of swe_core: this directory alone is shown to the box.
"""
