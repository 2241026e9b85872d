-- Instants are milliseconds since 1970 (UTC). Written by the rail proxy alone; payment-resource attaches it read-only.

CREATE TABLE rail_submission (
    submission_id    TEXT    NOT NULL PRIMARY KEY,
    payout_id        TEXT    NOT NULL,
    account_id       TEXT    NOT NULL,
    token            INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    idempotency_key  TEXT    NOT NULL,
    client_reference TEXT    NOT NULL,
    amount_minor     INTEGER NOT NULL CHECK (amount_minor > 0),
    currency         TEXT    NOT NULL,
    -- What makes a repeated request the same request; null where no request was made (NOT_SENT by a fence).
    body_hash        TEXT,
    intent_at        INTEGER NOT NULL,
    forwarded_at     INTEGER,
    outcome          TEXT    CHECK (outcome IN ('ACKED', 'DECLINED', 'TIMEOUT', 'NOT_RECEIVED', 'NOT_SENT')),
    actor            TEXT,
    cause            TEXT,
    rail_reference   TEXT,
    decline_reason   TEXT,
    outcome_at       INTEGER,
    fencing_enforced INTEGER NOT NULL CHECK (fencing_enforced IN (0, 1)),
    CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
    CHECK (outcome IS NOT 'ACKED' OR rail_reference IS NOT NULL)
) STRICT;

-- FR-18: a second submission of a payout is refused by the database itself, whatever its token.
CREATE UNIQUE INDEX rail_submission_once ON rail_submission (payout_id) WHERE fencing_enforced;
CREATE INDEX rail_submission_payout ON rail_submission (payout_id);
CREATE INDEX rail_submission_key ON rail_submission (idempotency_key);
CREATE INDEX rail_submission_token ON rail_submission (account_id, token);
CREATE INDEX rail_submission_outcome ON rail_submission (outcome);

CREATE TRIGGER rail_submission_is_kept BEFORE DELETE ON rail_submission
BEGIN SELECT RAISE (ABORT, 'a submission is never deleted'); END;

-- What was submitted never changes, it is forwarded once at most, and a final outcome stays. NOT_RECEIVED gives way to
-- what the rail says later; nothing ever becomes less known.
CREATE TRIGGER rail_submission_moves_forward BEFORE UPDATE ON rail_submission
WHEN NEW.submission_id IS NOT OLD.submission_id OR NEW.payout_id IS NOT OLD.payout_id
  OR NEW.account_id IS NOT OLD.account_id OR NEW.token IS NOT OLD.token
  OR NEW.idempotency_key IS NOT OLD.idempotency_key OR NEW.client_reference IS NOT OLD.client_reference
  OR NEW.amount_minor IS NOT OLD.amount_minor OR NEW.currency IS NOT OLD.currency
  OR NEW.body_hash IS NOT OLD.body_hash OR NEW.intent_at IS NOT OLD.intent_at
  OR NEW.fencing_enforced IS NOT OLD.fencing_enforced
  OR (OLD.forwarded_at IS NOT NULL AND NEW.forwarded_at IS NOT OLD.forwarded_at)
  OR (OLD.forwarded_at IS NULL AND NEW.forwarded_at IS NOT NULL AND OLD.outcome IS NOT NULL)
  OR OLD.outcome IN ('ACKED', 'DECLINED', 'NOT_SENT')
  OR (OLD.outcome IS NOT NULL AND NEW.outcome IS NULL)
  OR (OLD.outcome = 'NOT_RECEIVED' AND NEW.outcome = 'TIMEOUT')
BEGIN SELECT RAISE (ABORT, 'a submission only moves forward'); END;

CREATE TABLE rail_high_water (
    account_id    TEXT    NOT NULL PRIMARY KEY,
    highest_token INTEGER NOT NULL CHECK (highest_token BETWEEN 0 AND 9007199254740991),
    updated_at    INTEGER NOT NULL
) STRICT;

CREATE TRIGGER rail_high_water_rises BEFORE UPDATE ON rail_high_water
WHEN NEW.account_id IS NOT OLD.account_id OR NEW.highest_token < OLD.highest_token
BEGIN SELECT RAISE (ABORT, 'a mark only rises'); END;
CREATE TRIGGER rail_high_water_is_kept BEFORE DELETE ON rail_high_water
BEGIN SELECT RAISE (ABORT, 'a mark is never deleted'); END;

CREATE TABLE rail_exception (
    exception_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    payout_id    TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    detail       TEXT    NOT NULL,
    closed_by    TEXT,
    -- The same thing seen again is no new exception.
    UNIQUE (payout_id, kind, detail)
) STRICT;
CREATE INDEX rail_exception_open ON rail_exception (exception_id) WHERE closed_by IS NULL;
CREATE TRIGGER rail_exception_is_kept BEFORE DELETE ON rail_exception
BEGIN SELECT RAISE (ABORT, 'an exception is never deleted'); END;

CREATE TABLE rail_lookup (
    lookup_id      TEXT    NOT NULL PRIMARY KEY,
    payout_id      TEXT    NOT NULL,
    at             INTEGER NOT NULL,
    verdict        TEXT    NOT NULL CHECK (verdict IN ('EXECUTED', 'DECLINED', 'NOT_RECEIVED', 'INCONCLUSIVE')),
    executions     INTEGER NOT NULL,
    rail_reference TEXT,
    -- Whether the rail answered and knew nothing, asked later than the visibility horizon by a clock that can be trusted.
    saw_nothing    INTEGER NOT NULL CHECK (saw_nothing IN (0, 1))
) STRICT;
CREATE INDEX rail_lookup_payout ON rail_lookup (payout_id, at);
CREATE TRIGGER rail_lookup_is_kept BEFORE DELETE ON rail_lookup
BEGIN SELECT RAISE (ABORT, 'a lookup is never deleted'); END;
CREATE TRIGGER rail_lookup_stays BEFORE UPDATE ON rail_lookup
BEGIN SELECT RAISE (ABORT, 'a lookup is never changed'); END;
