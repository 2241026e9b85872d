//! What was last read of a component, and since when it cannot be read any more.

use crate::upstream::words;
use crate::{page, when};
use http_client::CallError;
use maud::{Markup, html};

/// The last answer to a question that is asked again and again.
#[derive(Clone, Debug)]
pub(crate) struct Kept<T> {
    value: Option<(T, i64)>,
    failed: Option<(i64, String)>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            value: None,
            failed: None,
        }
    }
}

impl<T> Kept<T> {
    /// Takes what came of asking. A failure keeps what was there and remembers since when.
    pub(crate) fn take(&mut self, answer: Result<T, CallError>, now_ms: i64) {
        match answer {
            Ok(value) => {
                self.value = Some((value, now_ms));
                self.failed = None;
            }
            Err(error) => {
                let since = self.failed.take().map_or(now_ms, |(since, _)| since);
                self.failed = Some((since, words(&error)));
            }
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().map(|(value, _)| value)
    }

    /// The trouble, in a notice; nothing where there is none.
    pub(crate) fn trouble(&self, what: &str, now_ms: i64) -> Markup {
        html! {
            @if let Some((since, how)) = &self.failed {
                p.notice.bad {
                    (page::icon(page::Icon::Cross)) " "
                    strong { (what) " cannot be read" } " since " (when::instant(*since, now_ms)) ": " (how) "."
                    @if let Some((_, at)) = &self.value { " What is shown is as of " (when::instant(*at, now_ms)) "." }
                }
            }
        }
    }

    /// The value as `show` shows it, after what troubles it.
    pub(crate) fn show(&self, what: &str, now_ms: i64, show: impl FnOnce(&T) -> Markup) -> Markup {
        html! {
            (self.trouble(what, now_ms))
            @if let Some(value) = self.get() { (show(value)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_what_was_read_and_says_since_when() {
        let mut kept = Kept::default();
        kept.take(Ok(7), 1_000);
        kept.take(Err(CallError::NotSent("refused".to_owned())), 2_000);
        kept.take(Err(CallError::NotSent("refused".to_owned())), 9_000);
        assert_eq!(kept.get(), Some(&7));
        let text = kept.trouble("The list", 10_000).into_string();
        assert!(
            text.contains("The list cannot be read") && text.contains("(8 s ago)"),
            "{text}"
        );
        assert!(text.contains("as of") && text.contains("(9 s ago)"), "{text}");
        kept.take(Ok(8), 11_000);
        assert_eq!(kept.trouble("The list", 12_000).into_string(), "");
    }
}
