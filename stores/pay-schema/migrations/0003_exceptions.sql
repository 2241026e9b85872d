-- Who closed an exception, when and why. Evidence that comes after a final outcome is kept beside it.

ALTER TABLE rail_exception ADD COLUMN closed_at bigint, ADD COLUMN closed_reason text;
GRANT UPDATE (closed_at, closed_reason) ON rail_exception TO {rail_role};

-- As before, but a reference or a reason may be filled in beside a final outcome, once.
CREATE OR REPLACE FUNCTION rail_submission_moves_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.seq, NEW.submission_id, NEW.payout_id, NEW.account_id, NEW.token, NEW.idempotency_key, NEW.client_reference,
            NEW.amount_minor, NEW.currency, NEW.body_hash, NEW.intent_at, NEW.fencing_enforced)
        IS DISTINCT FROM (OLD.seq, OLD.submission_id, OLD.payout_id, OLD.account_id, OLD.token, OLD.idempotency_key,
            OLD.client_reference, OLD.amount_minor, OLD.currency, OLD.body_hash, OLD.intent_at, OLD.fencing_enforced)
        OR (OLD.forwarded_at IS NOT NULL AND NEW.forwarded_at IS DISTINCT FROM OLD.forwarded_at)
        OR (OLD.forwarded_at IS NULL AND NEW.forwarded_at IS NOT NULL AND OLD.outcome IS NOT NULL)
        OR (coalesce(OLD.outcome IN ('ACKED', 'DECLINED', 'NOT_SENT'), false)
            AND (NEW.outcome, NEW.cause, NEW.outcome_at) IS DISTINCT FROM (OLD.outcome, OLD.cause, OLD.outcome_at))
        OR (OLD.rail_reference IS NOT NULL AND NEW.rail_reference IS DISTINCT FROM OLD.rail_reference)
        OR (OLD.decline_reason IS NOT NULL AND NEW.decline_reason IS DISTINCT FROM OLD.decline_reason)
        OR (OLD.outcome IS NOT NULL AND NEW.outcome IS NULL)
        OR coalesce(OLD.outcome = 'NOT_RECEIVED' AND NEW.outcome = 'TIMEOUT', false) THEN
        RAISE EXCEPTION 'a submission only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
