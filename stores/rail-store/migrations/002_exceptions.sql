-- Who closed an exception, when and why; it is closed once. Evidence that comes after a final outcome is kept beside it.

ALTER TABLE rail_exception ADD COLUMN closed_at INTEGER;
ALTER TABLE rail_exception ADD COLUMN closed_reason TEXT;

CREATE TRIGGER rail_exception_is_closed BEFORE UPDATE ON rail_exception
WHEN NEW.exception_id IS NOT OLD.exception_id OR NEW.payout_id IS NOT OLD.payout_id OR NEW.at IS NOT OLD.at
  OR NEW.kind IS NOT OLD.kind OR NEW.detail IS NOT OLD.detail OR OLD.closed_by IS NOT NULL
BEGIN SELECT RAISE (ABORT, 'an exception is closed once, and changes in nothing else'); END;

-- As before, but a reference or a reason may be filled in beside a final outcome, once.
DROP TRIGGER rail_submission_moves_forward;
CREATE TRIGGER rail_submission_moves_forward BEFORE UPDATE ON rail_submission
WHEN NEW.submission_id IS NOT OLD.submission_id OR NEW.payout_id IS NOT OLD.payout_id
  OR NEW.account_id IS NOT OLD.account_id OR NEW.token IS NOT OLD.token
  OR NEW.idempotency_key IS NOT OLD.idempotency_key OR NEW.client_reference IS NOT OLD.client_reference
  OR NEW.amount_minor IS NOT OLD.amount_minor OR NEW.currency IS NOT OLD.currency
  OR NEW.body_hash IS NOT OLD.body_hash OR NEW.intent_at IS NOT OLD.intent_at
  OR NEW.fencing_enforced IS NOT OLD.fencing_enforced
  OR (OLD.forwarded_at IS NOT NULL AND NEW.forwarded_at IS NOT OLD.forwarded_at)
  OR (OLD.forwarded_at IS NULL AND NEW.forwarded_at IS NOT NULL AND OLD.outcome IS NOT NULL)
  OR (OLD.outcome IN ('ACKED', 'DECLINED', 'NOT_SENT')
      AND (NEW.outcome IS NOT OLD.outcome OR NEW.cause IS NOT OLD.cause OR NEW.outcome_at IS NOT OLD.outcome_at
           OR NEW.forwarded_at IS NOT OLD.forwarded_at))
  OR (OLD.rail_reference IS NOT NULL AND NEW.rail_reference IS NOT OLD.rail_reference)
  OR (OLD.decline_reason IS NOT NULL AND NEW.decline_reason IS NOT OLD.decline_reason)
  OR (OLD.outcome IS NOT NULL AND NEW.outcome IS NULL)
  OR (OLD.outcome = 'NOT_RECEIVED' AND NEW.outcome = 'TIMEOUT')
BEGIN SELECT RAISE (ABORT, 'a submission only moves forward'); END;
