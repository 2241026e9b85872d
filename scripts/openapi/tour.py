"""Every operation of every component, asked once or more: what they answer is what the documents are held against."""

import http.client
import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

from .documents import PROBLEM, Document

START_WITHIN_S = 60
ITEMS_MAX = 2


class Component:
    def __init__(self, dlock: Path, name: str, arguments: list[str], folder: Path, examples: str | None):
        self.name, self.examples = name, examples
        self.log = (folder / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            [dlock, name, *arguments], cwd=folder, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        self.seen: list[tuple] = []
        self.requests: dict[str, object] = {}
        # What was answered otherwise than the tour says.
        self.wrong: list[str] = []
        self.address = self.awaited("listening")

    def awaited(self, event: str) -> str:
        until = time.monotonic() + START_WITHIN_S
        while time.monotonic() < until and self.process.poll() is None:
            # Whole lines: the last one may still be on its way.
            for line in Path(self.log.name).read_text().rpartition("\n")[0].splitlines():
                if line.startswith("{") and (said := json.loads(line)).get("event") == event:
                    return said["addr"]
            time.sleep(0.05)
        raise SystemExit(f"check-openapi: {self.name} did not start:\n{Path(self.log.name).read_text()}")

    def read_document(self):
        raw = self.ask("GET", "/openapi.json", 200)
        self.document = Document(self.name, raw)

    def status(self, path: str) -> int:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("GET", path)
        return connection.getresponse().status

    def ask(self, method: str, path: str, status: int, body=None, operator=None, **headers):
        """Asks, and answers the body. Headers by name with underscores."""
        sent = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        if operator:
            sent["X-Operator"] = operator
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        media = (answer.getheader("Content-Type") or "").split(";")[0]
        if media == "text/event-stream":
            text = ""
            while not text.endswith("\n\n"):
                text += answer.readline().decode()
            connection.close()
        else:
            text = answer.read().decode()
        value = json.loads(text) if media.endswith("json") and media != "application/x-ndjson" else text
        if answer.status != status:
            self.wrong.append(f"{self.name} {method} {path} answered {answer.status}, not {status}: {text[:500]}")
        self.seen.append((method, path, answer.status, media, value))
        if body is not None and status < 300:
            self.requests.setdefault(f"{method} {path}", body)
        return value

    def write_examples(self, root: Path):
        """The first answer of each status, and of each code, by operation."""
        if self.examples is None:
            return
        told: dict[str, dict] = {}
        for method, path, status, media, body in self.seen:
            found = self.document.find(method, path)
            if found is None or not path.startswith("/v1/") or "operationId" not in found[1]:
                continue
            if found[1].get("tags") == ["every component"]:
                continue
            operation = told.setdefault(found[1]["operationId"], {})
            if f"{method} {path}" in self.requests:
                operation.setdefault("request", self.requests[f"{method} {path}"])
            if media == PROBLEM:
                operation.setdefault(str(status), {}).setdefault(body["code"], body)
            else:
                if isinstance(body, dict) and len(body.get("items", [])) > ITEMS_MAX:
                    body = dict(body, items=body["items"][:ITEMS_MAX])
                several = len(found[1]["responses"][str(status)].get("content", {})) > 1
                operation.setdefault(f"{status} {media}" if several else str(status), body)
        (root / self.examples).write_text(json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


class Silent(http.server.BaseHTTPRequestHandler):
    """A service behind the fencing proxy; below /lost it never answers."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/lost"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Components:
    def __init__(self, dlock: Path, folder: Path):
        self.dlock, self.folder = dlock, folder
        self.all: dict[str, Component] = {}
        self.service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
        threading.Thread(target=self.service.serve_forever, daemon=True).start()

    def start(self, name: str, *arguments: str, examples: str | None = None) -> Component:
        component = Component(self.dlock, name, [*arguments], self.folder, examples)
        self.all[name] = component
        return component

    def stop(self):
        self.service.shutdown()
        for component in self.all.values():
            component.process.terminate()
        for component in self.all.values():
            component.process.wait(timeout=60)


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def tour(components: Components):
    local = ("--listen", "127.0.0.1:0")
    pay = f"sqlite:{components.folder}/pay"
    lock = components.start(
        "lock-server", *local, "--store", f"sqlite:{components.folder}/lock.db", examples="gateway/lock-server/src/examples.json"
    )
    payments = components.start(
        "payment-resource", *local, "--store", pay, examples="gateway/payment-resource/src/examples.json"
    )
    # It has no document: it stands for a stranger's.
    stub = Component(components.dlock, "rail-stub", [*local], components.folder, None)
    try:
        rail = components.start(
            "rail-proxy", *local, "--store", pay, "--rail", f"http://{stub.address}",
            "--set", "rail.visibility-horizon=100ms", examples="gateway/rail-proxy/src/examples.json",
        )
        fence = components.start(
            "fence-proxy", *local, "--admin", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{components.service.server_port}",
            "--store", f"sqlite:{components.folder}/fence.db", "--key", "ship", examples="gateway/fence-kit/src/examples.json",
        )
        servers = ("--lock-server", f"http://{lock.address}", "--payments", f"http://{payments.address}",
                   "--rail-proxy", f"http://{rail.address}")
        components.start("console", *local, *servers)
        components.start("payout-executor", *local, *servers, "--owner", "idle", "--role", "reconcile")
        for component in components.all.values():
            component.read_document()
            common(component)
        locks(lock)
        accounts(payments)
        payouts(payments, rail, stub)
        marks(fence)
        pages(components.all["console"])
        # Last: what was refused above.
        payments.ask("GET", "/v1/refusals?limit=1", 200)
    finally:
        stub.process.terminate()
        stub.process.wait(timeout=60)


def common(component: Component):
    for path in ("/livez", "/startupz", "/metrics", "/version", "/docs/errors", "/docs/errors/HELD_BY_OTHER", "/v1/refusals",
                 "/debug/actors", "/debug/trace?limit=1", "/debug/trace?limit=1&format=perfetto"):
        component.ask("GET", path, 200)
    # Answered as soon as it has connected to what it needs.
    until = time.monotonic() + START_WITHIN_S
    while component.status("/readyz") != 200 and time.monotonic() < until:
        time.sleep(0.1)
    component.ask("GET", "/readyz", 200)
    component.ask("GET", "/v1/refusals?limit=0", 400)
    component.ask("GET", "/docs/errors/NO_SUCH_CODE", 404)
    actor = quoted("no/such/actor")
    component.ask("POST", f"/debug/actors/{actor}/resume", 404)


def locks(lock: Component):
    session = lock.ask("POST", "/v1/sessions", 201, {"owner": "worker-1", "ttl_ms": 60_000, "metadata": {"host": "alfa"}})["session_id"]
    lock.ask("POST", "/v1/sessions", 400, {"owner": "worker-1", "ttl_ms": 1})
    other = lock.ask("POST", "/v1/sessions", 201, {"owner": "worker-2", "ttl_ms": 60_000})["session_id"]
    key = f"/v1/locks/{quoted('payout:ACC-1')}"
    ask = {"session_id": session, "request_id": "r-1", "ttl_ms": 30_000, "metadata": {"payout_id": "P-1"}}
    token = lock.ask("POST", f"{key}/acquire", 200, ask)["token"]
    lock.ask("POST", f"{key}/acquire", 400, {"session_id": session, "ttl_ms": 1})
    lock.ask("POST", f"{key}/acquire", 409, {"session_id": other})
    lock.ask("POST", f"{key}/acquire", 404, {"session_id": "none"})
    lock.ask("POST", f"{key}/renew", 200, {"session_id": session, "ttl_ms": 30_000}, X_Fencing_Token=token)
    lock.ask("POST", f"{key}/renew", 400, {"session_id": session})
    lock.ask("POST", f"{key}/renew", 400, {"session_id": session}, X_Fencing_Token="007")
    lock.ask("POST", f"{key}/renew", 409, {"session_id": other}, X_Fencing_Token=token)
    lock.ask("POST", "/v1/locks/unknown/renew", 404, {"session_id": session}, X_Fencing_Token=token)
    lock.ask("GET", key, 200)
    lock.ask("GET", "/v1/locks?prefix=payout", 200)
    lock.ask("GET", "/v1/locks?limit=0", 400)
    lock.ask("GET", f"{key}/watch", 200)
    lock.ask("POST", f"{key}/check", 200, X_Fencing_Token=token)
    lock.ask("POST", f"{key}/check", 400)
    lock.ask("POST", f"/v1/sessions/{session}/heartbeat", 200, {"witness_token": token})
    lock.ask("POST", "/v1/sessions/none/heartbeat", 404, {})
    lock.ask("GET", f"/v1/sessions/{session}", 200)
    lock.ask("GET", "/v1/sessions/none", 404)
    lock.ask("GET", "/v1/sessions", 200)
    release = f"{key}?session_id="
    lock.ask("DELETE", f"{release}{other}", 409, X_Fencing_Token=token)
    lock.ask("DELETE", f"{release}{session}", 400)
    lock.ask("DELETE", f"{release}{session}", 200, X_Fencing_Token=token)
    lock.ask("DELETE", f"/v1/locks/unknown?session_id={session}", 404, X_Fencing_Token=token)
    reason = "the worker hangs, ticket 4711"
    lock.ask("POST", f"{key}/revoke", 409, {"revoke_token": token, "reason": reason}, operator="alice")
    lock.ask("POST", f"{key}/yield", 409, {"token": token, "reason": reason}, operator="alice")
    token = lock.ask("POST", f"{key}/acquire", 200, {"session_id": session, "lock_delay_ms": 60_000})["token"]
    lock.ask("POST", f"{key}/yield", 400, {"token": token, "reason": "short"}, operator="alice")
    lock.ask("POST", f"{key}/yield", 409, {"token": token - 1, "reason": reason}, operator="alice")
    lock.ask("POST", "/v1/locks/unknown/yield", 404, {"token": token, "reason": reason}, operator="alice")
    lock.ask("POST", f"{key}/yield", 200, {"token": token, "reason": reason}, operator="alice")
    lock.ask("POST", f"/v1/sessions/{session}/heartbeat", 200, {})
    lock.ask("POST", f"{key}/revoke", 400, {"revoke_token": token, "reason": "short"}, operator="alice")
    lock.ask("POST", f"{key}/revoke", 409, {"revoke_token": token - 1, "reason": reason}, operator="alice")
    lock.ask("POST", "/v1/locks/unknown/revoke", 404, {"revoke_token": token, "reason": reason}, operator="alice")
    lock.ask("POST", f"{key}/revoke", 200, {"revoke_token": token, "reason": reason}, operator="alice")
    lock.ask("POST", f"{key}/acquire", 409, {"session_id": other})  # closed by the delay
    lock.ask("GET", key, 200)
    lock.ask("POST", "/v1/locks/another/acquire", 200, {"session_id": session})
    lock.ask("DELETE", f"/v1/sessions/{session}", 200)
    lock.ask("GET", f"{key}/history", 200)
    lock.ask("GET", f"{key}/history?limit=0", 400)
    lock.ask("GET", "/v1/audit", 200)
    lock.ask("GET", "/v1/audit/seals", 200)
    lock.ask("GET", "/v1/lineage", 200)
    lock.ask("POST", "/v1/lineage/floor", 200, {"floor": 1_000, "reason": "restored from a backup"}, operator="alice")
    lock.ask("POST", "/v1/lineage/floor", 409, {"dismiss": True, "reason": "there was no doubt"}, operator="alice")
    lock.ask("POST", "/v1/lineage/floor", 400, {"floor": 1, "reason": "short"}, operator="alice")


def accounts(payments: Component):
    account = {"account_id": "ACC-1", "currency": "EUR", "opening_balance_minor": 1_000_000}
    payments.ask("POST", "/v1/accounts", 201, account)
    payments.ask("POST", "/v1/accounts", 200, account)
    payments.ask("POST", "/v1/accounts", 409, dict(account, currency="USD"))
    payments.ask("POST", "/v1/accounts", 400, dict(account, currency="euro"))
    payments.ask("GET", "/v1/accounts", 200)
    payments.ask("GET", "/v1/accounts/ACC-1", 200)
    payments.ask("GET", "/v1/accounts/NONE", 404)
    credit = {"amount_minor": 50_000, "reference": "top-up"}
    payments.ask("POST", "/v1/accounts/ACC-1/credit", 201, credit, X_Idempotency_Key="c-1")
    payments.ask("POST", "/v1/accounts/ACC-1/credit", 200, credit, X_Idempotency_Key="c-1")
    payments.ask("POST", "/v1/accounts/ACC-1/credit", 422, dict(credit, amount_minor=1), X_Idempotency_Key="c-1")
    payments.ask("POST", "/v1/accounts/NONE/credit", 404, credit, X_Idempotency_Key="c-2")
    payments.ask("POST", "/v1/accounts/ACC-1/fence", 200, X_Fencing_Token=3)
    payments.ask("POST", "/v1/accounts/ACC-1/fence", 400)
    payments.ask("POST", "/v1/accounts/ACC-1/fence", 409, X_Fencing_Token=1)
    payments.ask("POST", "/v1/accounts/NONE/fence", 404, X_Fencing_Token=3)


def payouts(payments: Component, rail: Component, stub: Component):
    creditor = {"name": "Example GmbH", "account": "DE00 0000 0000"}

    def create(payout: str, status: int = 201, key: str | None = None, **fields):
        body = {"payout_id": payout, "account_id": "ACC-1", "amount_minor": 12_500, "currency": "EUR", "creditor": creditor,
                "reference": "INV-1", **fields}
        payments.ask("POST", "/v1/payouts", status, body, X_Idempotency_Key=key or payout)

    def step(payout: str, verb: str, token, status: int, body=None, **more):
        headers = {} if token is None else {"X_Fencing_Token": token}
        return payments.ask("POST", f"/v1/payouts/{payout}/{verb}", status, body, X_Actor="worker-1", **headers, **more)

    def submit(payout: str, token, status: int, key: str | None = None, **fields):
        body = {"payout_id": payout, "account_id": "ACC-1", "amount_minor": 12_500, "currency": "EUR", "creditor": creditor, **fields}
        headers = {} if token is None else {"X_Fencing_Token": token}
        return rail.ask("POST", "/v1/rail/submissions", status, body, X_Idempotency_Key=key or payout, X_Actor="worker-1", **headers)

    def fault(payout: str, kind: str):
        stub.ask("PUT", "/faults", 200, {"rules": [{"client_reference": payout, "fault": kind, "times": 1}]})

    create("P-1")
    create("P-1", 200)
    create("P-1", 409, key="other")
    create("P-1", 422, amount_minor=1)
    create("P-9", 404, account_id="NONE")
    create("P-9", 400, currency="euro")
    payments.ask("GET", "/v1/payouts?state=PENDING", 200)
    payments.ask("GET", "/v1/payouts?limit=0", 400)
    payments.ask("GET", "/v1/payouts/P-1", 200)
    payments.ask("GET", "/v1/payouts/NONE", 404)
    # Paid.
    step("P-1", "claim", None, 400, {})
    step("P-1", "claim", "007", 400, {})
    step("P-1", "claim", 1, 409, {})
    step("P-1", "claim", 10, 409, {"expected_version": 7})
    step("NONE", "claim", 10, 404, {})
    submit("P-1", 10, 409)
    step("P-1", "claim", 10, 200, {"expected_version": 1})
    step("P-1", "post", 10, 409, {"rail_reference": "R-1"})
    submit("P-1", None, 400)
    submit("NONE", 10, 404)
    submit("P-1", 10, 422, amount_minor=1)
    reference = submit("P-1", 10, 200)["rail_reference"]
    submit("P-1", 10, 200)
    submit("P-1", 9, 409)
    submit("P-1", 11, 409)
    step("P-1", "post", 10, 200, {"rail_reference": reference})
    step("P-1", "claim", 12, 409, {})
    # Declined.
    create("P-2")
    fault("P-2", "decline")
    step("P-2", "claim", 20, 200, {})
    submit("P-2", 20, 200)
    step("P-2", "fail", 20, 200, {"reason": "declined by the rail"})
    step("P-2", "fail", 1, 409, {"reason": "declined by the rail"})
    step("NONE", "fail", 20, 404, {"reason": "declined by the rail"})
    # Without an answer, looked up.
    create("P-3")
    fault("P-3", "close_after_read")
    step("P-3", "claim", 30, 200, {})
    submit("P-3", 30, 409)
    step("P-3", "ambiguous", 30, 200, {"reason": "the rail did not answer"})
    step("P-3", "ambiguous", 1, 409, {"reason": "the rail did not answer"})
    step("P-3", "resolve", 31, 409, {"outcome": "FAILED"})
    rail.ask("POST", "/v1/rail/submissions/P-3/lookup", 200)
    rail.ask("POST", "/v1/rail/submissions/NONE/lookup", 404)
    rail.ask("GET", "/v1/rail/submissions/P-3/lookups", 200)
    reference = rail.ask("GET", "/v1/rail/submissions/P-3", 200)["rail_reference"]
    step("P-3", "resolve", 32, 200, {"outcome": "POSTED", "rail_reference": reference})
    # Not funded, and cancelled.
    create("P-4", amount_minor=900_000_000)
    step("P-4", "claim", 40, 422, {})
    payments.ask("POST", "/v1/payouts/P-4/cancel", 200, {"reason": "entered twice"}, operator="alice")
    payments.ask("POST", "/v1/payouts/P-1/cancel", 409, {"reason": "entered twice"}, operator="alice")
    payments.ask("GET", "/v1/payouts/P-1/history", 200)
    payments.ask("GET", "/v1/payouts/NONE/history", 404)
    payments.ask("GET", "/v1/accounts/ACC-1/ledger", 200)
    payments.ask("GET", "/v1/accounts/NONE/ledger", 404)
    for form in ("csv", "jsonl", "beancount", "camt053"):
        payments.ask("GET", f"/v1/ledger/export?format={form}", 200)
    payments.ask("GET", "/v1/ledger/export?format=camt053&account_id=ACC-1&from=2026-01-01", 200)
    payments.ask("GET", "/v1/ledger/export?format=none", 400)
    payments.ask("GET", "/v1/ledger/export?format=csv&account_id=NOBODY", 404)
    payments.ask("GET", "/v1/ledger/verify", 200)
    payments.ask("GET", "/v1/audit", 200)
    # The rest of the rail.
    rail.ask("GET", "/v1/rail/submissions", 200)
    rail.ask("GET", "/v1/rail/submissions?limit=0", 400)
    rail.ask("GET", "/v1/rail/submissions/NONE", 404)
    ack = {"client_reference": "P-1", "outcome": "ACKED", "rail_reference": "another", "amount_minor": 12_500, "currency": "EUR"}
    rail.ask("POST", "/v1/rail/acks", 200, ack)
    rail.ask("POST", "/v1/rail/acks", 404, dict(ack, client_reference="NONE"))
    rail.ask("POST", "/v1/rail/acks", 400, dict(ack, currency="euro"))
    [exception, *_] = rail.ask("GET", "/v1/rail/exceptions", 200)["items"]
    one = f"/v1/rail/exceptions/{exception['exception_id']}"
    rail.ask("GET", one, 200)
    rail.ask("GET", "/v1/rail/exceptions/999999", 404)
    rail.ask("POST", f"{one}/close", 400, {"reason": "short"}, operator="alice")
    rail.ask("POST", f"{one}/close", 200, {"reason": "the rail named another payment by mistake"}, operator="alice")
    rail.ask("POST", f"{one}/close", 409, {"reason": "closed once more by somebody else"}, operator="bob")
    rail.ask("POST", "/v1/rail/exceptions/999999/close", 404, {"reason": "there is no such exception"}, operator="alice")
    rail.ask("GET", "/v1/rail/high-water/ACC-1", 200)
    rail.ask("POST", "/v1/rail/submissions/P-1/fence", 200, {"forbid": False}, X_Fencing_Token=50)
    rail.ask("POST", "/v1/rail/submissions/P-1/fence", 409, {}, X_Fencing_Token=1)
    rail.ask("POST", "/v1/rail/submissions/P-1/fence", 400, {})
    rail.ask("POST", "/v1/rail/submissions/NONE/fence", 404, {}, X_Fencing_Token=50)
    rail.ask("POST", "/v1/rail/accounts/ACC-1/fence", 200, X_Fencing_Token=60)
    rail.ask("POST", "/v1/rail/accounts/ACC-1/fence", 409, X_Fencing_Token=1)
    rail.ask("POST", "/v1/rail/accounts/ACC-1/fence", 400)


def marks(fence: Component):
    """The admin listener; what goes through the proxy itself has no document, it is the service's."""
    proxied = fence.awaited("proxying")
    for path, token in (("/orders", 33), ("/lost", 34)):
        connection = http.client.HTTPConnection(proxied, timeout=30)
        connection.request("POST", path, "{}", {"X-Fencing-Token": str(token)})
        connection.getresponse().read()
    fence.ask("GET", "/v1/fence/mark?key=ship", 200)
    fence.ask("GET", "/v1/fence/mark", 400)
    fence.ask("GET", "/v1/fence/open", 200)
    fence.ask("GET", "/v1/fence/open?limit=0", 400)
    fence.ask("POST", "/v1/fence/clear", 400, {"key": "ship", "reason": "short"}, operator="alice")
    fence.ask("POST", "/v1/fence/clear", 200, {"key": "ship", "reason": "the service says it did nothing"}, operator="alice")


def pages(console: Component):
    for path in ("/", "/locks", "/payouts", "/sessions", "/refusals", "/actors", "/queue", "/accounts", "/live/locks"):
        console.ask("GET", path, 200)
    console.ask("GET", "/locks/payout%3AACC-1", 200)
