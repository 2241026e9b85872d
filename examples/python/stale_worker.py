"""A worker that slept through its lease, and the ledger that refuses it.

DLOCK_LOCK_SERVER and DLOCK_EXECUTOR_PAYMENTS name a lock server and a payment resource; those of `dlock up` where nothing is said.
"""

import os
import uuid

from dlock import LockLost, Problem, Session, call

LOCK = os.environ.get("DLOCK_LOCK_SERVER", "http://127.0.0.1:7400")
PAY = os.environ.get("DLOCK_EXECUTOR_PAYMENTS", "http://127.0.0.1:7401")


def main():
    account, payout = f"py-{uuid.uuid4().hex[:12]}", f"PY-{uuid.uuid4().hex[:12]}"
    key = f"payout:{account}"
    call("POST", f"{PAY}/v1/accounts", {"account_id": account, "currency": "EUR", "opening_balance_minor": 10_000})

    first = Session(LOCK, "W1", ttl_ms=4_000)
    held = first.acquire(key)
    old = held.check_still_held()
    print(f"W1 holds {key} under a token")

    with Session(LOCK, "W2") as second:
        try:
            second.acquire(key)
            raise SystemExit("two workers hold one key")
        except Problem as problem:
            print(f"W2 is refused: {problem.code}, held by {problem.body['holder']['owner']}")

        first.stop_heartbeats()
        print("W1 sleeps")
        taken = second.acquire(key, wait_ms=10_000)
        new = taken.check_still_held()
        assert new > old, (new, old)
        print("W2 waited for the lease to end and holds it under a higher token")

        body = {"payout_id": payout, "account_id": account, "amount_minor": 1_000, "currency": "EUR",
                "creditor": {"name": "Ada", "account": "DE02"}}
        call("POST", f"{PAY}/v1/payouts", body, headers={"X-Idempotency-Key": payout})
        claimed = call("POST", f"{PAY}/v1/payouts/{payout}/claim", {}, token=taken.check_still_held())
        assert (claimed["state"], claimed["claim_token"]) == ("CLAIMED", new), claimed
        print("W2 claims the payout under its token")

        try:
            held.check_still_held()
            raise SystemExit("W1 still believes")
        except LockLost as lost:
            print(f"W1 wakes, and its own deadline says: {str(lost).split(': ')[1]}")
        # It may have looked just before it fell asleep. So it writes, with the token it has.
        try:
            call("POST", f"{PAY}/v1/payouts/{payout}/claim", {}, token=old)
            raise SystemExit("the ledger took a stale token")
        except Problem as problem:
            assert problem.status == 409 and problem.body["presented_token"] == old, problem.body
            print(f"W1 writes all the same, and the ledger answers {problem.code}, {problem.body['reason']}")
        taken.release()
    print("paid by nobody twice")


if __name__ == "__main__":
    main()
