"""The well-behaved client: sessions that hold a lock each, send heartbeats and note what they saw."""

import http.client
import json
import math
import multiprocessing
import threading
import time

SESSIONS = 10
BEAT_S = 0.4
TTL_MS = 15_000


def call(address, method, path, body=None, headers=None, connection=None, timeout=10):
    """One request. Answers (status, document); raises OSError or HTTPException when no whole answer came."""
    mine = connection or http.client.HTTPConnection(*address, timeout=timeout)
    try:
        text = None if body is None else json.dumps(body)
        mine.request(method, path, text, {"Content-Type": "application/json", **(headers or {})} if text is not None else headers or {})
        answer = mine.getresponse()
        document = answer.read()
        return answer.status, json.loads(document) if document[:1] in (b"{", b"[") else document
    finally:
        if connection is None:
            mine.close()


def until(what, ask, bound=30):
    """Asks until the answer is true; a refusal to connect is an answer that is not."""
    end = time.monotonic() + bound
    while True:
        try:
            if (answer := ask()):
                return answer
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {bound} s")
        time.sleep(0.05)


class Holder(threading.Thread):
    """One session with one lock. It keeps a connection of its own, and opens another when that one fails."""

    def __init__(self, address, number, stop):
        super().__init__(daemon=True)
        self.address, self.number, self.stop = address, number, stop
        self.beats_ms, self.failed, self.lost = [], 0, 0
        self.connection = http.client.HTTPConnection(*address, timeout=10)
        _, session = self.ask("POST", "/v1/sessions", {"owner": f"neighbour-{number}", "ttl_ms": TTL_MS})
        self.session = session["session_id"]
        key = f"neighbour/{number}"
        status, grant = self.ask("POST", f"/v1/locks/{key.replace('/', '%2F')}/acquire", {"session_id": self.session})
        if status != 200:
            raise SystemExit(f"the neighbour was not granted {key}: {status} {grant}")
        self.token = grant["token"]

    def ask(self, method, path, body=None):
        return call(self.address, method, path, body, connection=self.connection)

    def beat(self):
        began = time.monotonic()
        try:
            status, document = self.ask("POST", f"/v1/sessions/{self.session}/heartbeat", {})
        except (OSError, http.client.HTTPException):
            self.failed += 1
            self.connection.close()
            return
        self.beats_ms.append((time.monotonic() - began) * 1000)
        if status == 404 or (status == 200 and [grant["token"] for grant in document["held"]] != [self.token]):
            self.lost += 1
        elif status != 200:
            self.failed += 1

    def run(self):
        due = time.monotonic() + BEAT_S * self.number / SESSIONS
        while not self.stop.wait(max(0, due - time.monotonic())):
            self.beat()
            due = max(due + BEAT_S, time.monotonic())
        # Once more at the end: it tells whether the lock outlived the hungry caller.
        self.beat()


def newcomer(address, stop, seen):
    """Somebody new every half second: a probe on a connection of its own, which must be answered."""
    while not stop.wait(0.5):
        try:
            status, _ = call(address, "GET", "/livez", timeout=5)
            seen.append(status == 200)
        except (OSError, http.client.HTTPException):
            seen.append(False)


def percentiles(beats):
    """The middle one, the 99th percentile and the longest; endless where no heartbeat was answered."""
    if not beats:
        return [math.inf] * 3
    return [beats[len(beats) // 2], beats[min(len(beats) - 1, len(beats) * 99 // 100)], beats[-1]]


def _live(address, begun, end, report):
    stop, newcomers = threading.Event(), []
    holders = [Holder(address, number, stop) for number in range(SESSIONS)]
    threads = [*holders, threading.Thread(target=newcomer, args=(address, stop, newcomers), daemon=True)]
    for thread in threads:
        thread.start()
    begun.set()
    end.wait()
    stop.set()
    for thread in threads:
        thread.join(25)
    beats = sorted(beat for holder in holders for beat in holder.beats_ms)
    report.put({
        "beats": len(beats),
        **dict(zip(("p50_ms", "p99_ms", "max_ms"), percentiles(beats))),
        "failed": sum(holder.failed for holder in holders),
        # Nobody who still waits for an answer knows that it holds its lock.
        "lost": sum(1 for holder in holders if holder.lost or holder.is_alive()),
        "newcomers": len(newcomers),
        "newcomers_refused": newcomers.count(False),
    })


class Neighbour:
    """The client in a process of its own, so that the hungry one takes none of its time but on the machine's processors."""

    def __init__(self, address):
        context = multiprocessing.get_context("spawn")
        self.end, self.report = context.Event(), context.Queue()
        begun = context.Event()
        self.process = context.Process(target=_live, args=(address, begun, self.end, self.report), daemon=True)
        self.process.start()
        if not begun.wait(30):
            raise SystemExit("the neighbour could not begin")

    def finish(self):
        self.end.set()
        seen = self.report.get(timeout=300)
        self.process.join(10)
        return seen
