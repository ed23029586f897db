"""The SQL of the training journal."""

from __future__ import annotations

FORMAT = 4
"""Version of the schema, in SQLite's `user_version`. Other versions are refused."""

APPLICATION = 0x53574554
"""SQLite's `application_id` of a journal: "SWET"."""

SCHEMA = """
CREATE TABLE policies (version INTEGER PRIMARY KEY, step INTEGER, updates INTEGER NOT NULL);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, size INTEGER NOT NULL,
    closed INTEGER UNIQUE, skipped TEXT, left_out INTEGER NOT NULL DEFAULT 0,
    overlong INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups,
    rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, reward REAL,
    oldest INTEGER, newest INTEGER, overlong INTEGER NOT NULL, UNIQUE (group_id, rollout_id)
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
    chain INTEGER NOT NULL, cause TEXT NOT NULL, step INTEGER, dropped TEXT
);
CREATE INDEX free_rows ON rows (group_id) WHERE step IS NULL AND dropped IS NULL;
CREATE INDEX trained_rows ON rows (step) WHERE step IS NOT NULL;
CREATE TABLE held_out (task_id TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE evaluations (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL,
    state TEXT NOT NULL
);
"""
"""Ids are int32, logprobs float32, both little-endian; a mask has one bit per id. Closing a group deletes its
members and adds their trainable chains to `rows`, whose ids count up in the order of closing. The ids that
are then in no row are counted in `left_out`, but those of excluded members of a group with rows in
`overlong`. The `state` of an evaluation is open, finished, or lost with its weights."""
READY = """
SELECT g.id, g.closed, r.id, r.rollout_id, r.ids, r.mask, r.logprobs, r.advantage, r.policy_update,
    r.reward, r.chain, r.cause
FROM rows AS r JOIN (
    SELECT id, closed FROM groups WHERE closed > ?
    AND EXISTS (SELECT 1 FROM rows WHERE group_id = groups.id AND step IS NULL AND dropped IS NULL)
    ORDER BY closed LIMIT ?
) AS g ON r.group_id = g.id
WHERE r.step IS NULL AND r.dropped IS NULL ORDER BY g.closed, r.id
"""
"""Rows of the next closed groups with a row that is neither trained nor dropped."""
TRAINED = """
SELECT rollout_id, sum(tokens) FROM rows WHERE group_id = ? AND step IS NOT NULL GROUP BY rollout_id
"""
"""Selects the number of trained ids of each rollout of a group."""
TOKENS_OF_MEMBERS = """
SELECT m.rollout_id, sum(c.tokens) FROM members AS m JOIN chains AS c ON c.member_id = m.id
WHERE m.group_id = ? GROUP BY m.rollout_id
"""
"""Selects the number of trainable ids of each member of an open group that has chains."""
RAISE = """
INSERT INTO policies SELECT :version, :step, coalesce(
    CASE WHEN :again THEN (SELECT max(updates) FROM policies WHERE step <= :step) END,
    (SELECT updates + :version - version FROM policies ORDER BY version DESC LIMIT 1), :version
) WHERE :version > (SELECT coalesce(max(version), 0) FROM policies)
"""
"""Adds a policy version. Its updates are those sent by that step, or grow with the version number."""
EMPTY = "ids = x'', mask = x'', logprobs = x''"
"""Deletes the arrays of rows."""
VIEWS = """
CREATE VIEW tokens AS SELECT fate, sum(tokens) AS tokens FROM (
SELECT CASE WHEN dropped IS NOT NULL THEN dropped WHEN step IS NOT NULL THEN 'trained' ELSE 'waiting' END
    AS fate, tokens FROM rows
UNION ALL SELECT coalesce(skipped, 'stale'), left_out FROM groups
UNION ALL SELECT 'overlong', overlong FROM groups
UNION ALL SELECT 'waiting', tokens FROM chains
) GROUP BY fate HAVING sum(tokens) > 0;
CREATE VIEW progress AS SELECT
    (SELECT coalesce(max(step), 0) FROM rows) AS steps,
    (SELECT coalesce(max(version), 0) FROM policies) AS policy_version,
    (SELECT count(*) FROM groups) AS groups
"""
"""For readers, such as `swe_core.rollout.training_account`: the account of trainable ids, and how far the
training is."""
