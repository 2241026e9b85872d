//! How many decimals a currency has (ISO 4217), for the exports: amounts are kept in minor units.

/// Currencies whose minor unit is not a hundredth.
const EXPONENTS: &[(&str, u32)] = &[
    ("BHD", 3),
    ("BIF", 0),
    ("CLF", 4),
    ("CLP", 0),
    ("DJF", 0),
    ("GNF", 0),
    ("IQD", 3),
    ("ISK", 0),
    ("JOD", 3),
    ("JPY", 0),
    ("KMF", 0),
    ("KRW", 0),
    ("KWD", 3),
    ("LYD", 3),
    ("OMR", 3),
    ("PYG", 0),
    ("RWF", 0),
    ("TND", 3),
    ("UGX", 0),
    ("UYI", 0),
    ("UYW", 4),
    ("VND", 0),
    ("VUV", 0),
    ("XAF", 0),
    ("XOF", 0),
    ("XPF", 0),
];

/// The decimals of a currency; 2 for one that is not listed.
pub(crate) fn exponent(currency: &str) -> u32 {
    EXPONENTS
        .iter()
        .find(|(code, _)| *code == currency)
        .map_or(2, |(_, exponent)| *exponent)
}

/// An amount as a decimal number, exactly.
pub(crate) fn decimal(amount_minor: i64, exponent: u32) -> String {
    let sign = if amount_minor < 0 { "-" } else { "" };
    let digits = amount_minor.unsigned_abs().to_string();
    let places = exponent as usize;
    if places == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    format!("{sign}{whole}.{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_written_exactly() {
        for (minor, currency, text) in [
            (0, "EUR", "0.00"),
            (-1, "EUR", "-0.01"),
            (100, "EUR", "1.00"),
            (-123_456, "USD", "-1234.56"),
            (7, "JPY", "7"),
            (7, "KWD", "0.007"),
            (9_007_199_254_740_991, "EUR", "90071992547409.91"),
            (i64::MIN, "EUR", "-92233720368547758.08"),
        ] {
            assert_eq!(decimal(minor, exponent(currency)), text);
        }
    }
}
