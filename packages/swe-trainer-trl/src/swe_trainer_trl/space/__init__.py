"""A complete training run on a Hugging Face Space or as a Hugging Face Job: `swe-core space`, `swe-core job`.

On this machine: `commands` (command line), `deployment` (the content of a deployment, a pure function of the
request), `inputs` (the files that a run reads), `wheels`, and `hub` (creates the deployment). In the
container: `supervisor` and `state`.
"""
