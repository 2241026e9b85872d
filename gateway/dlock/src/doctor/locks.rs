//! The lock servers: one lineage, no doubt, and a grant that is really given and taken back.

use super::component::Component;
use super::report::Report;
use crate::api::Api;
use host_kit::Host;
use http_client::{CallError, LockServerApi};
use http_contract::lock::{AcquireBody, KeyStatus, OpenSessionRequest};
use lock_api::LockKey;

/// Where the probe's keys begin.
const PROBE_PREFIX: &str = "dlock/doctor/";

/// What they share: the lineage of one store.
pub async fn lineages(api: &Api, servers: &[&Component], report: &mut Report) {
    let mut first: Option<(String, &str)> = None;
    for server in servers {
        let at = &server.subject;
        let lineage = match LockServerApi::new(api.plain(&server.url)).lineage(&api.trace).await {
            Ok(lineage) => lineage,
            Err(error) => {
                report.wrong(at, "lineage", error.to_string(), "its store does not answer: see ready");
                continue;
            }
        };
        if lineage.state == "OK" {
            report.ok(
                at,
                "lineage",
                format!(
                    "{} OK, last token {}, floor {}",
                    lineage.lineage, lineage.last_token, lineage.token_floor
                ),
            );
        } else {
            report.wrong(
                at,
                "lineage",
                format!(
                    "{} {}: nothing is granted: {}",
                    lineage.lineage,
                    lineage.state,
                    lineage.detail.unwrap_or_default()
                ),
                "find out what happened to the store (docs/restore.md), then dlock lineage floor, or dismiss a witness that lied",
            );
        }
        match &first {
            None => first = Some((lineage.lineage, at)),
            Some((other, _)) if *other == lineage.lineage => {}
            Some((other, of)) => report.wrong(
                at,
                "one store",
                format!(
                    "its lineage is {}, that of {of} is {other}: they grant the same key twice",
                    lineage.lineage
                ),
                "point every lock server at the same lock.store.url (and lock.store.schema or lock.store.prefix)",
            ),
        }
    }
}

/// Opens a session, takes a key that nobody uses, sees it held, is refused it, and gives it back.
pub async fn probe(api: &Api, host: &Host, servers: &[&Component], report: &mut Report) {
    let mut beats: Option<(u64, u64)> = None;
    for server in servers {
        let asked = LockServerApi::new(api.plain(&server.url));
        let open = OpenSessionRequest {
            owner: "dlock-doctor".to_owned(),
            ttl_ms: None,
            metadata: None,
        };
        let at = &server.subject;
        let session = match asked.open_session(&open, &api.trace).await {
            Ok(session) => session,
            Err(error) => {
                report.wrong(
                    at,
                    "probe",
                    format!("no session: {error}"),
                    "see ready and lineage above",
                );
                continue;
            }
        };
        let (ttl, beat) = (session.ttl_ms, session.heartbeat_interval_ms);
        if beat.saturating_mul(2) >= ttl {
            report.warning(
                at,
                "heartbeats",
                format!("every {beat} ms within a TTL of {ttl} ms: one lost heartbeat ends a session"),
                "set lock.heartbeat.interval to a third of lock.session.ttl",
            );
        } else {
            report.ok(at, "heartbeats", format!("every {beat} ms within a TTL of {ttl} ms"));
        }
        if *beats.get_or_insert((ttl, beat)) != (ttl, beat) {
            report.warning(
                at,
                "heartbeats",
                "another TTL or interval than the first lock server's",
                "give all lock servers the same lock.session.ttl and lock.heartbeat.interval",
            );
        }
        let others: Vec<_> = servers
            .iter()
            .filter(|other| other.url != server.url)
            .copied()
            .collect();
        match grant(api, host, &asked, &session.session_id, &others).await {
            Ok(said) => report.ok(at, "probe", said),
            Err(said) => report.wrong(
                at,
                "probe",
                said,
                "see ready and lineage above, and the log of this lock server",
            ),
        }
        if let Err(error) = asked.close_session(&session.session_id, &api.trace).await {
            report.warning(
                at,
                "probe",
                format!("the probe's session was not closed: {error}"),
                format!("it ends by itself in {ttl} ms"),
            );
        }
    }
}

async fn grant(
    api: &Api,
    host: &Host,
    server: &LockServerApi,
    session_id: &str,
    others: &[&Component],
) -> Result<String, String> {
    let key = LockKey::new(format!("{PROBE_PREFIX}{}", host.ids.uuid())).map_err(|error| error.to_string())?;
    let body = AcquireBody {
        session_id: session_id.to_owned(),
        request_id: None,
        ttl_ms: None,
        wait_ms: None,
        witness_token: None,
        lock_delay_ms: None,
        metadata: None,
    };
    let from = host.clock.mono();
    let grant = server
        .acquire(&key, &body, &api.trace)
        .await
        .map_err(|error| format!("no grant of {key}: {error}"))?;
    let took = host.clock.mono().saturating_sub(from);
    let token = http_contract::token(grant.token).map_err(|error| error.to_string())?;
    match server.acquire(&key, &body, &api.trace).await {
        Err(error) if error.code() == Some(http_contract::Code::HeldByOther) => {}
        Ok(second) => {
            return Err(format!(
                "{key} was granted twice, with the tokens {token} and {}",
                second.token
            ));
        }
        Err(error) => return Err(format!("asked for a key that is held, it answers {error}")),
    }
    for other in others {
        let seen = LockServerApi::new(api.plain(&other.url)).lock(&key, &api.trace).await;
        match seen {
            Ok(view) if view.state == KeyStatus::Held && view.token == Some(grant.token) => {}
            Ok(view) => {
                return Err(format!(
                    "{} does not see the grant: it says {:?}, token {:?}: another store",
                    other.subject, view.state, view.token
                ));
            }
            // That it does not answer is said by its own checks.
            Err(CallError::NotSent(_) | CallError::Ambiguous(_)) => {}
            Err(error) => return Err(format!("{}: {error}", other.subject)),
        }
    }
    let released = server
        .release(&key, session_id, token, &api.trace)
        .await
        .map_err(|error| format!("{key} was not given back: {error}"))?;
    if !released.released {
        return Err(format!("{key} was not held any more when it was given back"));
    }
    Ok(format!(
        "{key}: granted in {:.1} ms under token {token}, refused while held, given back",
        took.as_secs_f64() * 1_000.0
    ))
}
