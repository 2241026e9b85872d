-- The rail proxy's half of paydb (C1.2): fence point (c). Instants are milliseconds since 1970 (UTC) by the proxies' wall
-- clocks: they are recorded and shown, and decide nothing but whether a lookup came after the visibility horizon.
--
-- {rail_role} writes these tables and nothing else; {payment_role} reads what is evidence and nothing else. Locks are
-- taken account (the mark), payout, submission.

CREATE TABLE rail_submission (
    -- The order of intents; a cursor.
    seq              bigint  GENERATED ALWAYS AS IDENTITY UNIQUE,
    submission_id    text    COLLATE "C" PRIMARY KEY,
    payout_id        text    COLLATE "C" NOT NULL,
    account_id       text    COLLATE "C" NOT NULL,
    token            bigint  NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    idempotency_key  text    COLLATE "C" NOT NULL,
    client_reference text    COLLATE "C" NOT NULL,
    amount_minor     bigint  NOT NULL CHECK (amount_minor > 0),
    currency         text    NOT NULL,
    -- What makes a repeated request the same request; null where no request was made (by a fence or a lookup).
    body_hash        text,
    intent_at        bigint  NOT NULL,
    forwarded_at     bigint,
    outcome          text    CHECK (outcome IN ('ACKED', 'DECLINED', 'TIMEOUT', 'NOT_RECEIVED', 'NOT_SENT')),
    actor            text,
    cause            text,
    rail_reference   text,
    decline_reason   text,
    outcome_at       bigint,
    fencing_enforced boolean NOT NULL,
    CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
    CHECK (outcome IS DISTINCT FROM 'ACKED' OR rail_reference IS NOT NULL)
);

-- FR-18: a second submission of a payout is refused by the database itself, whatever its token.
CREATE UNIQUE INDEX rail_submission_once ON rail_submission (payout_id) WHERE fencing_enforced;
CREATE INDEX rail_submission_payout ON rail_submission (payout_id, seq);
CREATE INDEX rail_submission_key ON rail_submission (idempotency_key);
CREATE INDEX rail_submission_token ON rail_submission (account_id, token);
CREATE INDEX rail_submission_outcome ON rail_submission (outcome, seq);
-- What is still open: as small as the work in hand.
CREATE INDEX rail_submission_intent ON rail_submission (intent_at) WHERE outcome IS NULL;
CREATE INDEX rail_submission_timeout ON rail_submission (outcome_at) WHERE outcome = 'TIMEOUT';

CREATE TABLE rail_high_water (
    account_id    text   COLLATE "C" PRIMARY KEY,
    highest_token bigint NOT NULL CHECK (highest_token BETWEEN 0 AND 9007199254740991),
    updated_at    bigint NOT NULL
    -- Updated with every submission, never in an indexed column: room for the new version on the same page.
) WITH (fillfactor = 50);

CREATE TABLE rail_exception (
    exception_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payout_id    text   COLLATE "C" NOT NULL,
    at           bigint NOT NULL,
    kind         text   NOT NULL,
    detail       text   NOT NULL,
    closed_by    text,
    -- The same thing seen again is no new exception.
    UNIQUE (payout_id, kind, detail)
);
CREATE INDEX rail_exception_open ON rail_exception (exception_id) WHERE closed_by IS NULL;

CREATE TABLE rail_lookup (
    lookup_id      text    COLLATE "C" PRIMARY KEY,
    payout_id      text    COLLATE "C" NOT NULL,
    at             bigint  NOT NULL,
    verdict        text    NOT NULL CHECK (verdict IN ('EXECUTED', 'DECLINED', 'NOT_RECEIVED', 'INCONCLUSIVE')),
    executions     bigint  NOT NULL,
    rail_reference text,
    -- Whether the rail answered and knew nothing, asked later than the visibility horizon by a clock that can be trusted.
    saw_nothing    boolean NOT NULL,
    -- In which part of the database's history it was made: what was asked before a restore says nothing after it.
    epoch          bigint  NOT NULL
);
CREATE INDEX rail_lookup_payout ON rail_lookup (payout_id, epoch, at);

CREATE FUNCTION rail_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER rail_submission_is_kept BEFORE DELETE ON rail_submission
    FOR EACH ROW EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_submission_not_emptied BEFORE TRUNCATE ON rail_submission
    FOR EACH STATEMENT EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_high_water_is_kept BEFORE DELETE ON rail_high_water
    FOR EACH ROW EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_high_water_not_emptied BEFORE TRUNCATE ON rail_high_water
    FOR EACH STATEMENT EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_exception_is_kept BEFORE DELETE ON rail_exception
    FOR EACH ROW EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_exception_not_emptied BEFORE TRUNCATE ON rail_exception
    FOR EACH STATEMENT EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_lookup_is_kept BEFORE UPDATE OR DELETE ON rail_lookup
    FOR EACH ROW EXECUTE FUNCTION rail_is_kept();
CREATE TRIGGER rail_lookup_not_emptied BEFORE TRUNCATE ON rail_lookup
    FOR EACH STATEMENT EXECUTE FUNCTION rail_is_kept();

-- What was submitted never changes, it is forwarded once at most, and a final outcome stays. NOT_RECEIVED gives way to
-- what the rail says later; nothing ever becomes less known.
CREATE FUNCTION rail_submission_moves_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.seq, NEW.submission_id, NEW.payout_id, NEW.account_id, NEW.token, NEW.idempotency_key, NEW.client_reference,
            NEW.amount_minor, NEW.currency, NEW.body_hash, NEW.intent_at, NEW.fencing_enforced)
        IS DISTINCT FROM (OLD.seq, OLD.submission_id, OLD.payout_id, OLD.account_id, OLD.token, OLD.idempotency_key,
            OLD.client_reference, OLD.amount_minor, OLD.currency, OLD.body_hash, OLD.intent_at, OLD.fencing_enforced)
        OR (OLD.forwarded_at IS NOT NULL AND NEW.forwarded_at IS DISTINCT FROM OLD.forwarded_at)
        OR (OLD.forwarded_at IS NULL AND NEW.forwarded_at IS NOT NULL AND OLD.outcome IS NOT NULL)
        OR coalesce(OLD.outcome IN ('ACKED', 'DECLINED', 'NOT_SENT'), false)
        OR (OLD.outcome IS NOT NULL AND NEW.outcome IS NULL)
        OR coalesce(OLD.outcome = 'NOT_RECEIVED' AND NEW.outcome = 'TIMEOUT', false) THEN
        RAISE EXCEPTION 'a submission only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rail_submission_moves_forward BEFORE UPDATE ON rail_submission
    FOR EACH ROW EXECUTE FUNCTION rail_submission_moves_forward();

CREATE FUNCTION rail_high_water_rises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.account_id <> OLD.account_id OR NEW.highest_token < OLD.highest_token THEN
        RAISE EXCEPTION 'a mark only rises' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rail_high_water_rises BEFORE UPDATE ON rail_high_water
    FOR EACH ROW EXECUTE FUNCTION rail_high_water_rises();

CREATE FUNCTION rail_exception_is_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.exception_id, NEW.payout_id, NEW.at, NEW.kind, NEW.detail)
        IS DISTINCT FROM (OLD.exception_id, OLD.payout_id, OLD.at, OLD.kind, OLD.detail)
        OR OLD.closed_by IS NOT NULL THEN
        RAISE EXCEPTION 'an exception is closed once, and changes in nothing else' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rail_exception_is_closed BEFORE UPDATE ON rail_exception
    FOR EACH ROW EXECUTE FUNCTION rail_exception_is_closed();

-- The payout as the rail may know it, its row locked in share mode until the end of the transaction. SELECT alone gives
-- no right to lock, and without the lock a settlement as FAILED and a late acknowledgement of the same moment would each
-- miss the other. Whoever settles a payout locks its row first and reads the evidence in a later statement (C1.6).
-- Runs as the owner, with nothing that the caller made for itself in its search path.
CREATE FUNCTION rail_payout_state(p_payout_id text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT state FROM payout WHERE payout_id = p_payout_id FOR SHARE
$$;
REVOKE ALL ON FUNCTION rail_payout_state(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION rail_payout_state(text) TO {rail_role};

-- How often this paydb was found to be restored or moved, and when last by the proxies' clocks. After the first time R1
-- sends nothing that the rail was not asked about in the same epoch (case D13).
ALTER TABLE pay_lineage ADD COLUMN epoch bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0), ADD COLUMN restored_at bigint,
    ADD CHECK ((epoch = 0) = (restored_at IS NULL));

REVOKE ALL ON rail_submission, rail_high_water, rail_exception, rail_lookup FROM PUBLIC;
GRANT SELECT, INSERT ON rail_submission, rail_high_water, rail_exception, rail_lookup TO {rail_role};
GRANT UPDATE (forwarded_at, outcome, cause, rail_reference, decline_reason, outcome_at) ON rail_submission TO {rail_role};
GRANT UPDATE (highest_token, updated_at) ON rail_high_water TO {rail_role};
GRANT UPDATE (closed_by) ON rail_exception TO {rail_role};
GRANT SELECT ON payout TO {rail_role};
-- What says that it was restored, and nothing of what it is.
REVOKE UPDATE ON pay_lineage FROM {rail_role};
GRANT UPDATE (origin, written_by, epoch, restored_at, changed_at, changed_by, detail) ON pay_lineage TO {rail_role};
GRANT SELECT ON rail_submission, rail_lookup TO {payment_role};
