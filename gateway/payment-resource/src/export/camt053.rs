//! ISO 20022 bank-to-customer statement (camt.053.001.08): one statement per account with its opening balance, its
//! entries and its closing balance.

use super::{Cut, Out};
use crate::currency::{decimal, exponent};
use gateway_kit::rfc3339;
use payment_store::{Account, LedgerRow};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The most characters of an account's identification in this schema.
const ID_CHARS_MAX: usize = 34;

/// The most characters of a reference in this schema.
const REFERENCE_CHARS_MAX: usize = 35;

pub(super) async fn write(out: &Out, now_ms: i64) -> Result<(), Cut> {
    let at = rfc3339(now_ms);
    // The sums first: a statement begins with its closing balance.
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    let mut after = 0;
    while let Some(rows) = out.entries(None, after).await? {
        for row in rows {
            after = row.entry_id;
            *sums.entry(row.account_id).or_default() += row.amount_minor;
        }
    }
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text.push_str("<Document xmlns=\"urn:iso:std:iso:20022:tech:xsd:camt.053.001.08\"><BkToCstmrStmt>");
    put(
        &mut text,
        format_args!("<GrpHdr><MsgId>dlock-{now_ms}</MsgId><CreDtTm>{at}</CreDtTm></GrpHdr>\n"),
    );
    let (mut after, mut number) = (None, 0_u64);
    while let Some(accounts) = out.accounts(after.clone()).await? {
        for account in &accounts {
            let sum = sums.get(&account.account_id).copied().unwrap_or(0);
            number += 1;
            head(&mut text, account, sum, &at, &format!("dlock-{now_ms}-{number}"));
            out.write(std::mem::take(&mut text)).await?;
            let mut seen = 0;
            while let Some(rows) = out.entries(Some(&account.account_id), seen).await? {
                for row in &rows {
                    seen = row.entry_id;
                    entry(&mut text, row);
                }
                out.write(std::mem::take(&mut text)).await?;
            }
            text.push_str("</Stmt>\n");
        }
        after = accounts.last().map(|account| account.account_id.clone());
    }
    text.push_str("</BkToCstmrStmt></Document>\n");
    out.write(text).await
}

fn head(text: &mut String, account: &Account, sum: i64, at: &str, statement: &str) {
    let day = at.split('T').next().unwrap_or(at);
    let id = &account.account_id;
    put(text, format_args!("<Stmt><Id>{statement}</Id><CreDtTm>{at}</CreDtTm>"));
    put(
        text,
        format_args!(
            "<Acct><Id><Othr><Id>{}</Id></Othr></Id><Ccy>{}</Ccy><Nm>{}</Nm></Acct>\n",
            escaped(&short(id)),
            account.currency,
            escaped(id)
        ),
    );
    for (code, amount) in [
        ("OPBD", account.opening_balance_minor),
        ("CLBD", account.opening_balance_minor + sum),
    ] {
        put(
            text,
            format_args!(
                "<Bal><Tp><CdOrPrtry><Cd>{code}</Cd></CdOrPrtry></Tp>{}<CdtDbtInd>{}</CdtDbtInd><Dt><Dt>{day}</Dt></Dt></Bal>\n",
                money(amount, &account.currency),
                direction(amount)
            ),
        );
    }
}

fn entry(text: &mut String, row: &LedgerRow) {
    let amount = money(row.amount_minor, &row.currency);
    let direction = direction(row.amount_minor);
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
}

fn money(amount_minor: i64, currency: &str) -> String {
    let unsigned = decimal(amount_minor, exponent(currency));
    format!("<Amt Ccy=\"{currency}\">{}</Amt>", unsigned.trim_start_matches('-'))
}

const fn direction(amount_minor: i64) -> &'static str {
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
            (money(-400, "EUR").as_str(), direction(-400)),
            ("<Amt Ccy=\"EUR\">4.00</Amt>", "DBIT")
        );
    }
}
