"""What goes on beside the disturbances: payouts are asked for, locks are taken, counters are read."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

CALL_TIMEOUT_S = 2.0
# After so long a caller gives up: longer than any replica needs to be taken off its Service.
GIVE_UP_S = 30.0
AMOUNT, OPENING = 1_000, 100_000_000


class NoAnswer(Exception):
    """Refused, reset, timed out, unreadable, or a 5xx: it may be asked again."""


def call(url, body=None, method=None, headers=()):
    """Status and JSON of one call; it never asks twice."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        if error.code >= 500:
            raise NoAnswer(f"{error.code} {text[:200]}") from None
        return error.code, json.loads(text)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswer(repr(error)) from None


class Caller:
    """Asks one of several replicas, and the next one when there is no answer. What is asked must be safe to ask again."""

    def __init__(self, urls):
        self.urls, self.turn = list(urls), 0
        self.unanswered = []

    def __call__(self, path, within=GIVE_UP_S, **request):
        started = time.time()
        while True:
            url = self.urls[self.turn % len(self.urls)]
            try:
                return call(url + path, **request)
            except NoAnswer as error:
                self.unanswered.append((time.time(), f"{url}: {error}"))
                self.turn += 1
                if time.time() - started > within:
                    raise
                time.sleep(0.05)


class Worker(threading.Thread):
    """Something that is done again and again until it is told to stop."""

    def __init__(self, every):
        super().__init__(daemon=True)
        self.every, self.done = every, threading.Event()
        self.broken = None

    def run(self):
        due = time.monotonic()
        while not self.done.is_set():
            try:
                self.once()
            except Exception as error:  # noqa: BLE001 - it must be seen in the verdict, whatever it is
                self.broken = f"{type(self).__name__}: {error!r}"
                return
            # What could not be done in time is not made up for: the load stays even.
            due = max(due + self.every, time.monotonic() - self.every)
            self.done.wait(max(0.0, due - time.monotonic()))

    def stop(self):
        self.done.set()
        self.join(timeout=GIVE_UP_S + 10)


class Payouts(Worker):
    """A steady load of payouts, over so many accounts that one which is stuck holds up only its own."""

    def __init__(self, urls, every, accounts):
        super().__init__(every)
        self.caller = Caller(urls)
        self.accounts = [f"rehearsal-{number}" for number in range(accounts)]
        self.asked, self.given_up = {}, []

    def open_accounts(self):
        for account in self.accounts:
            body = {"account_id": account, "currency": "EUR", "opening_balance_minor": OPENING}
            status, answer = self.caller("/v1/accounts", body=body)
            if status not in (200, 201):
                raise ValueError(f"account {account}: {status} {answer}")

    def once(self):
        number = len(self.asked)
        payout, account = f"rehearsal-p{number}", self.accounts[number % len(self.accounts)]
        body = {"payout_id": payout, "account_id": account, "amount_minor": AMOUNT, "currency": "EUR",
                "creditor": {"name": "Ada Example", "account": "DE02120300000000202051"}}
        # Known before it is sent: one that was taken without an answer is asked for as well.
        self.asked[payout] = time.time()
        try:
            # The key makes it safe to ask again: another replica answers what the first one did.
            status, answer = self.caller("/v1/payouts", body=body, headers={"x-idempotency-key": payout})
            if status not in (200, 201):
                self.given_up.append(f"{payout}: {status} {answer}")
        except NoAnswer as error:
            self.given_up.append(f"{payout}: {error}")


class Probe(Worker):
    """A client of the lock service: takes a lock, gives it back, and notes when it was granted."""

    def __init__(self, urls, every):
        super().__init__(every)
        self.caller = Caller(urls)
        self.session, self.beaten, self.number = None, 0.0, 0
        self.granted, self.sessions_lost, self.given_up = [], [], []

    def once(self):
        try:
            self.pair()
        except NoAnswer as error:
            self.given_up.append(f"probe {self.number}: {error}")
            self.session = None

    def lost(self):
        self.sessions_lost.append(time.time())
        self.session = None

    def pair(self):
        if self.session is None:
            self.session = self.expect(201, "/v1/sessions", body={"owner": "rehearsal-probe", "ttl_ms": 15_000})["session_id"]
            self.beaten = time.time()
        if time.time() - self.beaten > 5:
            status, _ = self.caller(f"/v1/sessions/{self.session}/heartbeat", body={})
            if status == 404:
                return self.lost()
            self.beaten = time.time()
        self.number += 1
        # Ten keys in turn, so that each is granted again and again.
        key = urllib.parse.quote(f"rehearsal:probe:{self.number % 10}", safe="")
        # The request's id makes it safe to ask again: the grant that it has already is answered.
        body = {"session_id": self.session, "request_id": uuid.uuid4().hex, "ttl_ms": 5_000}
        status, answer = self.caller(f"/v1/locks/{key}/acquire", body=body)
        if status == 404:
            return self.lost()
        if status == 409:
            # A release whose answer was lost with its session; that key is free again when its time is over.
            return None
        if status != 200:
            raise NoAnswer(f"{status} {answer}")
        self.granted.append(time.time())
        self.caller(f"/v1/locks/{key}?session_id={self.session}", method="DELETE", headers={"x-fencing-token": str(answer["token"])})
        return None

    def expect(self, wanted, path, **request):
        status, answer = self.caller(path, **request)
        if status != wanted:
            raise NoAnswer(f"{status} {answer}")
        return answer


class Counters(Worker):
    """`lock_acquire_total` of every lock server, read again and again, since a restarted one begins at zero."""

    def __init__(self, urls, every=2.0):
        super().__init__(every)
        self.urls, self.last, self.seen = urls, {}, []

    def once(self):
        for url in self.urls:
            try:
                with urllib.request.urlopen(f"{url}/metrics", timeout=1) as answer:
                    text = answer.read().decode()
            except (OSError, http.client.HTTPException):
                continue
            for line in text.splitlines():
                if line.startswith("lock_acquire_total{"):
                    outcome, value = line.split('outcome="')[1].split('"')[0], float(line.rsplit(" ", 1)[1])
                    before = self.last.get((url, outcome), 0.0)
                    more = value - before if value >= before else value
                    self.last[url, outcome] = value
                    if more:
                        self.seen.append((time.time(), outcome, int(more)))
