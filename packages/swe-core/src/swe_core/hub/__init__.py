"""The Hugging Face Hub: its client, its errors, and rollouts pushed to a data set (docs/internals/hub.md).

`push` does it beside a run or afterwards; `dataset` is the Hub's side, `rows` makes a shard of rollouts,
`pushed_run` is what the data set knows of a run, `card` is its README. `swe-core[hub]` installs what they
need; nothing of it is imported before a push.
"""
