//! The frame of every page, and the small pieces that all of them use.
//!
//! Owns: the document around a page, navigation, icons, states by icon and word, links.
//! Does not own: what stands on a page.
//! On failure: nothing can fail. maud escapes every text.

use crate::assets;
use crate::topic::Topic;
use crate::upstream::{State, Upstreams};
use crate::when;
use maud::{DOCTYPE, Markup, html};

/// How a state is meant. Colour is the third sign beside icon and word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Bad,
    Warn,
    Plain,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Plain => "plain",
        }
    }
}

/// The icons: drawn in the text's colour, silent to a screen reader, always beside a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icon {
    Check,
    Cross,
    Warning,
    Locked,
    Open,
    Clock,
    Question,
    Arrow,
    Pause,
}

impl Icon {
    const fn path(self) -> &'static str {
        match self {
            Self::Check => "M2 8.5l4 4 8-9",
            Self::Cross => "M3 3l10 10M13 3L3 13",
            Self::Warning => "M8 1.5L15 14H1zM8 6v4M8 12v.6",
            Self::Locked => "M3 7.5h10v7H3zM5 7.5V5a3 3 0 0 1 6 0v2.5",
            Self::Open => "M3 7.5h10v7H3zM5 7.5V5a3 3 0 0 1 6-.5",
            Self::Clock => "M8 1.5a6.5 6.5 0 1 0 .01 0M8 4.5V8l2.5 2",
            Self::Question => "M5 5.5a3 3 0 1 1 4.5 2.6Q8 9 8 10.5M8 13v.6",
            Self::Arrow => "M2 8h11M9 4l4 4-4 4",
            Self::Pause => "M5 3v10M11 3v10",
        }
    }
}

pub(crate) fn icon(icon: Icon) -> Markup {
    html! {
        svg.icon viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" focusable="false" {
            path d=(icon.path()) fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" {}
        }
    }
}

/// A state by icon and word.
pub(crate) fn tag(tone: Tone, sign: Icon, word: &str) -> Markup {
    html! { span.tag.(tone.class()) { (icon(sign)) " " (word) } }
}

/// What a page shows now.
pub(crate) struct Shown {
    /// Its title.
    pub(crate) title: String,
    /// What stands in one sentence, read aloud when it changes.
    pub(crate) headline: String,
    /// Everything else.
    pub(crate) body: Markup,
}

/// The live part of a page: its heading, its headline, how the components are, its body.
pub(crate) fn live(shown: &Shown, up: &Upstreams) -> Markup {
    let now = up.now();
    html! {
        h1 { (shown.title) }
        p #headline role="status" aria-live="polite" { (shown.headline) }
        (components(up, now))
        (shown.body)
    }
}

fn components(up: &Upstreams, now_ms: i64) -> Markup {
    html! {
        ul.components aria-label="Components" {
            @for upstream in up.all() {
                @let health = upstream.health();
                li {
                    @match &health.state {
                        State::Unknown => (tag(Tone::Plain, Icon::Question, "not asked yet")),
                        State::Ready => (tag(Tone::Good, Icon::Check, "ready")),
                        State::NotReady(_) => (tag(Tone::Warn, Icon::Warning, "not ready")),
                        State::Down(_) => (tag(Tone::Bad, Icon::Cross, "down")),
                    }
                    " " (upstream.name)
                    @if let Some(how) = health.state.trouble() {
                        " since " (when::instant(health.since_ms, now_ms))
                        @if let Some(at_ms) = health.last_ready_ms { ", last ready " (when::instant(at_ms, now_ms)) }
                        span.how { ": " (how) }
                    }
                }
            }
        }
    }
}

/// The pages of the navigation.
const PAGES: [(&str, &str); 9] = [
    ("/", "Overview"),
    ("/locks", "Locks"),
    ("/sessions", "Sessions"),
    ("/payouts", "Payouts"),
    ("/accounts", "Accounts"),
    ("/queue", "Needs a human"),
    ("/refusals", "Refusals"),
    ("/actors", "Actors"),
    ("/scenario", "Scenario"),
];

/// What a document is made of.
pub(crate) struct Document<'a> {
    pub(crate) title: &'a str,
    /// Which entry of the navigation this belongs to.
    pub(crate) section: &'a str,
    /// Where its live part is to be had, and what it shows now; none for a page that does not change.
    pub(crate) live: Option<(String, i64)>,
    /// Filters above the live part: they stay as they are while it changes.
    pub(crate) filters: Markup,
    pub(crate) main: Markup,
    pub(crate) read_only: bool,
}

pub(crate) fn document(page: &Document<'_>) -> String {
    let html = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " – dlock console" }
                link rel="icon" type="image/svg+xml" href=(assets::ICON.path());
                link rel="stylesheet" href=(assets::STYLE.path());
                script src=(assets::SCRIPT.path()) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    p.brand { a href="/" { "dlock console" } @if page.read_only { " " span.mode { "read-only" } } }
                    nav aria-label="Pages" {
                        ul {
                            @for (href, name) in PAGES {
                                li { a href=(href) aria-current=[(page.section == href).then_some("page")] { (name) } }
                            }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @if let Some((_, now_ms)) = &page.live {
                        p.asof {
                            "As of " span #asof { (when::utc(*now_ms)) } ". "
                            span #connection role="status" { }
                            noscript { "Without JavaScript this page does not follow what happens. " }
                            a href="" { "Load again" }
                        }
                        p #cut .notice.bad hidden role="alert" {
                            (icon(Icon::Cross)) " " strong { "Disconnected" } " since " span #cut-at { } " " span #cut-ago { }
                            ". What is shown is from then; trying to connect again."
                        }
                    }
                    (page.filters)
                    @match &page.live {
                        Some((source, now_ms)) => div #live data-source=(source) data-now=(now_ms) { (page.main) },
                        None => (page.main),
                    }
                }
                footer { p { "All times are UTC. " a href="/docs/errors" { "What each problem code means" } } }
            }
        }
    }
    .into_string();
    gateway_kit::shown_html(&html).into_owned()
}

/// A link to a page of the console.
pub(crate) fn link(topic: &Topic, text: &str) -> Markup {
    html! { a href=(topic.href()) { (text) } }
}

pub(crate) fn lock_link(key: &str) -> Markup {
    link(&Topic::Lock { key: key.to_owned() }, key)
}

pub(crate) fn payout_link(id: &str) -> Markup {
    link(&Topic::Payout { id: id.to_owned() }, id)
}

/// The key of the lock that payouts of an account are settled under.
pub(crate) fn lock_key(account_id: &str) -> String {
    format!("payout:{account_id}")
}

/// Where a list goes on, and back to its beginning.
pub(crate) fn pager(first: &Topic, here_is_first: bool, next: Option<&Topic>) -> Markup {
    html! {
        @if !here_is_first || next.is_some() {
            nav.pager aria-label="Pages of this list" {
                @if !here_is_first { a #first-page href=(first.href()) rel="first" { "First page" } }
                @if let Some(next) = next { a #next-page href=(next.href()) rel="next" { "Next page" } }
            }
        }
    }
}

/// A table cell for what may be missing.
pub(crate) fn or_dash<T: std::fmt::Display>(value: Option<T>) -> Markup {
    html! { @match value { Some(value) => (value.to_string()), None => { span aria-label="none" { "–" } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_an_icon_and_a_word_and_what_is_foreign_is_escaped() {
        let text = tag(Tone::Bad, Icon::Cross, "<b>").into_string();
        assert!(
            text.contains("<svg") && text.contains("aria-hidden") && text.contains("&lt;b&gt;"),
            "{text}"
        );
    }

    #[test]
    fn a_document_has_a_language_a_title_a_skip_link_and_nothing_inline() {
        let page = Document {
            title: "Locks",
            section: "/locks",
            live: Some(("/live/locks".to_owned(), 0)),
            filters: html! {},
            main: html! {},
            read_only: false,
        };
        let text = document(&page);
        for part in [
            "lang=\"en\"",
            "<title>Locks – dlock console</title>",
            "class=\"skip\"",
            "aria-current=\"page\"",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(
            !text.contains("style=") && !text.contains("<style") && !text.contains("onclick"),
            "{text}"
        );
        assert!(
            !text.contains("http://") && !text.contains("https://"),
            "no foreign asset: {text}"
        );
    }
}
