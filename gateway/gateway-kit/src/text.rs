//! Characters that do not show: what a name must not hold, and how other text that holds them is shown (case S9).
//!
//! Owns: the one table of such characters; their form in a terminal, in JSON and in HTML; what a spreadsheet takes for a formula.
//! Does not own: what is stored. Keys, reasons, metadata and references are kept byte for byte (L29, P12).
//! On failure: nothing can fail.

use lock_api::InvalidValue;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Code points that show as nothing, or that change where other text shows. In order, ends included. Sources: the bidirectional
/// controls of UAX #9 §2; `Default_Ignorable_Code_Point` of Unicode 16 (`DerivedCoreProperties.txt`), which UTS #39 §3 keeps out
/// of identifiers; the line and paragraph separators (UAX #14); the interlinear annotations (Unicode 16, §23.8).
const HIDDEN: &[(u32, u32)] = &[
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    // Tags, and variation selectors beyond the first sixteen.
    (0xE0000, 0xE0FFF),
];

/// Whether a character shows as nothing or changes how other text shows: controls, bidirectional controls, characters of no
/// width, line separators, tags.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    let point = u32::from(c);
    c.is_control() || point >= 0xAD && HIDDEN.iter().any(|(first, last)| (*first..=*last).contains(&point))
}

/// Checks the name of somebody or something that people tell apart by what they see: an owner, an operator, an id.
///
/// # Errors
/// [`InvalidValue`] naming `field`, where the name holds a character that does not show.
pub fn visible(field: &'static str, name: &str) -> Result<(), InvalidValue> {
    if name.chars().any(is_hidden) {
        return Err(InvalidValue::new(
            field,
            "must not hold control characters, nor characters that do not show (of direction, of no width, tags)",
        ));
    }
    Ok(())
}

/// Replaces the hidden characters that `escaped` wants to be replaced. Text without any is not copied.
fn replaced(text: &str, wanted: impl Fn(char, Option<char>) -> bool, form: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let mut before = None;
    let mut found = text.char_indices().filter(|(_, c)| {
        let last = before.replace(*c);
        is_hidden(*c) && wanted(*c, last)
    });
    let Some(mut next) = found.next() else {
        return Cow::Borrowed(text);
    };
    let (mut out, mut done) = (String::with_capacity(text.len() + 16), 0);
    loop {
        let (at, c) = next;
        out.push_str(&text[done..at]);
        form(&mut out, c);
        done = at + c.len_utf8();
        match found.next() {
            Some(found) => next = found,
            None => break,
        }
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// The joiner and the variation selectors that emoji are made of, behind a symbol. Behind a letter they would hide.
fn is_of_an_emoji(c: char, before: Option<char>) -> bool {
    matches!(c, '\u{200D}' | '\u{FE0E}' | '\u{FE0F}')
        && before.is_some_and(|before| {
            before >= '\u{2190}' && !before.is_alphanumeric() && (!is_hidden(before) || before == '\u{FE0F}')
        })
}

fn as_in_rust(out: &mut String, c: char) {
    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
}

/// The text as a person is shown it: what would not show stands as `\u{202e}`. Emoji stay whole.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, |c, before| !is_of_an_emoji(c, before), as_in_rust)
}

/// As [`shown`], for what has lines or a terminal's colours: control characters stay.
#[must_use]
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    replaced(
        text,
        |c, before| !matches!(c, '\n' | '\t' | '\r' | '\u{1b}') && !is_of_an_emoji(c, before),
        as_in_rust,
    )
}

/// The same JSON with what would not show as `\u202e`: it reads back as it was.
#[must_use]
pub fn shown_json(json: &str) -> Cow<'_, str> {
    let form = |out: &mut String, c: char| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    };
    // Outside of strings a JSON text has no hidden character but these.
    replaced(json, |c, _| !matches!(c, '\n' | '\t' | '\r'), form)
}

/// The same HTML with what would not show escaped: in text as in [`shown`], inside a tag by its number, so that a form sends back
/// what it was given. `<` and `>` in texts and values must be escaped already.
#[must_use]
pub fn shown_html(html: &str) -> Cow<'_, str> {
    if html.is_ascii() || !html.chars().any(|c| is_hidden(c) && !c.is_ascii()) {
        return Cow::Borrowed(html);
    }
    let mut out = String::with_capacity(html.len() + 64);
    for piece in html.split_inclusive('>') {
        let (text, tag) = piece.split_at(piece.find('<').unwrap_or(piece.len()));
        out.push_str(&shown_lines(text));
        out.push_str(&replaced(
            tag,
            |c, _| !c.is_ascii(),
            |out, c| {
                let _ = write!(out, "&#{};", u32::from(c));
            },
        ));
    }
    Cow::Owned(out)
}

/// Whether a spreadsheet may take a cell of this text for a formula (OWASP, "CSV Injection"): its first character that shows is one
/// of `= + - @`, in their fullwidth form too.
#[must_use]
pub fn is_formula(text: &str) -> bool {
    text.trim_start_matches(|c: char| c.is_whitespace() || is_hidden(c))
        .starts_with(['=', '+', '-', '@', '\u{FF1D}', '\u{FF0B}', '\u{FF0D}', '\u{FF20}'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the case names them, and one of each range of the table.
    const SEEN_IN_THE_CASE: [char; 5] = ['\u{202E}', '\u{200B}', '\u{2066}', '\u{2028}', '\u{E0041}'];

    #[test]
    fn case_s9_a_name_holds_no_character_that_does_not_show() {
        let of_the_table = HIDDEN
            .iter()
            .flat_map(|(first, last)| [*first, *last])
            .filter_map(char::from_u32);
        for hidden in SEEN_IN_THE_CASE.into_iter().chain(of_the_table).chain(['\0', '\u{9b}']) {
            let refused = visible("owner", &format!("al{hidden}ice")).unwrap_err();
            assert_eq!(refused.field, "owner", "{hidden:?}");
        }
        for name in [
            "alice",
            "Ünläßlich",
            "cafe\u{301}",
            "עברית",
            "فارسی",
            "日本",
            "🚀",
            "a b",
        ] {
            assert_eq!(visible("owner", name), Ok(()), "{name}");
        }
        assert!(HIDDEN.is_sorted());
    }

    #[test]
    fn case_s9_what_does_not_show_is_shown_escaped() {
        assert_eq!(shown("a\u{202e}b\u{200b}"), "a\\u{202e}b\\u{200b}");
        assert_eq!(shown("\u{e0041}\n\u{2028}"), "\\u{e0041}\\u{a}\\u{2028}");
        assert_eq!(
            shown_lines("a\n\u{1b}[1mb\u{9b}\u{2066}"),
            "a\n\u{1b}[1mb\\u{9b}\\u{2066}"
        );
        // A joiner inside of a word is a word that looks like another one.
        assert_eq!(shown("pay\u{200d}ee"), "pay\\u{200d}ee");
        for whole in ["👩‍🚀", "❤\u{fe0f}\u{200d}🔥", "שלום", "e\u{301}", "日本", "plain"] {
            assert!(matches!(shown(whole), Cow::Borrowed(_)), "{}", shown(whole));
        }
    }

    #[test]
    fn case_s9_json_reads_back_as_it_was() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{e0041}\u{7f}", "👩‍🚀 \\u202e \"x\""] });
        for text in [value.to_string(), format!("{value:#}")] {
            let shown = shown_json(&text);
            assert!(shown.chars().all(|c| !is_hidden(c) || c == '\n'), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn case_s9_html_shows_it_and_sends_it_back() {
        assert_eq!(
            shown_html("<td title=\"a\u{202e}b\">a\u{202e}b</td>\n<p>x</p>"),
            "<td title=\"a&#8238;b\">a\\u{202e}b</td>\n<p>x</p>"
        );
        assert!(matches!(shown_html("<p>é</p>"), Cow::Borrowed(_)));
    }

    #[test]
    fn case_s9_a_spreadsheets_formula_is_known_in_each_form() {
        for text in [
            "=cmd",
            "+1",
            "-1",
            "@x",
            "＝cmd",
            "＋1",
            "－1",
            "＠x",
            " =cmd",
            "\u{200b}＝cmd",
            "\u{feff}=1",
        ] {
            assert!(is_formula(text), "{text:?}");
        }
        for text in ["", "a=b", "A-1", "1", "שלום"] {
            assert!(!is_formula(text), "{text:?}");
        }
    }
}
