//! Money for people: which currencies circulate, how many decimals each has, and an amount as text.
//!
//! Owns: the one formatter of amounts, and the one judge of a currency's code. Both read ISO 4217 from `iso_currency`.
//! Does not own: bounds of an amount, and JSON, which keeps minor units.
//! On failure: nothing can fail. A code outside the standard has two decimals.

use iso_currency::Currency;

/// What a field says when its currency is refused.
pub const REFUSED: &str =
    "must be a circulating currency of ISO 4217: three letters A-Z, no fund, metal, test or withdrawn code";

/// Codes that `iso_currency` 0.7 calls superseded and ISO 4217 lists as current: VES and VED are both of Venezuela.
const CURRENT_ALL_THE_SAME: &[&str] = &["VES"];

/// Whether `code` is a circulating currency of ISO 4217. Funds (`CLF`), metals and other units (`XAU`, `XDR`), `XTS`,
/// `XXX`, withdrawn codes (`HRK`) and codes that the standard does not have are none.
#[must_use]
pub fn circulates(code: &str) -> bool {
    Currency::from_code(code).is_some_and(|currency| {
        let withdrawn = currency.is_superseded().is_some() && !CURRENT_ALL_THE_SAME.contains(&code);
        !currency.is_fund() && !currency.is_special() && !withdrawn
    })
}

/// The decimals of a currency by ISO 4217; 2 for a code that has none.
#[must_use]
pub fn exponent(code: &str) -> u32 {
    Currency::from_code(code)
        .and_then(Currency::exponent)
        .map_or(2, u32::from)
}

/// An amount in minor units as a decimal number of the currency's major unit, exactly: `-1234.56`.
#[must_use]
pub fn decimal(minor: impl Into<i128>, code: &str) -> String {
    let minor = minor.into();
    let places = exponent(code) as usize;
    let sign = if minor < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", minor.unsigned_abs(), width = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    let point = if places == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{part}")
}

/// An amount in minor units with its currency, for a person: `-1234.56 EUR`.
#[must_use]
pub fn amount(minor: impl Into<i128>, code: &str) -> String {
    format!("{} {code}", decimal(minor, code))
}

/// What stands around an amount in minor units with its currency, in a sentence that SQL makes: [`spoken`] writes it out.
/// No id and no text of a caller may hold it.
pub const MARK: char = '\u{1f}';

/// The sentence with each `{MARK}minor code{MARK}` written as an [`amount`].
#[must_use]
pub fn spoken(sentence: &str) -> String {
    let parts = sentence.split(MARK).map(|part| {
        let pair = part.split_once(' ');
        match pair.and_then(|(minor, code)| Some((minor.parse::<i128>().ok()?, code))) {
            Some((minor, code)) if code.len() == 3 => amount(minor, code),
            _ => part.to_owned(),
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_p28_only_what_circulates_is_a_currency() {
        for code in [
            "EUR", "USD", "JPY", "KWD", "CHF", "XAF", "XOF", "XPF", "XCD", "XCG", "VES", "VED", "SLE", "ZWG", "UYU",
        ] {
            assert!(circulates(code), "{code}");
        }
        for code in [
            "ZZZ", "EUT", "XXX", "XAU", "XAG", "XTS", "XDR", "XUA", "XSU", "XBA", "CLF", "USN", "CHE", "CHW", "BOV",
            "COU", "MXV", "UYI", "UYW", "HRK", "BGN", "CUC", "SLL", "ZWL", "DEM", "", "eur", "Eur", "EU", "EURO",
            " EUR", "E\u{dc}R",
        ] {
            assert!(!circulates(code), "{code:?}");
        }
    }

    #[test]
    fn case_p24_an_amount_has_its_currencys_own_decimals() {
        for (minor, code, text) in [
            (0, "EUR", "0.00 EUR"),
            (-1, "EUR", "-0.01 EUR"),
            (100, "EUR", "1.00 EUR"),
            (-123_456, "USD", "-1234.56 USD"),
            (7, "JPY", "7 JPY"),
            (-7, "JPY", "-7 JPY"),
            (7, "KWD", "0.007 KWD"),
            (1_234, "KWD", "1.234 KWD"),
            (12_345, "CLF", "1.2345 CLF"),
            (5, "XAU", "0.05 XAU"),
            (5, "ZZZ", "0.05 ZZZ"),
            (9_007_199_254_740_991, "EUR", "90071992547409.91 EUR"),
            (i64::MIN, "EUR", "-92233720368547758.08 EUR"),
        ] {
            assert_eq!(amount(minor, code), text);
        }
        assert_eq!(decimal(i128::MIN, "EUR"), "-1701411834604692317316873037158841057.28");
    }

    #[test]
    fn case_p24_a_sentence_made_by_sql_says_its_amounts() {
        assert_eq!(
            spoken("account a has \u{1f}-400 EUR\u{1f}, its ledger says \u{1f}7 JPY\u{1f}"),
            "account a has -4.00 EUR, its ledger says 7 JPY"
        );
        assert_eq!(spoken("payout 12 EUR is fine"), "payout 12 EUR is fine");
        assert_eq!(spoken("\u{1f}x EUR\u{1f} \u{1f}5\u{1f}"), "x EUR 5");
    }
}
