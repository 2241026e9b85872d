"""A client of dlock's lock server in one file, with the standard library alone.

A session lives by heartbeats, which a thread sends. A lock is a lease and a token. `check_still_held` answers the token as long as the
lease certainly lasts: the deadline counts from before the request was *sent*, on the clock that goes on while the machine sleeps. It makes
a late worker stop early. It does not make it stop in time: only a resource that compares the token can do that, so the token is handed to
every call that writes.
"""

import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

MARGIN_S = 1.0  # how long before its end a lease counts as lost


def now():
    """Seconds since boot, with the time that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Problem(Exception):
    """What a server refused, and why: `code` is one of /docs/errors/."""

    def __init__(self, status, body):
        super().__init__(f"{body.get('code')}: {body.get('detail')}")
        self.status, self.code, self.body = status, body.get("code"), body


class LockLost(Exception):
    """The lease is over, or may be."""


def call(method, url, body=None, token=None, timeout=5.0, headers=None):
    """One request with JSON in and out. A token goes as a header, and only where the caller hands it over."""
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("X-Fencing-Token", str(token))
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            body = json.loads(text)
        except ValueError:
            body = {"code": "UNREADABLE", "detail": text[:200].decode(errors="replace")}
        raise Problem(error.code, body) from None


class Session:
    """A life sign at a lock server. Its end frees whatever it holds."""

    def __init__(self, url, owner, ttl_ms=None):
        self.url, self.held = url.rstrip("/"), {}
        self._mutex, self._stop = threading.Lock(), threading.Event()
        self._lost = None
        body = {"owner": owner} if ttl_ms is None else {"owner": owner, "ttl_ms": ttl_ms}
        sent = now()
        opened = call("POST", f"{self.url}/v1/sessions", body)
        self.id, self.ttl_ms = opened["session_id"], opened["ttl_ms"]
        self._every = min(opened["heartbeat_interval_ms"], opened["ttl_ms"] / 3) / 1000
        self.margin = min(MARGIN_S, opened["ttl_ms"] / 4000)
        self.deadline = sent + opened["expires_in_ms"] / 1000 - self.margin
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _beat(self):
        while not self._stop.wait(self._every):
            sent = now()
            try:
                answer = call("POST", f"{self.url}/v1/sessions/{self.id}/heartbeat", {}, timeout=max(self._every, 0.2))
                with self._mutex:
                    self.deadline = sent + answer["expires_in_ms"] / 1000 - self.margin
                    known = {(held["key"], held["token"]): held.get("yield_requested") for held in answer["held"]}
                    locks = list(self.held.values())
                for lock in locks:
                    # One that was granted after the heartbeat was sent is not in its answer yet.
                    if (lock.key, lock.token) not in known and lock.granted < sent:
                        lock.lose("the server does not hold it for us any more")
                    else:
                        lock.yield_requested = lock.yield_requested or known.get((lock.key, lock.token))
                        lock.renew()
            except Problem as problem:
                if problem.code == "SESSION_NOT_FOUND":
                    self._lost = "the session has ended"
                    return
            except (OSError, ValueError, KeyError):
                pass  # not answered: until the deadline it is tried again

    def acquire(self, key, wait_ms=0, lock_delay_ms=0):
        """Takes the key, waiting in the server's queue; Problem HELD_BY_OTHER when somebody else has it all the while, LOCK_DELAYED when it
        is closed for a while. With a lock delay of its own, it is closed for that long should this lock be lost. An outage counts for the
        wait. The calls of one wait have one request id: one place in the queue, and a grant whose answer was lost is found again."""
        until, longest = now() + wait_ms / 1000, wait_ms
        body = {"session_id": self.id, "request_id": uuid.uuid4().hex}
        if lock_delay_ms:
            body["lock_delay_ms"] = lock_delay_ms  # a server of an older version does not know the field
        path = f"{self.url}/v1/locks/{urllib.parse.quote(key, safe='')}"
        while True:
            sent = now()
            body["wait_ms"] = min(max(0, int((until - sent) * 1000)), longest)
            try:
                grant = call("POST", f"{path}/acquire", body, timeout=body["wait_ms"] / 1000 + 5)
                break
            except Problem as problem:
                refused, bound = problem, problem.body.get("maximum")
                if problem.body.get("field") == "wait_ms" and bound is not None and bound < body["wait_ms"]:
                    longest = bound  # a server says itself how long it lets anybody wait
                    continue
                if problem.code == "TOKEN_REGRESSION" or (problem.code not in ("HELD_BY_OTHER", "LOCK_DELAYED") and problem.status < 500):
                    raise
            except (OSError, ValueError, http.client.HTTPException) as error:
                refused = error  # not answered, or by half
            if now() >= until:
                raise refused
            time.sleep(max(0.0, min(sent + 0.2, until) - now()))  # at once after a wait in the queue
        # The lease began when the server granted it, which is after it had waited: not earlier than that from the send.
        lock = Lock(self, path, grant, sent + (grant["waited_ms"] + grant["expires_in_ms"]) / 1000 - self.margin, sent)
        with self._mutex:
            self.held[key] = lock
            self._every = min(self._every, lock.ttl_ms / 3000)  # lock.grant.ttl may be shorter than the session's
        return lock

    def stop_heartbeats(self):
        """For showing what a stopped process does: it believes, and sends nothing."""
        self._stop.set()
        self._thread.join()

    def close(self):
        """Ends the session."""
        self.stop_heartbeats()
        call("DELETE", f"{self.url}/v1/sessions/{self.id}")


class Lock:
    """A key that is held, under its token."""

    def __init__(self, session, path, grant, deadline, granted):
        self.session, self.path, self.deadline, self.granted = session, path, deadline, granted
        self.key, self.token, self.ttl_ms = grant["key"], grant["token"], grant["ttl_ms"]
        # {by, reason, at} once somebody asks us to give it up: come to a good end and release, or go on.
        self.yield_requested = grant.get("yield_requested")
        self._lost = None

    def lose(self, why):
        """From now on check_still_held raises."""
        self._lost = self._lost or why

    def check_still_held(self):
        """The token, while the lease certainly lasts."""
        why = self._lost or self.session._lost
        if why is None and now() >= min(self.deadline, self.session.deadline):
            why = "its deadline has passed"
            self.lose(why)  # once lost, lost for good
        if why is not None:
            raise LockLost(f"{self.key}: {why}")
        return self.token

    def renew(self):
        """A heartbeat keeps the session; the lease has its own end, and is renewed beside it."""
        sent = now()
        body = {"session_id": self.session.id}
        try:
            answer = call("POST", f"{self.path}/renew", body, token=self.token, timeout=2.0)
            self.deadline = sent + answer["expires_in_ms"] / 1000 - self.session.margin
        except Problem as problem:
            if problem.code in ("NOT_HOLDER", "LOCK_NOT_FOUND", "SESSION_NOT_FOUND"):
                self.lose(problem.code)

    def release(self):
        """Gives it back, with the session and the token: a loser cannot free the winner's grant."""
        with self.session._mutex:
            self.session.held.pop(self.key, None)
        self.lose("released")
        return call("DELETE", f"{self.path}?session_id={self.session.id}", token=self.token)["released"]
