"""The SQL of the training journal."""

from __future__ import annotations

FORMAT = 2
"""Version of the schema, in SQLite's `user_version`; another one is refused."""

APPLICATION = 0x53574554
"""Tells a journal from any other SQLite file: "SWET"."""

SCHEMA = """
CREATE TABLE policies (version INTEGER PRIMARY KEY, step INTEGER, updates INTEGER NOT NULL);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, size INTEGER NOT NULL,
    closed INTEGER UNIQUE, skipped TEXT, left_out INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups,
    rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, reward REAL,
    oldest INTEGER, newest INTEGER, UNIQUE (group_id, rollout_id)
);
CREATE TABLE chains (
    id INTEGER PRIMARY KEY, member_id INTEGER NOT NULL REFERENCES members ON DELETE CASCADE,
    ids BLOB NOT NULL, mask BLOB NOT NULL, logprobs BLOB NOT NULL, versions BLOB NOT NULL,
    turns BLOB NOT NULL, cause TEXT NOT NULL, tokens INTEGER NOT NULL
);
CREATE INDEX chains_of_member ON chains (member_id);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups,
    rollout_id TEXT NOT NULL, ids BLOB NOT NULL, mask BLOB NOT NULL, logprobs BLOB NOT NULL,
    advantage REAL NOT NULL, policy_update INTEGER NOT NULL, reward REAL NOT NULL, tokens INTEGER NOT NULL,
    step INTEGER, dropped TEXT
);
CREATE INDEX free_rows ON rows (group_id) WHERE step IS NULL AND dropped IS NULL;
CREATE INDEX trained_rows ON rows (step) WHERE step IS NOT NULL;
"""
"""Ids are int32, logprobs float32, both little-endian; a mask is one bit an id. Members live until their
group is closed: what is trained of them is then in `rows`, whose ids count up in the order of closing."""
READY = """
SELECT g.id, g.closed, r.id, r.rollout_id, r.ids, r.mask, r.logprobs, r.advantage, r.policy_update,
    r.reward
FROM rows AS r JOIN (
    SELECT id, closed FROM groups WHERE closed > ?
    AND EXISTS (SELECT 1 FROM rows WHERE group_id = groups.id AND step IS NULL AND dropped IS NULL)
    ORDER BY closed LIMIT ?
) AS g ON r.group_id = g.id
WHERE r.step IS NULL AND r.dropped IS NULL ORDER BY g.closed, r.id
"""
"""Rows of the next closed groups that have any which is neither trained nor dropped."""
TRAINED = """
SELECT rollout_id, sum(tokens) FROM rows WHERE group_id = ? AND step IS NOT NULL GROUP BY rollout_id
"""
"""Rollout and trained ids of a group."""
RAISE = """
INSERT INTO policies SELECT :version, :step, coalesce(
    CASE WHEN :again THEN (SELECT max(updates) FROM policies WHERE step <= :step) END,
    (SELECT updates + :version - version FROM policies ORDER BY version DESC LIMIT 1), :version
) WHERE :version > (SELECT coalesce(max(version), 0) FROM policies)
"""
"""A new policy version. Its updates are those that were sent by that step, or count on as its number does."""
EMPTY = "ids = x'', mask = x'', logprobs = x''"
"""Sets the arrays of rows that are not needed any more."""
FATES = """
SELECT CASE WHEN dropped IS NOT NULL THEN dropped WHEN step IS NOT NULL THEN 'trained' ELSE 'waiting' END,
    tokens FROM rows
UNION ALL SELECT coalesce(skipped, 'stale'), left_out FROM groups
UNION ALL SELECT 'waiting', tokens FROM chains
"""
"""What became of trainable ids, and of how many, in parts."""
