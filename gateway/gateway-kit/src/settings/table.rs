//! The one table of configuration names (C5.2). `docs/configuration.md` is generated from it.

use super::Kind::{Boolean, Choice, Duration, Integer, Text, Url, Urls};
use super::Setting;

const MS: u64 = 1;
const S: u64 = 1_000;
const M: u64 = 60 * S;
const H: u64 = 60 * M;
const D: u64 = 24 * H;

const fn setting(
    name: &'static str,
    kind: super::Kind,
    default: Option<&'static str>,
    reader: &'static str,
    doc: &'static str,
) -> Setting {
    Setting {
        name,
        kind,
        default,
        lab_default: None,
        lab: false,
        reader,
        doc,
    }
}

const fn in_lab(setting: Setting) -> Setting {
    Setting { lab: true, ..setting }
}

const ALL: &str = "every component";
const LOCK: &str = "lock-server";
const SDK: &str = "lock-client";
const PAY: &str = "payment-resource";
const RAIL: &str = "rail-proxy";
const WORK: &str = "payout-executor";
const CONSOLE: &str = "console";

/// Every name a configuration may hold, in the order of the documentation.
pub const SETTINGS: &[Setting] = &[
    // lock
    setting(
        "lock.store",
        Choice(&["sqlite", "pg", "etcd"]),
        Some("sqlite"),
        LOCK,
        "The backend of the lock store. Follows the scheme of `lock.store.url` where that is given.",
    ),
    setting(
        "lock.store.url",
        Url(&["sqlite", "postgres", "postgresql", "etcd"]),
        Some("sqlite:dlock-lock.db"),
        LOCK,
        "Where the lock store is: `sqlite:PATH`, `postgres://…`, `etcd://host:port[,host:port…]`. Flag `--store`.",
    ),
    setting(
        "lock.store.lineage",
        Text { chars_max: 128 },
        None,
        LOCK,
        "The lineage the lock store must have. A store with another one, or none, is a doubt: no grant until a floor is set (C1.1). Unset: an empty store is initialised at the first start.",
    ),
    setting(
        "lock.store.prefix",
        Text { chars_max: 64 },
        Some("dlock"),
        LOCK,
        "etcd alone: the beginning of every key; `a`–`z`, `A`–`Z`, `0`–`9`, `_`, `.`, `-`, parts joined by single slashes. Two prefixes are two stores.",
    ),
    setting(
        "lock.store.user",
        Text { chars_max: 128 },
        None,
        LOCK,
        "etcd alone: the user. The password is in `lock.store.password-file`, else in the environment variable `ETCDCTL_PASSWORD`, as for etcd's own programs.",
    ),
    setting(
        "lock.store.password-file",
        Text { chars_max: 4_096 },
        None,
        LOCK,
        "A file that holds the password of the lock store on PostgreSQL or etcd, alone; one newline at its end is no part of it. Read anew for each connection, so that short-lived ones work. Unset: the environment's `PGPASSWORD` or `ETCDCTL_PASSWORD`, else the URL's.",
    ),
    setting(
        "lock.store.ca-file",
        Text { chars_max: 4_096 },
        None,
        LOCK,
        "etcd alone: the authorities (PEM) that the certificates of etcd's members are checked against. Given, every connection to etcd is TLS.",
    ),
    setting(
        "lock.store.cert-file",
        Text { chars_max: 4_096 },
        None,
        LOCK,
        "etcd alone: this server's certificate (PEM) for members of etcd that ask for one; needs `lock.store.key-file` and `lock.store.ca-file`.",
    ),
    setting(
        "lock.store.key-file",
        Text { chars_max: 4_096 },
        None,
        LOCK,
        "etcd alone: the private key (PEM) of `lock.store.cert-file`.",
    ),
    setting(
        "lock.store.timeout",
        Duration {
            min: 10 * MS,
            max: 60 * S,
        },
        Some("2s"),
        LOCK,
        "The deadline of one call to the lock store; without an answer by then it is unknown, never a grant (FR-27).",
    ),
    setting(
        "lock.store.batch-max",
        Integer { min: 1, max: 10_000 },
        Some("512"),
        LOCK,
        "The most items in one call to the lock store.",
    ),
    setting(
        "lock.store.schema",
        Text { chars_max: 40 },
        Some("dlock"),
        LOCK,
        "PostgreSQL alone: the schema that holds the lock store, made where it is missing. `a`–`z`, `0`–`9` and `_`, not beginning with a digit or `pg_`. Two schemas are two stores.",
    ),
    setting(
        "lock.store.pool-max",
        Integer { min: 1, max: 1_000 },
        Some("16"),
        LOCK,
        "PostgreSQL alone: the most connections of this process that make calls. Up to two more listen and look after the schema.",
    ),
    setting(
        "lock.store.connect-timeout",
        Duration {
            min: 100 * MS,
            max: 60 * S,
        },
        Some("5s"),
        LOCK,
        "PostgreSQL alone: how long making one connection may take. A call's own deadline holds besides.",
    ),
    setting(
        "lock.store.pooler",
        Boolean,
        Some("false"),
        LOCK,
        "PostgreSQL alone: a pooler in transaction mode stands in between. Then nothing listens, and waiting clients of another replica are found by looking once a second.",
    ),
    setting(
        "lock.session.ttl",
        Duration {
            min: 200 * MS,
            max: 24 * H,
        },
        Some("15s"),
        "lock-server, lock-client",
        "How long a session lives without a heartbeat, unless it asks for another TTL (A-02).",
    ),
    setting(
        "lock.session.ttl-min",
        Duration {
            min: 200 * MS,
            max: 24 * H,
        },
        Some("1s"),
        LOCK,
        "The shortest TTL a session or grant may ask for. A lab may go down to 200 ms.",
    ),
    setting(
        "lock.session.ttl-max",
        Duration {
            min: 200 * MS,
            max: 24 * H,
        },
        Some("5m"),
        LOCK,
        "The longest TTL a session or grant may ask for.",
    ),
    setting(
        "lock.heartbeat.interval",
        Duration {
            min: 10 * MS,
            max: 8 * H,
        },
        Some("5s"),
        "lock-server, lock-client",
        "How often a session is to send a heartbeat (A-04); a third of the TTL.",
    ),
    setting(
        "lock.client.safety-margin",
        Duration { min: 0, max: 12 * H },
        Some("1s"),
        SDK,
        "How long before the lease's end its holder considers it lost (FR-11). Refused unless below half of `lock.session.ttl`.",
    ),
    setting(
        "lock.client.call-timeout",
        Duration {
            min: 10 * MS,
            max: 60 * S,
        },
        Some("2s"),
        SDK,
        "How long one call to a lock server may take before another server is tried.",
    ),
    setting(
        "lock.acquire.max-attempts",
        Integer { min: 1, max: 1_000 },
        Some("5"),
        SDK,
        "Attempts of one acquire before CONTENTION_EXCEEDED (FR-28).",
    ),
    setting(
        "lock.acquire.backoff-min",
        Duration { min: MS, max: 60 * S },
        Some("50ms"),
        SDK,
        "The bound of the jitter after the first refused attempt (FR-28).",
    ),
    setting(
        "lock.acquire.backoff-max",
        Duration { min: MS, max: 10 * M },
        Some("1s"),
        SDK,
        "The bound to which the jitter doubles (FR-28).",
    ),
    setting(
        "lock.acquire.wait-max",
        Duration { min: 0, max: 30 * S },
        Some("30s"),
        LOCK,
        "The longest `wait_ms` an acquire may ask for.",
    ),
    setting(
        "lock.acquire.waiters-max",
        Integer { min: 1, max: 1_000_000 },
        Some("1000"),
        LOCK,
        "The most waiters in one replica's queue of one key, of which one caller has half; eight times as many for all keys together. Beyond it an acquire is OVERLOADED (NFR-11).",
    ),
    setting(
        "lock.grant.ttl",
        Duration {
            min: 200 * MS,
            max: 24 * H,
        },
        None,
        LOCK,
        "The TTL of a grant that does not ask for one. Unset: its session's TTL.",
    ),
    setting(
        "lock.expiry.interval",
        Duration {
            min: 5 * MS,
            max: 60 * S,
        },
        Some("100ms"),
        LOCK,
        "How often the lease clock looks for what is due.",
    ),
    setting(
        "lock.tombstone.retention",
        Duration { min: S, max: 3_650 * D },
        Some("24h"),
        LOCK,
        "How long a freed key's row, and with it its last token, is still shown.",
    ),
    setting(
        "lock.audit.retention",
        Duration {
            min: H,
            max: 36_500 * D,
        },
        Some("30d"),
        LOCK,
        "How long sealed segments of the audit trail are kept.",
    ),
    setting(
        "lock.audit.seal-interval",
        Duration { min: 100 * MS, max: D },
        Some("10s"),
        LOCK,
        "How often the audit trail's new rows are sealed.",
    ),
    // payment
    setting(
        "payment.store.url",
        Url(&["sqlite", "postgres", "postgresql"]),
        Some("sqlite:dlock-paydb"),
        PAY,
        "Where paydb is; with `sqlite:` a directory. Flag `--store`.",
    ),
    setting(
        "payment.store.schema",
        Text { chars_max: 40 },
        Some("pay"),
        PAY,
        "On PostgreSQL: paydb's schema, made by `dlock migrate`. `[a-z0-9_]`.",
    ),
    setting(
        "payment.store.pool-max",
        Integer { min: 1, max: 1_000 },
        Some("16"),
        PAY,
        "On PostgreSQL: the most connections at a time.",
    ),
    setting(
        "payment.store.password-file",
        Text { chars_max: 4_096 },
        None,
        PAY,
        "On PostgreSQL: a file that holds the password, read again for each new connection. Unset: `PGPASSWORD`, else the URL's.",
    ),
    setting(
        "payment.store.timeout",
        Duration {
            min: 10 * MS,
            max: 60 * S,
        },
        Some("2s"),
        PAY,
        "The deadline of one call to paydb.",
    ),
    in_lab(setting(
        "payment.fencing.enabled",
        Boolean,
        Some("true"),
        PAY,
        "The kill switch of fence point (a) (FR-29).",
    )),
    // rail
    setting(
        "rail.url",
        Url(&["http", "https"]),
        None,
        RAIL,
        "The rail. Flag `--rail`. With `https:` its certificate is verified, always, and must be for the host of this URL.",
    ),
    setting(
        "rail.tls.ca-file",
        Text { chars_max: 4_096 },
        None,
        RAIL,
        "With an `https:` rail: a PEM file with the authorities that are trusted, and no others. Unset: those of this machine. Read at the start, as the two below.",
    ),
    setting(
        "rail.tls.cert-file",
        Text { chars_max: 4_096 },
        None,
        RAIL,
        "With an `https:` rail that asks who we are: a PEM file with our certificate and what leads from it to its authority. Refused without `rail.tls.key-file`.",
    ),
    setting(
        "rail.tls.key-file",
        Text { chars_max: 4_096 },
        None,
        RAIL,
        "A PEM file with the key of `rail.tls.cert-file`. Refused without it.",
    ),
    setting(
        "rail.store.url",
        Url(&["sqlite", "postgres", "postgresql"]),
        Some("sqlite:dlock-paydb"),
        RAIL,
        "Where paydb is; with `sqlite:` a directory. Flag `--store`.",
    ),
    setting(
        "rail.store.schema",
        Text { chars_max: 40 },
        Some("pay"),
        RAIL,
        "On PostgreSQL: paydb's schema, made by `dlock migrate`. `[a-z0-9_]`.",
    ),
    setting(
        "rail.store.pool-max",
        Integer { min: 1, max: 1_000 },
        Some("16"),
        RAIL,
        "On PostgreSQL: the most connections at a time.",
    ),
    setting(
        "rail.store.password-file",
        Text { chars_max: 4_096 },
        None,
        RAIL,
        "On PostgreSQL: a file that holds the password, read again for each new connection. Unset: `PGPASSWORD`, else the URL's.",
    ),
    setting(
        "rail.store.timeout",
        Duration {
            min: 10 * MS,
            max: 60 * S,
        },
        Some("2s"),
        RAIL,
        "The deadline of one call to paydb.",
    ),
    setting(
        "rail.read-timeout",
        Duration {
            min: 10 * MS,
            max: 10 * M,
        },
        Some("8s"),
        "rail-proxy, payout-executor",
        "How long the proxy waits for the rail's answer (A-11). Refused unless below `executor.rail-timeout`.",
    ),
    setting(
        "rail.visibility-horizon",
        Duration { min: 0, max: 30 * D },
        Some("60s"),
        RAIL,
        "How long after its socket is closed a submission may still execute at the rail (A-14).",
    ),
    in_lab(setting(
        "rail.fencing.enabled",
        Boolean,
        Some("true"),
        RAIL,
        "The kill switch of fence point (c) (FR-29).",
    )),
    // executor
    setting(
        "executor.lock-servers",
        Urls(&["http"]),
        None,
        WORK,
        "The lock servers' URLs, separated by commas. Flag `--lock-server`.",
    ),
    setting(
        "executor.payments",
        Url(&["http"]),
        None,
        WORK,
        "The payment resource. Flag `--payments`.",
    ),
    setting(
        "executor.rail-proxy",
        Url(&["http"]),
        None,
        WORK,
        "The rail proxy. Flag `--rail-proxy`.",
    ),
    setting(
        "executor.owner",
        Text { chars_max: 128 },
        None,
        WORK,
        "The name this worker's sessions carry. Flag `--owner`.",
    ),
    setting(
        "executor.role",
        Choice(&["pay", "reconcile", "both"]),
        Some("both"),
        WORK,
        "What this worker does. Flag `--role`.",
    ),
    setting(
        "executor.poll.interval",
        Duration { min: MS, max: H },
        Some("1s"),
        WORK,
        "How often work is looked for.",
    ),
    setting(
        "executor.poll.batch",
        Integer { min: 1, max: 1_000 },
        Some("100"),
        WORK,
        "The most payouts read by one poll.",
    ),
    setting(
        "executor.concurrency",
        Integer { min: 1, max: 1_024 },
        Some("4"),
        WORK,
        "How many payouts this worker settles at once.",
    ),
    setting(
        "executor.call-timeout",
        Duration {
            min: 10 * MS,
            max: 10 * M,
        },
        Some("5s"),
        WORK,
        "How long a call to the payment resource may take.",
    ),
    setting(
        "executor.rail-timeout",
        Duration {
            min: 10 * MS,
            max: 20 * M,
        },
        Some("10s"),
        WORK,
        "How long a submission may take (A-11).",
    ),
    setting(
        "executor.reconcile.interval",
        Duration { min: MS, max: D },
        Some("30s"),
        WORK,
        "How often ambiguous payouts are looked up.",
    ),
    setting(
        "executor.ambiguous-sla",
        Duration { min: MS, max: 365 * D },
        Some("4h"),
        "payment-resource, payout-executor",
        "After how long an ambiguous payout is escalated to a human (A-10).",
    ),
    in_lab(setting(
        "executor.ignore-lock-lost",
        Boolean,
        Some("false"),
        WORK,
        "Skips the look at the lock before a side effect: the negative control's worker.",
    )),
    in_lab(setting(
        "executor.lock-delay",
        Duration { min: MS, max: M },
        None,
        WORK,
        "The lock delay that this worker asks for with each of its locks, so that the delay has something to be judged by.",
    )),
    // console
    setting(
        "console.lock-servers",
        Urls(&["http"]),
        None,
        CONSOLE,
        "The lock servers' URLs, separated by commas, in order of preference. Flag `--lock-server`.",
    ),
    setting(
        "console.payments",
        Url(&["http"]),
        None,
        CONSOLE,
        "The payment resource. Flag `--payments`.",
    ),
    setting(
        "console.rail-proxy",
        Url(&["http"]),
        None,
        CONSOLE,
        "The rail proxy. Flag `--rail-proxy`.",
    ),
    setting(
        "console.executors",
        Urls(&["http"]),
        None,
        CONSOLE,
        "The payout executors' URLs, separated by commas. Flag `--executor`.",
    ),
    setting(
        "console.scenario",
        Text { chars_max: 4_096 },
        None,
        CONSOLE,
        "The status of a running scenario: a file, or an `http://` address, of JSON. Flag `--scenario`.",
    ),
    setting(
        "console.hosts",
        Text { chars_max: 4_096 },
        None,
        CONSOLE,
        "Names under which browsers may ask for the console, beside those of `http.hosts`, separated by commas.",
    ),
    setting(
        "console.read-only",
        Boolean,
        Some("false"),
        CONSOLE,
        "Shows only: no grant can be broken from it. Flag `--read-only`.",
    ),
    setting(
        "console.call-timeout",
        Duration {
            min: 10 * MS,
            max: 60 * S,
        },
        Some("2s"),
        CONSOLE,
        "How long one question to a component may take.",
    ),
    setting(
        "console.viewers-max",
        Integer { min: 1, max: 10_000 },
        Some("64"),
        CONSOLE,
        "How many streams of pages there may be at once; one caller gets half of them. Further ones are answered 503.",
    ),
    // http
    setting(
        "http.listen",
        Text { chars_max: 255 },
        Some("127.0.0.1:0"),
        ALL,
        "The address to listen on; port 0 takes a free one. Flag `--listen`.",
    ),
    setting(
        "http.hosts",
        Text { chars_max: 4_096 },
        None,
        ALL,
        "Names with a dot under which this component is asked for, separated by commas; `*.` stands for anything before the rest. A request whose `Host` is none of them, no address, no name without a dot and not `localhost` is answered 421, so that a foreign site's name cannot be made to point here.",
    ),
    setting(
        "http.answer-bytes-max",
        Integer {
            min: 65_536,
            max: 1 << 40,
        },
        Some("33554432"),
        ALL,
        "How many bytes of answers to reads may wait for their readers, and as many of answers to writes; one caller gets half of each. Further ones are answered 503 OVERLOADED.",
    ),
    setting(
        "http.write-timeout",
        Duration { min: S, max: 10 * M },
        Some("30s"),
        ALL,
        "How long a peer may take nothing of what is written to it before its connection is cut. Linux only.",
    ),
    setting(
        "http.workers",
        Integer { min: 1, max: 256 },
        Some("1"),
        ALL,
        "Threads that serve HTTP.",
    ),
    setting(
        "http.connections-max",
        Integer { min: 1, max: 1_000_000 },
        Some("10000"),
        ALL,
        "The most open connections for each HTTP thread; fewer where the limit of open files admits fewer. Then the one that has been idle longest is closed; with all of them busy, further ones wait in the kernel's backlog (NFR-11).",
    ),
    setting(
        "http.backlog",
        Integer { min: 1, max: 65_535 },
        Some("1024"),
        ALL,
        "The most connections waiting to be accepted.",
    ),
    setting(
        "http.request-timeout",
        Duration {
            min: 10 * MS,
            max: 10 * M,
        },
        Some("5s"),
        ALL,
        "How long a request may take before it is answered 503. Four routes wait on purpose and have a bound of their own instead: an acquire its wait, three `lock.store.timeout` and 500 ms; a submission `rail.read-timeout`, three `rail.store.timeout` and 500 ms; a lookup at the rail the smaller of `rail.read-timeout` and this, and three `rail.store.timeout`; the check of the ledger 60 s.",
    ),
    setting(
        "http.header-timeout",
        Duration {
            min: 10 * MS,
            max: 10 * M,
        },
        Some("5s"),
        ALL,
        "How long a client may take to send a request's head.",
    ),
    setting(
        "http.keep-alive",
        Duration { min: S, max: H },
        Some("75s"),
        ALL,
        "How long an idle connection is kept.",
    ),
    setting(
        "http.body-limit",
        Integer {
            min: 1_024,
            max: 65_536,
        },
        Some("65536"),
        ALL,
        "The largest request body in bytes (C3.1: at most 64 KiB).",
    ),
    setting(
        "http.drain-delay",
        Duration { min: 0, max: 10 * M },
        Some("0ms"),
        ALL,
        "How long, after SIGTERM, requests are still taken while `/readyz` already answers 503.",
    ),
    setting(
        "http.drain-timeout",
        Duration { min: 0, max: 10 * M },
        Some("10s"),
        ALL,
        "How long requests in flight may go on after SIGTERM (NFR-10).",
    ),
    // telemetry
    setting(
        "log.format",
        Choice(&["auto", "json", "pretty"]),
        Some("auto"),
        ALL,
        "The shape of log lines. `auto`: pretty where standard output is a terminal, else one JSON object a line.",
    ),
    setting(
        "log.filter",
        Text { chars_max: 1_000 },
        None,
        ALL,
        "What is logged: a level, and levels of single crates, as in `info,lock_core=debug`. Unset: what `DLOCK_LOG` says, else `info`. Read again on SIGHUP.",
    ),
    setting(
        "otel.endpoint",
        Url(&["http"]),
        None,
        ALL,
        "Where spans go: the OTLP/gRPC address of a collector, as in `http://collector:4317`. Also read from `OTEL_EXPORTER_OTLP_ENDPOINT`. Unset: none are made. Builds with the feature `otel` only.",
    ),
    setting(
        "otel.queue-max",
        Integer { min: 1, max: 1_000_000 },
        Some("8192"),
        ALL,
        "The most spans that wait to be exported; further ones are dropped and counted in `otel_spans_total`.",
    ),
    setting(
        "otel.export-timeout",
        Duration { min: 10 * MS, max: M },
        Some("5s"),
        ALL,
        "How long one message to the collector may take, and how long a process that ends waits for its last spans.",
    ),
    // debug
    Setting {
        lab_default: Some("true"),
        ..setting(
            "debug.endpoints",
            Boolean,
            Some("false"),
            ALL,
            "Serves `/debug/actors` and `/debug/trace` (C4.5).",
        )
    },
    setting(
        "debug.trace-capacity",
        Integer { min: 0, max: 1_000_000 },
        Some("4096"),
        ALL,
        "The most records in the trace ring, about 250 bytes each; 0 keeps none; spans leave all the same.",
    ),
    setting(
        "debug.dump-dir",
        Text { chars_max: 4_096 },
        None,
        ALL,
        "Where the trace is written by itself on SIGQUIT and when something panics. Unset: `dlock-dumps` in the directory for temporary files.",
    ),
    setting(
        "debug.dump-files",
        Integer { min: 0, max: 1_000 },
        Some("16"),
        ALL,
        "The most files that stay there for each component, the newest ones; 0 writes none.",
    ),
    setting(
        "debug.dump-on-exit",
        Boolean,
        Some("false"),
        ALL,
        "Writes the trace there at an orderly end too.",
    ),
    in_lab(setting(
        "debug.control",
        Boolean,
        Some("false"),
        ALL,
        "Serves `/debug/actors/{path}/pause`, `/resume` and `/panic` (C4.5).",
    )),
    in_lab(setting(
        "debug.fault-points",
        Text { chars_max: 4_096 },
        None,
        ALL,
        "Arms fault points: `NAME=kill|stop|panic|stall:MS[@N|@*]`, separated by commas.",
    )),
    in_lab(setting(
        "debug.history-file",
        Text { chars_max: 4_096 },
        None,
        ALL,
        "A JSONL file that gets what this process's clients saw.",
    )),
];
