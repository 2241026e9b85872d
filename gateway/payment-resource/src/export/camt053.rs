//! ISO 20022 bank-to-customer statement (camt.053.001.08): one statement per account with its period, its opening balance,
//! its entries and its closing balance.
//!
//! The same period of the same ledger is the same bytes: no clock is read. The ids are a hash of what is stated, so that a
//! statement that an importer has seen has the id that it had. Every day and instant is UTC.

use super::period::{day, day_before};
use super::{Cut, Out, Sums};
use gateway_kit::rfc3339;
use money_kit::decimal;
use payment_store::{Account, LedgerRow};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The most characters of an account's identification in this schema.
const ID_CHARS_MAX: usize = 34;

/// The most characters of a reference in this schema.
const REFERENCE_CHARS_MAX: usize = 35;

/// The most digits of an amount in this schema.
const AMOUNT_DIGITS_MAX: usize = 18;

/// Where a period begins that was not given: before any entry.
const FROM_THE_BEGINNING_MS: i64 = 0;

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    // The sums first: a statement begins with its closing balance.
    let sums = out.sums().await?;
    let last_at_ms = sums.values().filter_map(|sums| sums.last_at_ms).max();
    // A period without an end goes as far as its last entry.
    let end_ms = out.period.to_ms.map(|to| to.saturating_sub(1)).or(last_at_ms);
    let end_ms = end_ms.or(out.period.from_ms).unwrap_or(FROM_THE_BEGINNING_MS);
    let at = rfc3339(end_ms);
    let span = Span {
        from_ms: out.period.from_ms,
        end_ms,
    };
    let account_id = out.account_id.as_deref().unwrap_or_default();
    let message = id(&[
        "message",
        account_id,
        &out.period.to_string(),
        &sums.values().map(|sums| sums.last_entry).max().unwrap_or(0).to_string(),
    ]);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text.push_str("<Document xmlns=\"urn:iso:std:iso:20022:tech:xsd:camt.053.001.08\"><BkToCstmrStmt>");
    put(
        &mut text,
        format_args!("<GrpHdr><MsgId>{message}</MsgId><CreDtTm>{at}</CreDtTm></GrpHdr>\n"),
    );
    let mut after = None;
    while let Some(accounts) = out.accounts(after.clone()).await? {
        for account in &accounts {
            let sums = sums.get(&account.account_id).copied().unwrap_or_default();
            let statement = id(&[
                "statement",
                &account.account_id,
                &out.period.to_string(),
                &sums.last_entry.to_string(),
            ]);
            head(&mut text, account, &sums, span, &statement)?;
            out.write(std::mem::take(&mut text)).await?;
            let mut entries = out.entries(Some(&account.account_id));
            let mut stated: i128 = 0;
            while let Some(rows) = entries.next().await? {
                for row in &rows {
                    stated = stated.saturating_add(i128::from(row.amount_minor));
                    entry(&mut text, row)?;
                }
                out.write(std::mem::take(&mut text)).await?;
            }
            // An entry that was committed between the two readings would make the closing balance a lie.
            if stated != sums.within {
                let why = format!(
                    "entries of {} were added meanwhile: export it again",
                    account.account_id
                );
                return Err(Cut::Format(why));
            }
            text.push_str("</Stmt>\n");
        }
        after = accounts.last().map(|account| account.account_id.clone());
    }
    text.push_str("</BkToCstmrStmt></Document>\n");
    out.write(text).await
}

/// The time of a statement.
#[derive(Clone, Copy)]
struct Span {
    /// None where it is not bounded.
    from_ms: Option<i64>,
    /// Its last instant.
    end_ms: i64,
}

fn head(text: &mut String, account: &Account, sums: &Sums, span: Span, statement: &str) -> Result<(), Cut> {
    let id = &account.account_id;
    let (from, end) = (
        rfc3339(span.from_ms.unwrap_or(FROM_THE_BEGINNING_MS)),
        rfc3339(span.end_ms),
    );
    put(
        text,
        format_args!(
            "<Stmt><Id>{statement}</Id><CreDtTm>{end}</CreDtTm><FrToDt><FrDtTm>{from}</FrDtTm><ToDtTm>{end}</ToDtTm></FrToDt>"
        ),
    );
    put(
        text,
        format_args!(
            "<Acct><Id><Othr><Id>{}</Id></Othr></Id><Ccy>{}</Ccy><Nm>{}</Nm></Acct>\n",
            escaped(&short(id)),
            account.currency,
            escaped(id)
        ),
    );
    let (opening, closing) = sums.balances(account)?;
    // The day before the first entry can be: importers put entries of the balance's own day before it.
    let opened = span.from_ms.or(sums.first_at_ms).unwrap_or(span.end_ms);
    for (code, amount, day) in [
        ("OPBD", opening, day_before(opened)),
        ("CLBD", closing, day(span.end_ms)),
    ] {
        put(
            text,
            format_args!(
                "<Bal><Tp><CdOrPrtry><Cd>{code}</Cd></CdOrPrtry></Tp>{}<CdtDbtInd>{}</CdtDbtInd><Dt><Dt>{day}</Dt></Dt></Bal>\n",
                money(amount, &account.account_id, &account.currency)?,
                direction(amount)
            ),
        );
    }
    Ok(())
}

/// An id of what is stated: the same for the same, and of no more than 35 characters.
fn id(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    format!("dlock-{}", hex::encode(&hash.finalize()[..14]))
}

fn entry(text: &mut String, row: &LedgerRow) -> Result<(), Cut> {
    let amount = money(row.amount_minor, &row.account_id, &row.currency)?;
    let direction = direction(row.amount_minor.into());
    let at = rfc3339(row.at_ms);
    put(
        text,
        format_args!(
            "<Ntry><NtryRef>{}</NtryRef>{amount}<CdtDbtInd>{direction}</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts>\
             <BookgDt><DtTm>{at}</DtTm></BookgDt>",
            row.entry_id
        ),
    );
    if let Some(reference) = &row.rail_reference {
        put(
            text,
            format_args!(
                "<AcctSvcrRef>{}</AcctSvcrRef>",
                escaped(&cut(reference, REFERENCE_CHARS_MAX))
            ),
        );
    }
    let kind = if row.payout_id.is_some() { "PAYOUT" } else { "CREDIT" };
    put(text, format_args!("<BkTxCd><Prtry><Cd>{kind}</Cd></Prtry></BkTxCd>"));
    if let Some(payout_id) = &row.payout_id {
        put(
            text,
            format_args!(
                "<NtryDtls><TxDtls><Refs><EndToEndId>{}</EndToEndId></Refs>{amount}<CdtDbtInd>{direction}</CdtDbtInd>",
                escaped(payout_id)
            ),
        );
        if let Some(token) = row.token {
            put(text, format_args!("<AddtlTxInf>fencing token {token}</AddtlTxInf>"));
        }
        text.push_str("</TxDtls></NtryDtls>");
    }
    text.push_str("</Ntry>\n");
    Ok(())
}

/// An amount without its sign.
fn money(amount_minor: impl Into<i128>, account_id: &str, currency: &str) -> Result<String, Cut> {
    let text = decimal(amount_minor, currency);
    let unsigned = text.trim_start_matches('-');
    if unsigned.bytes().filter(u8::is_ascii_digit).count() > AMOUNT_DIGITS_MAX {
        return Err(Cut::Sum(account_id.to_owned()));
    }
    Ok(format!("<Amt Ccy=\"{currency}\">{unsigned}</Amt>"))
}

const fn direction(amount_minor: i128) -> &'static str {
    if amount_minor < 0 { "DBIT" } else { "CRDT" }
}

/// An id that is too long for the schema is shortened so that no two of them meet; its whole text stands in the name.
fn short(id: &str) -> String {
    if id.len() <= ID_CHARS_MAX {
        return id.to_owned();
    }
    // FNV-1a, in the room that is left beside the beginning of the id.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}~{hash:016x}", &id[..ID_CHARS_MAX - 17])
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // Not a character of XML 1.0 at all.
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

fn put(text: &mut String, part: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = text.write_fmt(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ids_fit_and_stay_apart() {
        let (a, b) = ("x".repeat(63) + "a", "x".repeat(63) + "b");
        assert_eq!(short(&a).len(), ID_CHARS_MAX);
        assert_ne!(short(&a), short(&b));
        assert_eq!(short("acc-1"), "acc-1");
    }

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(escaped("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn amounts_are_unsigned_with_a_direction() {
        assert_eq!(
            (money(-400, "a", "EUR").unwrap().as_str(), direction(-400)),
            ("<Amt Ccy=\"EUR\">4.00</Amt>", "DBIT")
        );
        assert_eq!(money(7, "a", "JPY").unwrap(), "<Amt Ccy=\"JPY\">7</Amt>");
    }

    #[test]
    fn case_p26_what_the_schema_cannot_say_is_an_error() {
        assert!(money(10_i64.pow(18) - 1, "a", "EUR").is_ok());
        assert!(matches!(money(10_i64.pow(18), "a", "EUR"), Err(Cut::Sum(_))));
    }

    #[test]
    fn case_p25_ids_are_short_and_of_what_is_stated() {
        let one = id(&["statement", "a", "the whole ledger", "7"]);
        assert_eq!(one, id(&["statement", "a", "the whole ledger", "7"]));
        assert_ne!(one, id(&["statement", "a", "the whole ledger", "8"]));
        assert_ne!(id(&["a", "bc"]), id(&["ab", "c"]));
        assert!(one.len() <= REFERENCE_CHARS_MAX);
    }
}
