-- Sessions: who is alive. Instants are milliseconds since 1970 by the wall clock, for showing; no expiry is decided by
-- them (the lease clock observes each row monotonically).
CREATE TABLE lock_session (
    session_id        TEXT    NOT NULL PRIMARY KEY,
    owner             TEXT    NOT NULL,
    metadata          TEXT,
    ttl_ms            INTEGER NOT NULL CHECK (ttl_ms > 0),
    opened_at         INTEGER NOT NULL,
    expires_at        INTEGER NOT NULL,
    last_heartbeat_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per held key. A freed key's row stays as a tombstone: session null, expires_at the instant it was freed,
-- token the highest ever minted for it. Keys compare byte by byte.
CREATE TABLE lock_grant (
    lock_key   TEXT    NOT NULL PRIMARY KEY COLLATE BINARY,
    session_id TEXT    REFERENCES lock_session (session_id),
    token      INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    ttl_ms     INTEGER NOT NULL CHECK (ttl_ms > 0),
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    metadata   TEXT,
    request_id TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX lock_grant_held ON lock_grant (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX lock_grant_freed ON lock_grant (expires_at) WHERE session_id IS NULL;

-- The source of all tokens: never reset, never cycled, only ever moved up.
CREATE TABLE lock_token_seq (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL CHECK (last BETWEEN 0 AND 9007199254740991)
) STRICT;
INSERT INTO lock_token_seq (id, last) VALUES (1, 0);
CREATE TRIGGER lock_token_seq_rises BEFORE UPDATE ON lock_token_seq WHEN NEW.last < OLD.last OR NEW.id <> OLD.id
BEGIN
    SELECT RAISE(ABORT, 'lock_token_seq only moves up');
END;
CREATE TRIGGER lock_token_seq_stays BEFORE DELETE ON lock_token_seq
BEGIN
    SELECT RAISE(ABORT, 'lock_token_seq is never reset');
END;
CREATE TRIGGER lock_token_seq_once BEFORE INSERT ON lock_token_seq
BEGIN
    SELECT RAISE(ABORT, 'lock_token_seq is never reset');
END;

-- The identity of this history of tokens, and whether it is trusted.
CREATE TABLE lock_lineage (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    lineage     TEXT    NOT NULL,
    token_floor INTEGER NOT NULL CHECK (token_floor BETWEEN 0 AND 9007199254740991),
    state       TEXT    NOT NULL CHECK (state IN ('OK', 'REGRESSED')),
    changed_at  INTEGER NOT NULL,
    changed_by  TEXT    NOT NULL,
    -- What was found, while in doubt.
    detail      TEXT,
    -- A configured lineage other than this one that an operator has accepted by clearing the doubt.
    accepted    TEXT
) STRICT;

-- Facts, written in the transaction they describe.
CREATE TABLE lock_event (
    seq        INTEGER PRIMARY KEY,
    at         INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    lock_key   TEXT COLLATE BINARY,
    session_id TEXT,
    token      INTEGER,
    actor      TEXT,
    reason     TEXT
) STRICT;
CREATE INDEX lock_event_key ON lock_event (lock_key, seq) WHERE lock_key IS NOT NULL;

-- Seals over contiguous segments of the facts, appended afterwards.
CREATE TABLE lock_event_seal (
    chain     TEXT    NOT NULL,
    n         INTEGER NOT NULL CHECK (n >= 1),
    first_seq INTEGER NOT NULL UNIQUE,
    last_seq  INTEGER NOT NULL UNIQUE CHECK (last_seq >= first_seq),
    prev_hash TEXT    NOT NULL CHECK (length(prev_hash) = 64),
    hash      TEXT    NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (chain, n)
) STRICT;

-- The guard row of retention: facts up to this seq may be dropped. It rises only, and only to the end of a sealed
-- segment, so that a plain DELETE finds nothing it may touch, and what is left always begins behind a known seal.
CREATE TABLE lock_event_retention (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    dropped_up_to  INTEGER NOT NULL
) STRICT;
INSERT INTO lock_event_retention (id, dropped_up_to) VALUES (1, 0);
CREATE TRIGGER lock_event_retention_rises BEFORE UPDATE ON lock_event_retention
WHEN NEW.id <> OLD.id OR NEW.dropped_up_to < OLD.dropped_up_to
    OR NOT EXISTS (SELECT 1 FROM lock_event_seal WHERE last_seq = NEW.dropped_up_to)
BEGIN
    SELECT RAISE(ABORT, 'lock_event is append-only: only whole sealed segments may go');
END;
CREATE TRIGGER lock_event_retention_stays BEFORE DELETE ON lock_event_retention
BEGIN
    SELECT RAISE(ABORT, 'lock_event_retention is one row');
END;
CREATE TRIGGER lock_event_retention_once BEFORE INSERT ON lock_event_retention
BEGIN
    SELECT RAISE(ABORT, 'lock_event_retention is one row');
END;

-- Refuses REPLACE as well, which would delete without firing the triggers below.
CREATE TRIGGER lock_event_appended BEFORE INSERT ON lock_event WHEN NEW.seq <= (SELECT max(seq) FROM lock_event)
BEGIN
    SELECT RAISE(ABORT, 'lock_event is append-only');
END;
CREATE TRIGGER lock_event_unchanged BEFORE UPDATE ON lock_event
BEGIN
    SELECT RAISE(ABORT, 'lock_event is append-only');
END;
CREATE TRIGGER lock_event_kept BEFORE DELETE ON lock_event
WHEN OLD.seq > (SELECT dropped_up_to FROM lock_event_retention)
BEGIN
    SELECT RAISE(ABORT, 'lock_event is append-only');
END;
CREATE TRIGGER lock_event_seal_appended BEFORE INSERT ON lock_event_seal
WHEN NEW.first_seq <= (SELECT max(last_seq) FROM lock_event_seal)
    OR NEW.last_seq <> (SELECT max(seq) FROM lock_event WHERE seq <= NEW.last_seq)
BEGIN
    SELECT RAISE(ABORT, 'lock_event_seal is append-only');
END;
CREATE TRIGGER lock_event_seal_unchanged BEFORE UPDATE ON lock_event_seal
BEGIN
    SELECT RAISE(ABORT, 'lock_event_seal is append-only');
END;
-- The seal at the guard itself stays: the next segment's prev_hash is its hash.
CREATE TRIGGER lock_event_seal_kept BEFORE DELETE ON lock_event_seal
WHEN OLD.last_seq >= (SELECT dropped_up_to FROM lock_event_retention)
BEGIN
    SELECT RAISE(ABORT, 'lock_event_seal is append-only');
END;
