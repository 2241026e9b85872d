//! Percent-decoding, exactly and strictly.

/// Decodes `%XX`; anything else stays as it is, byte by byte. With `plus_is_space` as in a form.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn percent_decode(raw: &str, plus_is_space: bool) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let [high, low, tail @ ..] = tail else { return Err(BAD) };
                let (Some(high), Some(low)) = (hex(*high), hex(*low)) else {
                    return Err(BAD);
                };
                bytes.push(high << 4 | low);
                rest = tail;
            }
            b'+' if plus_is_space => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 once percent-decoded")
}

const BAD: &str = "is not correctly percent-encoded: % must be followed by two hexadecimal digits";

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_exact() {
        for (raw, plain) in [
            ("a%2Fb", "a/b"),
            ("a%2fb", "a/b"),
            ("a%252Fb", "a%2Fb"),
            ("..", ".."),
            ("%F0%9F%94%92", "\u{1f512}"),
            ("a+b", "a+b"),
            ("%20", " "),
            ("", ""),
        ] {
            assert_eq!(percent_decode(raw, false).as_deref(), Ok(plain));
        }
        assert_eq!(percent_decode("a+b%2B", true).as_deref(), Ok("a b+"));
        for bad in ["%", "%2", "%zz", "a%2", "%+1", "%FF", "%C3", "%C3%28", "%ED%A0%80"] {
            assert!(percent_decode(bad, false).is_err(), "{bad} was decoded");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_text_comes_back(text in "\\PC{0,40}") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            proptest::prop_assert_eq!(percent_decode(&encoded, false), Ok(text));
        }
    }
}
