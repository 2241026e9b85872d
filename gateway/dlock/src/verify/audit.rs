//! The audit trail: its seals, its order, and that each key had one holder at a time under rising tokens.

use super::{read, some};
use crate::doctor::report::Report;
use http_contract::lock::{AuditRow, SealRow};
use lock_server::seal::{FIRST_PREV_HASH, seal_hash};
use std::collections::BTreeMap;

const TAMPERED: &str = "compare it with another export or a backup of the lock store, row by row; whoever has its owner's password can change it";

/// Checks the trail, and its seals where they are given.
pub fn check(name: &str, text: &str, seals: Option<(&str, &str)>, report: &mut Report) {
    let rows = match read::rows::<AuditRow>(text) {
        Ok(rows) => rows,
        Err(error) => {
            report.wrong(
                name,
                "form",
                error,
                "name an export: dlock lock audit, or pages of GET /v1/audit",
            );
            return;
        }
    };
    report.ok(name, "form", format!("{} rows", rows.len()));
    if !in_order(name, &rows, report) {
        return;
    }
    let sealed_up_to = match seals {
        None => {
            report.not_checked(
                name,
                "seals",
                "no --seals: whether a row was changed, removed or put in is not looked at",
            );
            0
        }
        Some((file, text)) => match read::rows::<SealRow>(text) {
            Ok(seals) => sealed(file, &rows, &seals, report),
            Err(error) => {
                report.wrong(
                    file,
                    "form",
                    error,
                    "name an export: dlock lock audit --seals-to, or pages of GET /v1/audit/seals",
                );
                0
            }
        },
    };
    gaps(name, &rows, sealed_up_to, report);
    grants(name, &rows, report);
}

/// Rows rise by seq, and none is there twice.
fn in_order(name: &str, rows: &[AuditRow], report: &mut Report) -> bool {
    let bad: Vec<String> = rows
        .windows(2)
        .filter(|pair| pair[1].seq <= pair[0].seq)
        .map(|pair| format!("{} stands after {}", pair[1].seq, pair[0].seq))
        .collect();
    if bad.is_empty() {
        let (first, last) = (
            rows.first().map_or(0, |row| row.seq),
            rows.last().map_or(0, |row| row.seq),
        );
        report.ok(name, "order", format!("seq {first} to {last}, rising"));
        true
    } else {
        report.wrong(
            name,
            "order",
            some(&bad),
            "put the pages in the order they were fetched; or rows were moved",
        );
        false
    }
}

/// Checks the chain and each segment; answers the last seq that a right seal covers.
fn sealed(file: &str, rows: &[AuditRow], seals: &[SealRow], report: &mut Report) -> u64 {
    let mut bad = Vec::new();
    let (mut right, mut covered, mut dropped) = (0_usize, 0_u64, 0_usize);
    let first_row = rows.first().map_or(u64::MAX, |row| row.seq);
    let mut before: Option<&SealRow> = None;
    for seal in seals {
        let at = format!("seal {} of chain {}", seal.n, seal.chain);
        bad.extend(follows(before, seal).map(|why| format!("{at}: {why}")));
        let from = rows.partition_point(|row| row.seq < seal.first_seq);
        let to = rows.partition_point(|row| row.seq <= seal.last_seq);
        let segment = &rows[from..to.max(from)];
        if let Some(last) = before {
            let between = rows.partition_point(|row| row.seq <= last.last_seq);
            if let Some(row) = rows[between.min(from)..from].first() {
                bad.push(format!(
                    "row {} lies between two seals: it was put in afterwards",
                    row.seq
                ));
            }
        }
        before = Some(seal);
        let ends = (segment.first().map(|row| row.seq), segment.last().map(|row| row.seq));
        if seal.last_seq < first_row {
            dropped += 1;
        } else if ends != (Some(seal.first_seq), Some(seal.last_seq)) {
            bad.push(format!(
                "{at}: rows {} to {} are not all in the trail",
                seal.first_seq, seal.last_seq
            ));
        } else {
            match seal_hash(&seal.prev_hash, segment) {
                Ok(hash) if hash == seal.hash => {
                    right += 1;
                    covered = seal.last_seq;
                }
                Ok(hash) => bad.push(format!(
                    "{at}: rows {} to {} hash to {}…, sealed was {}…: a row was changed, removed or put in",
                    seal.first_seq,
                    seal.last_seq,
                    start(&hash),
                    start(&seal.hash)
                )),
                Err(error) => bad.push(format!("{at}: {error}")),
            }
        }
    }
    if bad.is_empty() {
        report.ok(
            file,
            "seals",
            format!("{right} segments, up to row {covered}: chain and hashes are right"),
        );
        report.not_checked(
            file,
            "origin",
            "who can write the store can seal other rows anew: seals that were kept elsewhere, checked with a later trail, show it",
        );
    } else {
        report.wrong(file, "seals", some(&bad), TAMPERED);
    }
    // Whatever the seals say of it: one who drops the front can begin a chain anew.
    match seals.first() {
        Some(seal) if seal.n > 1 || dropped > 0 || (2..u64::MAX).contains(&first_row) => report.not_checked(
            file,
            "beginning",
            format!(
                "what came before row {first_row} is not in the files: dropped by lock.audit.retention, or by whoever can write the store"
            ),
        ),
        _ => {}
    }
    let chains = seals.iter().filter(|seal| seal.n == 1).count();
    if chains > 1 {
        report.warning(
            file,
            "chains",
            format!("{chains} chains: the sealing began anew"),
            "the store was replaced, or its seals were removed: find out which",
        );
    }
    let tail = rows
        .iter()
        .filter(|row| row.seq > seals.last().map_or(0, |seal| seal.last_seq))
        .count();
    if tail > 0 {
        report.not_checked(
            file,
            "tail",
            format!("{tail} rows are not sealed yet (lock.audit.seal-interval), or later than this file of seals"),
        );
    }
    covered
}

fn start(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Why a seal does not follow the one before it.
fn follows(before: Option<&SealRow>, seal: &SealRow) -> Option<String> {
    if seal.last_seq < seal.first_seq {
        return Some("it ends before it begins".to_owned());
    }
    if seal.n == 1 && seal.prev_hash != FIRST_PREV_HASH {
        return Some("the first of a chain follows 64 zeros".to_owned());
    }
    let last = before?;
    if seal.first_seq <= last.last_seq {
        return Some(format!("it overlaps the one that ends at {}", last.last_seq));
    }
    if seal.chain != last.chain {
        return (seal.n != 1).then(|| "a new chain begins with 1".to_owned());
    }
    if seal.n != last.n + 1 {
        return Some(format!("it follows {}: seals are missing in between", last.n));
    }
    (seal.prev_hash != last.hash).then(|| "its prev_hash is not the hash before it".to_owned())
}

/// Numbers that are missing where no right seal says that nothing was there.
fn gaps(name: &str, rows: &[AuditRow], sealed_up_to: u64, report: &mut Report) {
    let found: Vec<String> = rows
        .windows(2)
        .filter(|pair| pair[1].seq > pair[0].seq + 1 && pair[1].seq > sealed_up_to)
        .map(|pair| format!("{} to {}", pair[0].seq + 1, pair[1].seq - 1))
        .collect();
    if found.is_empty() {
        report.ok(name, "gaps", "none that a seal does not explain");
    } else {
        report.warning(
            name,
            "gaps",
            format!("missing: {}", some(&found)),
            "on PostgreSQL a transaction that failed leaves one; else rows are missing: check it again once these rows are sealed",
        );
    }
}

/// Who holds a key, as the rows tell it.
#[derive(Default)]
struct Key {
    held: Option<u64>,
    highest: u64,
}

/// One holder at a time, under tokens that rise.
fn grants(name: &str, rows: &[AuditRow], report: &mut Report) {
    // A trail that begins later may end grants that it does not show.
    let whole = rows.first().is_none_or(|row| row.seq == 1);
    let (mut keys, mut bad_tokens, mut bad_grants) = (BTreeMap::<&str, Key>::new(), Vec::new(), Vec::new());
    let (mut granted, mut unseen) = (0_usize, 0_usize);
    for row in rows {
        let kind = row.kind.as_str();
        if !matches!(kind, "GRANTED" | "RELEASED" | "EXPIRED" | "REVOKED" | "YIELD_REQUESTED") {
            continue;
        }
        let (Some(name), Some(token)) = (row.lock_key.as_deref(), row.token) else {
            bad_grants.push(format!("row {}: {kind} without a key or a token", row.seq));
            continue;
        };
        let is_known = keys.contains_key(name);
        let key = keys.entry(name).or_default();
        if kind == "GRANTED" {
            granted += 1;
            if token <= key.highest {
                bad_tokens.push(format!(
                    "row {}: {name} was granted under {token} after {}",
                    row.seq, key.highest
                ));
            }
            if let Some(held) = key.held {
                bad_grants.push(format!(
                    "row {}: {name} was granted under {token} while held under {held}",
                    row.seq
                ));
            }
            key.held = Some(token);
        } else if key.held == Some(token) {
            // A request to yield ends nothing; it is made of a live grant.
            key.held = key.held.filter(|_| kind == "YIELD_REQUESTED");
        } else if is_known || whole {
            bad_grants.push(format!(
                "row {}: {name} {kind} under {token}, which did not hold it",
                row.seq
            ));
        } else {
            unseen += 1;
        }
        key.highest = key.highest.max(token);
    }
    let next = "INV-01 or INV-04 is broken, or rows are missing or changed: keep the files, and report it";
    if bad_tokens.is_empty() {
        report.ok(
            name,
            "tokens",
            format!("rise with each of {granted} grants of {} keys", keys.len()),
        );
    } else {
        report.wrong(name, "tokens", some(&bad_tokens), next);
    }
    let held = keys.values().filter(|key| key.held.is_some()).count();
    if bad_grants.is_empty() {
        let mut said = format!("no key had two holders; {held} still held at the end");
        if unseen > 0 {
            said.push_str(&format!("; {unseen} began before the trail"));
        }
        report.ok(name, "grants", said);
    } else {
        report.wrong(name, "grants", some(&bad_grants), next);
    }
}
