-- paydb, the payment resource's own file (contract C1.2). Instants are milliseconds since 1970 by the wall clock: they
-- are recorded and shown, and decide nothing but the escalation flag.

CREATE TABLE account (
    account_id            TEXT    PRIMARY KEY CHECK (length(account_id) BETWEEN 1 AND 64),
    currency              TEXT    NOT NULL CHECK (length(currency) = 3),
    opening_balance_minor INTEGER NOT NULL,
    balance_minor         INTEGER NOT NULL,
    -- The mark of fence point (a): the highest token that has written here.
    fence                 INTEGER NOT NULL DEFAULT 0 CHECK (fence >= 0),
    -- The highest token that was shut out by hand: it stays out even where it had claimed something (FR-08).
    barrier               INTEGER NOT NULL DEFAULT 0 CHECK (barrier BETWEEN 0 AND fence),
    opened_at             INTEGER NOT NULL
) STRICT;

CREATE TRIGGER account_fence_only_rises BEFORE UPDATE OF fence, barrier ON account
WHEN NEW.fence < OLD.fence OR NEW.barrier < OLD.barrier
BEGIN
    SELECT RAISE(ABORT, 'a fence only rises');
END;

CREATE TABLE payout (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    payout_id       TEXT    NOT NULL UNIQUE CHECK (length(payout_id) BETWEEN 1 AND 35),
    account_id      TEXT    NOT NULL REFERENCES account (account_id),
    amount_minor    INTEGER NOT NULL CHECK (amount_minor > 0),
    currency        TEXT    NOT NULL CHECK (length(currency) = 3),
    -- JSON text {"name": …, "account": …}.
    creditor        TEXT    NOT NULL,
    reference       TEXT,
    state           TEXT    NOT NULL CHECK (state IN ('PENDING', 'CLAIMED', 'RAIL_AMBIGUOUS', 'POSTED', 'FAILED')),
    claim_token     INTEGER CHECK (claim_token > 0),
    rail_reference  TEXT,
    failure_reason  TEXT,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    ambiguous_since INTEGER,
    escalated_at    INTEGER,
    version         INTEGER NOT NULL DEFAULT 1
) STRICT;

CREATE INDEX payout_by_state ON payout (state, seq);
CREATE INDEX payout_by_account ON payout (account_id, seq);
-- The holds of an account, and what is still open: as small as the work in hand (NFR-04).
CREATE INDEX payout_held ON payout (account_id, amount_minor) WHERE state IN ('CLAIMED', 'RAIL_AMBIGUOUS');
CREATE INDEX payout_open ON payout (created_at) WHERE state IN ('PENDING', 'CLAIMED');
CREATE INDEX payout_ambiguous ON payout (ambiguous_since, escalated_at) WHERE state = 'RAIL_AMBIGUOUS';

-- How many payouts stand where, kept with each step: counting settled payouts would cost more every day.
CREATE TABLE payout_tally (
    state TEXT    PRIMARY KEY,
    n     INTEGER NOT NULL
) STRICT;

INSERT INTO payout_tally (state, n)
VALUES ('PENDING', 0), ('CLAIMED', 0), ('RAIL_AMBIGUOUS', 0), ('POSTED', 0), ('FAILED', 0);

CREATE TRIGGER payout_tally_insert AFTER INSERT ON payout
BEGIN
    UPDATE payout_tally SET n = n + 1 WHERE state = NEW.state;
END;

CREATE TRIGGER payout_tally_update AFTER UPDATE OF state ON payout WHEN OLD.state <> NEW.state
BEGIN
    UPDATE payout_tally SET n = n - 1 WHERE state = OLD.state;
    UPDATE payout_tally SET n = n + 1 WHERE state = NEW.state;
END;

CREATE TRIGGER payout_stays BEFORE DELETE ON payout
BEGIN
    SELECT RAISE(ABORT, 'payouts are never deleted');
END;

CREATE TABLE payout_transition (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    payout_id  TEXT    NOT NULL REFERENCES payout (payout_id),
    -- Which step of the state machine: what a replay is recognised by.
    step       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    token      INTEGER,
    actor      TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    detail     TEXT
) STRICT;

CREATE INDEX payout_transition_by_payout ON payout_transition (payout_id, seq);
CREATE INDEX payout_transition_by_token ON payout_transition (token, payout_id, step) WHERE token IS NOT NULL;

CREATE TRIGGER payout_transition_no_update BEFORE UPDATE ON payout_transition
BEGIN
    SELECT RAISE(ABORT, 'payout_transition is append-only');
END;

CREATE TRIGGER payout_transition_no_delete BEFORE DELETE ON payout_transition
BEGIN
    SELECT RAISE(ABORT, 'payout_transition is append-only');
END;

-- Legs of payouts, and of credits (then payout_id and token are null and credit_id joins the two legs). There is no
-- unique key over a payout's legs: a second pair is what the negative control must be able to show.
CREATE TABLE ledger_entry (
    entry_id     INTEGER PRIMARY KEY AUTOINCREMENT,
    payout_id    TEXT    REFERENCES payout (payout_id),
    credit_id    INTEGER,
    account_id   TEXT    NOT NULL,
    currency     TEXT    NOT NULL CHECK (length(currency) = 3),
    amount_minor INTEGER NOT NULL CHECK (amount_minor <> 0),
    token        INTEGER,
    at           INTEGER NOT NULL,
    CHECK ((payout_id IS NULL) <> (credit_id IS NULL))
) STRICT;

CREATE INDEX ledger_entry_by_account ON ledger_entry (account_id, entry_id);
CREATE INDEX ledger_entry_by_payout ON ledger_entry (payout_id);

CREATE TRIGGER ledger_entry_no_update BEFORE UPDATE ON ledger_entry
BEGIN
    SELECT RAISE(ABORT, 'ledger_entry is append-only');
END;

CREATE TRIGGER ledger_entry_no_delete BEFORE DELETE ON ledger_entry
BEGIN
    SELECT RAISE(ABORT, 'ledger_entry is append-only');
END;

-- Every fact in one order (FR-30), written in the transaction it describes. Its seq is also a credit's id.
CREATE TABLE payment_event (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    account_id TEXT,
    payout_id  TEXT,
    token      INTEGER,
    actor      TEXT    NOT NULL,
    reason     TEXT
) STRICT;

CREATE TRIGGER payment_event_no_update BEFORE UPDATE ON payment_event
BEGIN
    SELECT RAISE(ABORT, 'payment_event is append-only');
END;

CREATE TRIGGER payment_event_no_delete BEFORE DELETE ON payment_event
BEGIN
    SELECT RAISE(ABORT, 'payment_event is append-only');
END;

CREATE TABLE idempotency (
    route     TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    body_hash TEXT    NOT NULL,
    answer    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (route, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE pay_lineage (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    lineage     TEXT    NOT NULL,
    token_floor INTEGER NOT NULL DEFAULT 0,
    state       TEXT    NOT NULL DEFAULT 'OK' CHECK (state IN ('OK', 'REGRESSED')),
    changed_at  INTEGER NOT NULL,
    changed_by  TEXT    NOT NULL
) STRICT;
