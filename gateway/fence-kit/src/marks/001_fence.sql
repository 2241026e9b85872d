-- The highest token that was begun, and the highest that was presented, of each key. A row never goes: who forgot a mark
-- would let an old token pass.
CREATE TABLE fence_mark (
    key TEXT PRIMARY KEY,
    mark INTEGER CHECK (mark BETWEEN 1 AND 9007199254740991),
    spent INTEGER NOT NULL DEFAULT 0 CHECK (spent IN (0, 1)),
    announced INTEGER NOT NULL CHECK (announced BETWEEN 1 AND 9007199254740991 AND announced >= coalesce(mark, 1)),
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER fence_mark_rises BEFORE UPDATE ON fence_mark
WHEN NEW.announced < OLD.announced OR coalesce(NEW.mark, 0) < coalesce(OLD.mark, 0) OR NEW.key <> OLD.key
BEGIN SELECT RAISE(ABORT, 'a mark is never lowered'); END;

CREATE TRIGGER fence_mark_stays BEFORE DELETE ON fence_mark
BEGIN SELECT RAISE(ABORT, 'a mark is never removed'); END;

-- Requests that were begun and not answered. Written before the send, gone with the answer.
CREATE TABLE fence_open (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    token INTEGER NOT NULL,
    what TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    cause TEXT
) STRICT;
CREATE INDEX fence_open_of_key ON fence_open (key, token);

-- Those that somebody declared to be without effect.
CREATE TABLE fence_cleared (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    id TEXT NOT NULL,
    key TEXT NOT NULL,
    token INTEGER NOT NULL,
    what TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    cause TEXT,
    operator TEXT,
    reason TEXT NOT NULL
) STRICT;
CREATE TRIGGER fence_cleared_stands BEFORE UPDATE ON fence_cleared
BEGIN SELECT RAISE(ABORT, 'what was cleared stays recorded'); END;
CREATE TRIGGER fence_cleared_stays BEFORE DELETE ON fence_cleared
BEGIN SELECT RAISE(ABORT, 'what was cleared stays recorded'); END;
