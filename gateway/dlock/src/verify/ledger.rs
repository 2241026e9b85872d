//! The ledger: each fact two legs that sum to zero, and balances that follow from them.

use super::{read, some};
use crate::doctor::report::Report;
use http_contract::payment::{AccountAnswer, LedgerRow};
use money_kit::amount;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The first line of the csv export (C3.4 P9).
const CSV_HEADER: &str = "entry_id,payout_id,account_id,amount_minor,currency,exponent,token,at,rail_reference";

/// Where the accounts of the house begin.
const HOUSE: &str = "house:";

/// Checks the ledger, and the balances where the accounts are given.
pub fn check(name: &str, text: &str, accounts: Option<(&str, &str)>, report: &mut Report) {
    let rows = if text.starts_with(CSV_HEADER) {
        csv_rows(text)
    } else {
        read::rows::<LedgerRow>(text)
    };
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) => {
            report.wrong(
                name,
                "form",
                error,
                "name an export: GET /v1/ledger/export?format=jsonl, or csv",
            );
            return;
        }
    };
    let bad: Vec<String> = rows.iter().filter_map(form).collect();
    if bad.is_empty() {
        report.ok(name, "form", format!("{} entries", rows.len()));
    } else {
        report.wrong(
            name,
            "form",
            some(&bad),
            "the file was changed, or is none of the ledger's exports",
        );
    }
    order(name, &rows, report);
    legs(name, &rows, report);
    match accounts {
        None => report.not_checked(name, "balances", "no --accounts"),
        Some((file, text)) => match read::rows::<AccountAnswer>(text) {
            Ok(accounts) => balances(file, &rows, &accounts, report),
            Err(error) => report.wrong(file, "form", error, "name pages of GET /v1/accounts"),
        },
    }
}

/// Reads the csv export: an empty cell is a null, and a cell that a spreadsheet would take for a formula begins with `'`.
fn csv_rows(text: &str) -> Result<Vec<LedgerRow>, String> {
    let mut exponents = BTreeMap::new();
    let mut rows = Vec::new();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let at = rows.len() + 1;
        let cell = |place: usize| record.get(place).unwrap_or_default();
        let plain = |place: usize| {
            let cell = cell(place);
            match cell.strip_prefix('\'') {
                Some(rest) if gateway_kit::is_formula(rest) => rest.to_owned(),
                _ => cell.to_owned(),
            }
        };
        let optional = |place: usize| Some(plain(place)).filter(|text| !text.is_empty());
        let number = |place: usize| {
            let text = cell(place);
            let value: i64 = text.parse().map_err(|_| format!("entry {at}: {text:?} is no number"))?;
            // 007 and +7 are numbers, and are not what was exported.
            if value.to_string() == text {
                Ok(value)
            } else {
                Err(format!("entry {at}: {text:?} is not how a number is exported"))
            }
        };
        let unsigned = |place: usize| {
            number(place).and_then(|n| u64::try_from(n).map_err(|_| format!("entry {at}: {n} is below zero")))
        };
        let (currency, exponent) = (plain(4), number(5)?);
        if *exponents.entry(currency.clone()).or_insert(exponent) != exponent {
            return Err(format!("entry {at}: {currency} has two exponents"));
        }
        rows.push(LedgerRow {
            entry_id: unsigned(0)?,
            payout_id: optional(1),
            account_id: plain(2),
            amount_minor: number(3)?,
            currency,
            token: if cell(6).is_empty() { None } else { Some(unsigned(6)?) },
            at: plain(7),
            rail_reference: optional(8),
        });
    }
    Ok(rows)
}

/// What is not as an entry can be.
fn form(row: &LedgerRow) -> Option<String> {
    let of = |what: &str| Some(format!("entry {}: {what}", row.entry_id));
    let is_currency = row.currency.len() == 3 && row.currency.bytes().all(|b| b.is_ascii_uppercase());
    if !is_currency {
        return of("its currency is no ISO 4217 code");
    }
    if OffsetDateTime::parse(&row.at, &Rfc3339).is_err() || row.at.len() != 24 || !row.at.ends_with('Z') {
        return of("its instant is not how one is exported");
    }
    if row.token.is_some_and(|token| http_contract::token(token).is_err()) {
        return of("its token is none");
    }
    if row.payout_id.is_some() != row.token.is_some() {
        return of("a payout has a token, and a credit has none");
    }
    let house = row.account_id.strip_prefix(HOUSE)?;
    let wanted = if row.payout_id.is_some() { "payouts" } else { "credits" };
    (house != format!("{wanted}:{}", row.currency)).then(|| {
        format!(
            "entry {}: {} is no account of the house for it",
            row.entry_id, row.account_id
        )
    })
}

fn order(name: &str, rows: &[LedgerRow], report: &mut Report) {
    let pairs = || rows.windows(2);
    let bad: Vec<String> = pairs()
        .filter(|pair| pair[1].entry_id <= pair[0].entry_id)
        .map(|pair| format!("{} stands after {}", pair[1].entry_id, pair[0].entry_id))
        .collect();
    let gaps: Vec<String> = std::iter::once(0)
        .chain(rows.iter().map(|row| row.entry_id))
        .zip(rows.iter().map(|row| row.entry_id))
        .filter(|(before, after)| *after > before + 1)
        .map(|(before, after)| format!("{} to {}", before + 1, after - 1))
        .collect();
    if !bad.is_empty() {
        report.wrong(name, "order", some(&bad), "entries were moved or written twice");
    } else if gaps.is_empty() {
        report.ok(name, "order", "rising without gaps");
    } else {
        report.warning(
            name,
            "order",
            format!("missing: {}", some(&gaps)),
            "on PostgreSQL a transaction that failed leaves one; else entries are missing: compare with GET /v1/ledger/verify",
        );
    }
}

/// What two legs of one fact have in common: payout, currency, token, instant, rail reference, and the size of the amount.
type Fact<'r> = (Option<&'r str>, &'r str, Option<u64>, &'r str, Option<&'r str>, u64);

/// Each fact has one leg of a client and one of the house, of opposite amounts; a payout is one fact.
fn legs(name: &str, rows: &[LedgerRow], report: &mut Report) {
    let (mut facts, mut payouts) = (
        BTreeMap::<Fact<'_>, Vec<&LedgerRow>>::new(),
        BTreeMap::<&str, Vec<&LedgerRow>>::new(),
    );
    for row in rows {
        let payout = row.payout_id.as_deref();
        let reference = row.rail_reference.as_deref();
        let fact = (
            payout,
            row.currency.as_str(),
            row.token,
            row.at.as_str(),
            reference,
            row.amount_minor.unsigned_abs(),
        );
        facts.entry(fact).or_default().push(row);
        if let Some(payout) = payout {
            payouts.entry(payout).or_default().push(row);
        }
    }
    let mut bad = Vec::new();
    for (payout, legs) in &payouts {
        let sum: i128 = legs.iter().map(|leg| i128::from(leg.amount_minor)).sum();
        if legs.len() != 2 || sum != 0 {
            bad.push(format!(
                "payout {payout} has {} legs that sum to {}, not two that sum to 0",
                legs.len(),
                amount(sum, &legs[0].currency)
            ));
        }
    }
    for ((payout, ..), legs) in &facts {
        let is_house = |leg: &&&LedgerRow| leg.account_id.starts_with(HOUSE);
        let amounts = |house: bool| {
            let mut amounts: Vec<i64> = legs
                .iter()
                .filter(|leg| is_house(leg) == house)
                .map(|leg| leg.amount_minor)
                .collect();
            amounts.sort_unstable();
            amounts
        };
        let (mut clients, house) = (amounts(false), amounts(true));
        clients.iter_mut().for_each(|amount| *amount = amount.saturating_neg());
        clients.sort_unstable();
        // A payout takes from a client, a credit gives.
        let wrong_way = legs
            .iter()
            .any(|leg| (leg.amount_minor > 0) == (payout.is_some() != leg.account_id.starts_with(HOUSE)));
        if clients != house || wrong_way {
            let entries: Vec<String> = legs.iter().map(|leg| leg.entry_id.to_string()).collect();
            let what = payout.map_or_else(|| "a credit".to_owned(), |id| format!("payout {id}"));
            bad.push(format!(
                "{what}: entries {} are not a client's leg and the house's opposite one",
                entries.join(", ")
            ));
        }
    }
    let mut sums = BTreeMap::<&str, i128>::new();
    for row in rows {
        *sums.entry(&row.currency).or_default() += i128::from(row.amount_minor);
    }
    bad.extend(
        sums.iter()
            .filter(|(_, sum)| **sum != 0)
            .map(|(currency, sum)| format!("all {currency} sum to {}, not to 0", amount(*sum, currency))),
    );
    if bad.is_empty() {
        report.ok(
            name,
            "legs",
            format!("{} payouts, two legs each; everything sums to zero", payouts.len()),
        );
    } else {
        report.wrong(
            name,
            "legs",
            some(&bad),
            "compare with GET /v1/ledger/verify: if that says ok, the file was changed; else INV-03 is broken",
        );
    }
}

/// A balance is what the account opened with and its legs.
fn balances(file: &str, rows: &[LedgerRow], accounts: &[AccountAnswer], report: &mut Report) {
    let mut sums = BTreeMap::<(&str, &str), i128>::new();
    for row in rows.iter().filter(|row| !row.account_id.starts_with(HOUSE)) {
        *sums.entry((&row.account_id, &row.currency)).or_default() += i128::from(row.amount_minor);
    }
    let mut bad = Vec::new();
    for account in accounts {
        let sum = sums
            .remove(&(account.account_id.as_str(), account.currency.as_str()))
            .unwrap_or(0);
        let wanted = i128::from(account.opening_balance_minor) + sum;
        if i128::from(account.balance_minor) != wanted {
            bad.push(format!(
                "{}: {} by its legs, {} says the account",
                account.account_id,
                amount(wanted, &account.currency),
                amount(account.balance_minor, &account.currency)
            ));
        }
    }
    bad.extend(
        sums.keys()
            .map(|(account, currency)| format!("{account} ({currency}) has legs and is no account")),
    );
    if bad.is_empty() {
        report.ok(
            file,
            "balances",
            format!("of {} accounts follow from their legs", accounts.len()),
        );
    } else {
        report.wrong(
            file,
            "balances",
            some(&bad),
            "fetch both while nothing is paid; if it stays, compare with GET /v1/ledger/verify",
        );
    }
}
