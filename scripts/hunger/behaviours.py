"""What a hungry caller does. Each behaviour is a generator of the words for its row: it does its worst until `over` says that it is enough."""

import http.client
import itertools
import json
import os
import select
import socket
import subprocess
import threading
import time
import urllib.parse

from .neighbour import call

FILLING = {"filling": "x" * 4000}


def connect(address, receive_buffer=None):
    mine = socket.socket()
    if receive_buffer:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    mine.settimeout(5)
    mine.connect(address)
    return mine


def open_many(address, count, send, over, receive_buffer=None):
    """Opens connections that each send something, until there are so many or the time is over. A refused one counts too."""
    kept, refused = [], 0
    for number in range(count):
        if over():
            break
        try:
            mine = connect(address, receive_buffer)
            mine.sendall(send(number))
            mine.setblocking(False)
            kept.append(mine)
        except OSError:
            refused += 1
    return kept, refused


def head(method, path, *more):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *more, "", ""]).encode()


def post(path, body):
    text = json.dumps(body)
    return head("POST", path, "Content-Type: application/json", f"Content-Length: {len(text)}") + text.encode()


def hold(over, kept):
    while not over():
        time.sleep(0.1)
    closed = sum(1 for mine in kept if is_closed(mine))
    for mine in kept:
        mine.close()
    return closed


def is_closed(mine):
    try:
        while (read := mine.recv(65536)):
            if len(read) < 65536:
                continue
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def looped(threads, over, once):
    """So many threads that each call `once(number, turn)` until the time is over; what fails is counted."""
    done, failed, lock = [0], [0], threading.Lock()

    def run(number):
        for turn in itertools.count():
            if over():
                return
            try:
                well = once(number, turn)
            except (OSError, http.client.HTTPException):
                well = False
            with lock:
                (done if well else failed)[0] += 1

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return done[0], failed[0]


def open_session(address, metadata=None, owner="hungry"):
    status, document = call(address, "POST", "/v1/sessions", {"owner": owner, "ttl_ms": 300_000, **({"metadata": metadata} if metadata else {})})
    return document["session_id"] if status == 201 else None


def fill_sessions(address, count):
    return sum(1 for _ in range(count) if open_session(address, FILLING))


def idle_connections(server, over):
    kept, refused = open_many(server.address, 1200, lambda _: head("GET", "/livez"), over)
    return f"1,200 connections that answered once stay open; {refused} refused, {hold(over, kept)} closed by the server"


def slow(server, over, count, first, more):
    kept, refused = open_many(server.address, count, lambda _: first, over)
    while not over():
        time.sleep(0.5)
        for mine in kept:
            try:
                mine.send(more)
            except OSError:
                pass
    return f"{count:,} connections, a byte each half second; {refused} refused, {hold(over, kept)} closed by the server"


def slow_heads(server, over):
    return slow(server, over, 1000, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"a")


def slow_bodies(server, over):
    return slow(server, over, 1000, head("POST", "/v1/sessions", "Content-Type: application/json", "Content-Length: 60000"), b" ")


def slow_readers(server, over):
    sessions = fill_sessions(server.address, 1000)
    kept, refused = open_many(server.address, 300, lambda _: head("GET", "/v1/sessions?limit=1000") * 4, over, receive_buffer=4096)
    return f"300 connections ask four times for a page of {sessions:,} sessions of 4 KB and never read; {refused} refused, {hold(over, kept)} closed by the server"


def giant_pages(server, over):
    sessions = fill_sessions(server.address, 1000)
    paths = ["/v1/sessions?limit=1000", "/v1/audit?limit=1000", "/v1/locks?limit=1000"]

    def once(_, turn):
        return call(server.address, "GET", paths[turn % len(paths)], timeout=30)[0] == 200

    done, failed = looped(32, over, once)
    return f"32 readers of pages of {sessions:,} sessions of 4 KB, audit and locks without a pause; {done:,} pages, {failed:,} refused"


def streams(server, over):
    kept, refused = open_many(server.address, 1000, lambda _: head("GET", "/v1/locks/watched/watch"), over, receive_buffer=4096)
    session = open_session(server.address)
    done, _ = looped(2, over, lambda number, _: acquire_release(server.address, session, f"watched-{number}" if number else "watched"))
    return f"1,000 watches of one key that nobody reads, while it changes {done:,} times; {refused} refused, {hold(over, kept)} closed by the server"


def acquire_release(address, session, key):
    path = "/v1/locks/" + urllib.parse.quote(key, safe="")
    status, grant = call(address, "POST", path + "/acquire", {"session_id": session, "wait_ms": 0})
    if status != 200:
        return False
    status, _ = call(address, "DELETE", f"{path}?session_id={session}", headers={"X-Fencing-Token": str(grant["token"])})
    return status == 200


def waiters(server, over):
    holder = open_session(server.address)
    for key in range(8):
        call(server.address, "POST", f"/v1/locks/wanted-{key}/acquire", {"session_id": holder})
    sessions = [open_session(server.address) for _ in range(100)]

    def ask(number):
        return post(f"/v1/locks/wanted-{number % 8}/acquire", {"session_id": sessions[number % 100], "wait_ms": 30_000, "request_id": f"w-{number}"})

    kept, refused = open_many(server.address, 4000, ask, over)
    return f"4,000 waiters for eight held keys; {refused} refused, {hold(over, kept)} connections closed by the server"


def sessions(server, over):
    done, failed = looped(32, over, lambda *_: open_session(server.address, FILLING) is not None)
    return f"sessions with 4 KB of metadata opened without end by 32 threads; {done:,} opened, {failed:,} refused"


def keys(server, over):
    session = open_session(server.address)

    def once(number, turn):
        return call(server.address, "POST", f"/v1/locks/mine-{number}-{turn}/acquire", {"session_id": session, "ttl_ms": 300_000})[0] == 200

    done, failed = looped(32, over, once)
    return f"keys taken without end by one session on 32 threads; {done:,} held, {failed:,} refused"


def refused_handshakes(server, over):
    hello = bytes.fromhex("16030100") + b"\x05" + os.urandom(512)

    def once(*_):
        mine = connect(server.address)
        try:
            mine.sendall(hello)
            return bool(select.select([mine], [], [], 5)[0])
        finally:
            mine.close()

    done, failed = looped(32, over, once)
    return f"TLS hellos and noise on new connections by 32 threads; {done:,} turned away, {failed:,} without an answer"


def log_stall(server, over):
    done, failed = looped(32, over, lambda *_: call(server.address, "GET", "/v1/locks/anything")[0] == 200)
    return f"nobody reads the server's log, while 32 threads ask; {done:,} answered, {failed:,} not"


def full_disk(server, over):
    """Full for the middle half of the time, as long as a lease outlives."""
    session = open_session(server.address)
    began = time.monotonic()
    filled, freed, granted, refused = False, False, 0, 0
    while not over():
        passed = (time.monotonic() - began) / server.seconds
        if passed > 0.25 and not filled:
            filled = True
            with open(os.path.join(server.directory, "filling"), "wb") as file:
                subprocess.run(["dd", "if=/dev/zero", "bs=4096"], stdout=file, stderr=subprocess.DEVNULL, check=False)
        if passed > 0.75 and not freed:
            freed = True
            os.remove(os.path.join(server.directory, "filling"))
        try:
            well = acquire_release(server.address, session, "on-a-full-disk")
        except (OSError, http.client.HTTPException):
            well = False
        granted, refused = granted + well, refused + (not well)
        time.sleep(0.05)
    return f"the store's disk is full for half of the time; {granted:,} pairs done, {refused:,} refused"


def slow_disk(server, over):
    session = open_session(server.address)
    done, failed = looped(16, over, lambda number, _: acquire_release(server.address, session, f"slow-{number}"))
    return f"each flush takes 10 ms longer, while 16 threads acquire and release; {done:,} pairs, {failed:,} refused"


ALL = {
    "nothing": lambda server, over: hold(over, []) or "the neighbour alone",
    "idle connections": idle_connections,
    "slow heads": slow_heads,
    "slow bodies": slow_bodies,
    "slow readers": slow_readers,
    "giant pages": giant_pages,
    "streams": streams,
    "waiters": waiters,
    "sessions": sessions,
    "keys": keys,
    "refused handshakes": refused_handshakes,
    "log stall": log_stall,
    "full disk": full_disk,
    "slow disk": slow_disk,
}
