"""The Hugging Face Hub: its client, its errors, and rollouts pushed to a data set (docs/internals/hub.md).

`push` pushes while a run runs or afterwards; `dataset` is the data set on the Hub, `rows` makes a shard of
rollouts, `pushed_run` describes a run in the data set, `card` is its README. `swe-core[hub]` installs the
dependencies, which are imported only for a push.
"""
