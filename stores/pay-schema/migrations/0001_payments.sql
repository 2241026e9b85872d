-- paydb on PostgreSQL 16: what the payment resource writes (contract C1.2), the lineage, and who may do what. Runs as the
-- schema's owner, with the schema first in the search path, in one transaction with every other migration.
--
-- Roles: the owner changes tables and touches no row while the service runs; {payment_role} is the payment resource,
-- {rail_role} the rail proxy. Nobody else has any right. Rights that a role does not have are the first guard, triggers the
-- second: they hold for the owner too.
--
-- Everybody locks in one order: account, payout, submission, turnstile.

GRANT USAGE ON SCHEMA {schema} TO {payment_role}, {rail_role};
GRANT SELECT ON pay_schema TO {payment_role}, {rail_role};

-- Instants are milliseconds since 1970 (UTC). Here they come from the database's clock, one for all replicas; they are
-- recorded and shown, and decide nothing but the escalation flag.
CREATE FUNCTION pay_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- One trigger for every table whose rows are facts.
CREATE FUNCTION pay_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'DP009';
END $$;
-- One for every table whose rows stay.
CREATE FUNCTION pay_is_kept() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never deleted', TG_TABLE_NAME USING ERRCODE = 'DP009';
END $$;

CREATE TABLE account (
    account_id            text COLLATE "C" PRIMARY KEY CHECK (length(account_id) BETWEEN 1 AND 64),
    currency              text NOT NULL CHECK (length(currency) = 3),
    opening_balance_minor bigint NOT NULL,
    balance_minor         bigint NOT NULL,
    -- The mark of fence point (a): the highest token that has written here.
    fence                 bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),
    -- The highest token that was shut out by hand: it stays out even where it had claimed something (FR-08).
    barrier               bigint NOT NULL DEFAULT 0 CHECK (barrier BETWEEN 0 AND fence),
    opened_at             bigint NOT NULL
) WITH (fillfactor = 80);

CREATE FUNCTION account_fence_only_rises() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.fence < OLD.fence OR NEW.barrier < OLD.barrier THEN
        RAISE EXCEPTION 'a fence only rises' USING ERRCODE = 'DP009';
    END IF;
    IF NEW.account_id <> OLD.account_id OR NEW.currency <> OLD.currency
        OR NEW.opening_balance_minor <> OLD.opening_balance_minor THEN
        RAISE EXCEPTION 'what an account was opened with never changes' USING ERRCODE = 'DP009';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER account_fence_only_rises BEFORE UPDATE ON account
    FOR EACH ROW EXECUTE FUNCTION account_fence_only_rises();
CREATE TRIGGER account_is_kept BEFORE DELETE ON account FOR EACH ROW EXECUTE FUNCTION pay_is_kept();
CREATE TRIGGER account_not_emptied BEFORE TRUNCATE ON account FOR EACH STATEMENT EXECUTE FUNCTION pay_is_kept();

CREATE TABLE payout (
    seq             bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    payout_id       text COLLATE "C" PRIMARY KEY CHECK (length(payout_id) BETWEEN 1 AND 35),
    account_id      text COLLATE "C" NOT NULL REFERENCES account (account_id),
    amount_minor    bigint NOT NULL CHECK (amount_minor > 0),
    currency        text NOT NULL CHECK (length(currency) = 3),
    -- JSON text {"name": …, "account": …}, kept byte for byte.
    creditor        text NOT NULL,
    reference       text,
    state           text COLLATE "C" NOT NULL
                    CHECK (state IN ('PENDING', 'CLAIMED', 'RAIL_AMBIGUOUS', 'POSTED', 'FAILED')),
    claim_token     bigint CHECK (claim_token > 0),
    rail_reference  text,
    failure_reason  text,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    ambiguous_since bigint,
    escalated_at    bigint,
    version         bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 80);

CREATE INDEX payout_by_state ON payout (state, seq);
CREATE INDEX payout_by_account ON payout (account_id, seq);
-- The holds of an account, and what is still open: as small as the work in hand (NFR-04).
CREATE INDEX payout_held ON payout (account_id) INCLUDE (amount_minor) WHERE state IN ('CLAIMED', 'RAIL_AMBIGUOUS');
CREATE INDEX payout_open ON payout (created_at) WHERE state IN ('PENDING', 'CLAIMED');
CREATE INDEX payout_ambiguous ON payout (ambiguous_since) WHERE state = 'RAIL_AMBIGUOUS';
-- What is to be escalated: those that have been are not looked at again.
CREATE INDEX payout_to_escalate ON payout (ambiguous_since) WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NULL;

CREATE TRIGGER payout_is_kept BEFORE DELETE ON payout FOR EACH ROW EXECUTE FUNCTION pay_is_kept();
CREATE TRIGGER payout_not_emptied BEFORE TRUNCATE ON payout FOR EACH STATEMENT EXECUTE FUNCTION pay_is_kept();

CREATE FUNCTION payout_keeps_its_order() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'what a payout is never changes' USING ERRCODE = 'DP009';
END $$;
CREATE TRIGGER payout_keeps_its_order BEFORE UPDATE ON payout FOR EACH ROW
    WHEN (NEW.payout_id <> OLD.payout_id OR NEW.account_id <> OLD.account_id OR NEW.amount_minor <> OLD.amount_minor
        OR NEW.currency <> OLD.currency OR NEW.creditor <> OLD.creditor OR NEW.reference IS DISTINCT FROM OLD.reference
        OR NEW.created_at <> OLD.created_at OR NEW.version < OLD.version)
    EXECUTE FUNCTION payout_keeps_its_order();

-- How many payouts stand where, kept with each step: counting settled payouts would cost more every day.
CREATE TABLE payout_tally (
    state text COLLATE "C" PRIMARY KEY,
    n     bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO payout_tally (state, n)
VALUES ('PENDING', 0), ('CLAIMED', 0), ('RAIL_AMBIGUOUS', 0), ('POSTED', 0), ('FAILED', 0);

-- Runs as the owner: the payment resource reads the tally and cannot set it.
CREATE FUNCTION payout_count() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        UPDATE payout_tally SET n = n - 1 WHERE state = OLD.state;
    END IF;
    UPDATE payout_tally SET n = n + 1 WHERE state = NEW.state;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION payout_count() FROM PUBLIC;
CREATE TRIGGER payout_tally_insert AFTER INSERT ON payout FOR EACH ROW EXECUTE FUNCTION payout_count();
CREATE TRIGGER payout_tally_update AFTER UPDATE OF state ON payout FOR EACH ROW WHEN (OLD.state <> NEW.state)
    EXECUTE FUNCTION payout_count();

CREATE TABLE payout_transition (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payout_id  text COLLATE "C" NOT NULL REFERENCES payout (payout_id),
    -- Which step of the state machine: what a replay is recognised by.
    step       text COLLATE "C" NOT NULL,
    from_state text,
    to_state   text NOT NULL,
    token      bigint,
    actor      text NOT NULL,
    at         bigint NOT NULL,
    detail     text
);
CREATE INDEX payout_transition_by_payout ON payout_transition (payout_id, seq);
CREATE INDEX payout_transition_by_token ON payout_transition (token, payout_id, step) WHERE token IS NOT NULL;
CREATE TRIGGER payout_transition_append_only BEFORE UPDATE OR DELETE ON payout_transition
    FOR EACH ROW EXECUTE FUNCTION pay_append_only();
CREATE TRIGGER payout_transition_not_emptied BEFORE TRUNCATE ON payout_transition
    FOR EACH STATEMENT EXECUTE FUNCTION pay_append_only();

-- Legs of payouts, and of credits (then payout_id and token are null and credit_id joins the two legs). There is no
-- unique key over a payout's legs: a second pair is what the negative control must be able to show.
CREATE TABLE ledger_entry (
    entry_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payout_id    text COLLATE "C" REFERENCES payout (payout_id),
    credit_id    bigint,
    account_id   text COLLATE "C" NOT NULL,
    currency     text NOT NULL CHECK (length(currency) = 3),
    amount_minor bigint NOT NULL CHECK (amount_minor <> 0),
    token        bigint,
    at           bigint NOT NULL,
    CHECK ((payout_id IS NULL) <> (credit_id IS NULL))
);
CREATE INDEX ledger_entry_by_account ON ledger_entry (account_id, entry_id);
CREATE INDEX ledger_entry_by_payout ON ledger_entry (payout_id) WHERE payout_id IS NOT NULL;
CREATE TRIGGER ledger_entry_append_only BEFORE UPDATE OR DELETE ON ledger_entry
    FOR EACH ROW EXECUTE FUNCTION pay_append_only();
CREATE TRIGGER ledger_entry_not_emptied BEFORE TRUNCATE ON ledger_entry
    FOR EACH STATEMENT EXECUTE FUNCTION pay_append_only();

-- Every fact in one order (FR-30), written in the transaction it describes. Its seq is also a credit's id.
CREATE TABLE payment_event (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         bigint NOT NULL,
    kind       text NOT NULL,
    account_id text COLLATE "C",
    payout_id  text COLLATE "C",
    token      bigint,
    actor      text NOT NULL,
    reason     text
);
CREATE TRIGGER payment_event_append_only BEFORE UPDATE OR DELETE ON payment_event
    FOR EACH ROW EXECUTE FUNCTION pay_append_only();
CREATE TRIGGER payment_event_not_emptied BEFORE TRUNCATE ON payment_event
    FOR EACH STATEMENT EXECUTE FUNCTION pay_append_only();

CREATE TABLE idempotency (
    route     text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    body_hash text NOT NULL,
    answer    text NOT NULL,
    at        bigint NOT NULL,
    PRIMARY KEY (route, key)
);
CREATE TRIGGER idempotency_append_only BEFORE UPDATE OR DELETE ON idempotency
    FOR EACH ROW EXECUTE FUNCTION pay_append_only();
CREATE TRIGGER idempotency_not_emptied BEFORE TRUNCATE ON idempotency
    FOR EACH STATEMENT EXECUTE FUNCTION pay_append_only();

-- Whoever of the payment resource writes holds this row from before its places (seq, entry_id) are given until they are
-- committed, and takes it last. So the order of places is the order of commit, and a cursor misses none.
CREATE TABLE pay_turnstile (id int PRIMARY KEY CHECK (id = 1));
INSERT INTO pay_turnstile VALUES (1);
CREATE TRIGGER pay_turnstile_is_kept BEFORE DELETE ON pay_turnstile FOR EACH ROW EXECUTE FUNCTION pay_is_kept();

-- The identity of this history of payouts and submissions, and whether it is trusted.
CREATE TABLE pay_lineage (
    id          int PRIMARY KEY CHECK (id = 1),
    lineage     text NOT NULL,
    -- The cluster and the timeline that this row was written on.
    origin      text NOT NULL,
    -- The transaction that wrote this row. A row that was dumped and restored was written by another one: its xmin says so.
    written_by  xid8 NOT NULL,
    token_floor bigint NOT NULL CHECK (token_floor BETWEEN 0 AND 9007199254740991),
    state       text NOT NULL CHECK (state IN ('OK', 'REGRESSED')),
    changed_at  bigint NOT NULL,
    changed_by  text NOT NULL,
    -- What was found, while in doubt.
    detail      text
);
CREATE TRIGGER pay_lineage_is_kept BEFORE DELETE ON pay_lineage FOR EACH ROW EXECUTE FUNCTION pay_is_kept();
CREATE TRIGGER pay_lineage_not_emptied BEFORE TRUNCATE ON pay_lineage
    FOR EACH STATEMENT EXECUTE FUNCTION pay_is_kept();

CREATE FUNCTION pay_origin() RETURNS text LANGUAGE sql VOLATILE AS
    'SELECT system_identifier || ''/'' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()';
-- Whether the lineage's row stands where, and as, it was written: false after a restore of any kind.
CREATE FUNCTION pay_lineage_stands() RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS
    'SELECT coalesce((SELECT origin = pay_origin() AND xmin = written_by::xid FROM pay_lineage WHERE id = 1), false)';

-- The payment resource.
GRANT SELECT, INSERT ON account, payout, payout_transition, ledger_entry, payment_event, idempotency TO {payment_role};
GRANT UPDATE (balance_minor, fence, barrier) ON account TO {payment_role};
GRANT UPDATE (state, claim_token, rail_reference, failure_reason, updated_at, ambiguous_since, escalated_at, version)
    ON payout TO {payment_role};
GRANT SELECT ON payout_tally, pay_lineage TO {payment_role};
-- To lock the row, not to change it: its one value is all that its check admits.
GRANT SELECT, UPDATE ON pay_turnstile TO {payment_role};

-- The rail proxy: it reads the payout it is asked to submit. What it may say of the lineage is granted with its tables.
GRANT SELECT ON payout, pay_lineage TO {rail_role};
