"""`make test-gpu`: proves training on CUDA, with a real vLLM, one check after another (`checks`).

Models are made by a script, so nothing is loaded from outside. docs/internals/gpu.md says what each check
proves.
"""
