-- How a key goes from one holder to the next: the delay after an unclean loss, and the request to yield. Columns with a
-- default alone: what a program of before writes stays right.

-- What the grant asked for; of a tombstone, what its last grant had asked for.
ALTER TABLE lock_grant ADD COLUMN lock_delay_ms INTEGER NOT NULL DEFAULT 0 CHECK (lock_delay_ms BETWEEN 0 AND 60000);
-- Set where a tombstone's last grant was lost uncleanly and asked for a delay, until a sweep finds that the delay has
-- passed: nobody is granted the key meanwhile. An instant by the wall clock, for showing; the delay is counted by the
-- lease clock. Means nothing while the key is held.
ALTER TABLE lock_grant ADD COLUMN closed_until INTEGER;
CREATE INDEX lock_grant_closed ON lock_grant (closed_until) WHERE closed_until IS NOT NULL;

-- Who asked the holder to give the key up, why and when: the first to ask. Gone with the grant.
ALTER TABLE lock_grant ADD COLUMN yield_by TEXT;
ALTER TABLE lock_grant ADD COLUMN yield_reason TEXT;
ALTER TABLE lock_grant ADD COLUMN yield_at INTEGER;
