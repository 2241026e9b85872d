//! Actors: what each process is made of, whose mailbox fills, who is paused.

use super::View;
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, or_dash, tag};
use crate::upstream::Upstreams;
use crate::when::span;
use futures_util::future::{LocalBoxFuture, join_all};
use maud::{Markup, html};
use serde_json::Value;

/// How many actors of one component are shown.
const ROWS_MAX: usize = 100;
/// How much of an actor's state is shown, in characters.
const STATE_CHARS_MAX: usize = 300;

pub(super) struct Actors {
    component: Option<String>,
    part: String,
    of: Vec<(String, Kept<Value>)>,
}

impl Actors {
    pub(super) fn new(component: Option<String>, part: String) -> Self {
        Self {
            component,
            part,
            of: Vec::new(),
        }
    }

    /// The actors of an answer that fit, the fullest mailbox first.
    fn fitting<'v>(&self, answer: &'v Value) -> Vec<&'v Value> {
        let mut actors: Vec<&Value> = answer["actors"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|actor| actor["path"].as_str().is_some_and(|path| path.contains(&self.part)))
            .collect();
        actors.sort_by_key(|actor| std::cmp::Reverse(actor["mailbox_depth"].as_u64()));
        actors
    }
}

impl View for Actors {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let wanted = self.component.as_deref().unwrap_or_default();
            let upstreams: Vec<_> = up.all().filter(|upstream| upstream.name.contains(wanted)).collect();
            let answers = join_all(upstreams.iter().map(|upstream| {
                let trace = up.trace();
                async move { upstream.caller.get_json::<Value>("/debug/actors", &trace).await }
            }))
            .await;
            if self.of.is_empty() {
                let names = upstreams
                    .iter()
                    .map(|upstream| (upstream.name.clone(), Kept::default()));
                self.of = names.collect();
            }
            for ((_, kept), answer) in self.of.iter_mut().zip(answers) {
                kept.take(answer, up.now());
            }
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let shown: Vec<_> = self
            .of
            .iter()
            .map(|(name, kept)| (name, kept, kept.get().map(|answer| self.fitting(answer))))
            .collect();
        let all = shown.iter().filter_map(|(_, _, actors)| actors.as_ref());
        let count: usize = all.clone().map(Vec::len).sum();
        let waiting: u64 = all.flatten().filter_map(|actor| actor["mailbox_depth"].as_u64()).sum();
        let body = html! {
            @if shown.is_empty() { p { "No component has such a name." } }
            @for (name, kept, actors) in &shown {
                h2 { (name) }
                (kept.trouble("Its actors (debug.endpoints must be on there)", now_ms))
                @if let Some(actors) = actors { (table(name, actors)) }
            }
        };
        Shown {
            title: "Actors".to_owned(),
            headline: format!("{count} actors, {waiting} messages waiting in their mailboxes."),
            body,
        }
    }
}

fn length(value: &Value) -> Option<String> {
    value.as_i64().map(span)
}

fn table(name: &str, actors: &[&Value]) -> Markup {
    html! {
        @if actors.is_empty() { p { "No actor fits." } } @else {
            div.scroll tabindex="0" role="region" aria-label={ "Actors of " (name) } {
                table {
                    caption {
                        "The fullest mailbox first"
                        @if actors.len() > ROWS_MAX { "; " (ROWS_MAX) " of " (actors.len()) ", narrow them down above" }
                    }
                    thead {
                        tr {
                            th scope="col" { "Path" } th scope="col" { "Condition" } th.number scope="col" { "Mailbox" } th.number scope="col" { "Age" }
                            th.number scope="col" { "Restarts" } th scope="col" { "Last message" } th scope="col" { "State" }
                        }
                    }
                    tbody { @for actor in actors.iter().take(ROWS_MAX) { (row(actor)) } }
                }
            }
        }
    }
}

/// One actor. Everything is read leniently: a component may say more, or less, than this build knows.
fn row(actor: &Value) -> Markup {
    let last = &actor["last_message"];
    let depth = actor["mailbox_depth"].as_u64().unwrap_or(0);
    let state = match &actor["state"] {
        Value::Null => None,
        state => Some(state.to_string().chars().take(STATE_CHARS_MAX).collect::<String>()),
    };
    html! {
        tr {
            th scope="row" { code { (actor["path"].as_str().unwrap_or("?")) } }
            td {
                @if let Some(left) = length(&actor["paused_for_ms"]) { (tag(Tone::Warn, Icon::Pause, "paused")) " for " (left) }
                @else if depth > 0 { (tag(Tone::Plain, Icon::Clock, "working")) }
                @else { (tag(Tone::Good, Icon::Check, "idle")) }
                @if let Some(oldest) = length(&actor["oldest_message_ms"]) { " oldest message waits " (oldest) }
            }
            td.number { (depth) " of " (or_dash(actor["mailbox_capacity"].as_u64())) }
            td.number { (or_dash(length(&actor["age_ms"]))) }
            td.number { (or_dash(actor["restarts"].as_u64())) }
            td {
                @match last["message"].as_str() {
                    Some(message) => { code { (message) } @if let Some(ago) = length(&last["ago_ms"]) { " " (ago) " ago" } }
                    None => (or_dash::<&str>(None)),
                }
            }
            td { @match state { Some(state) => code { (state) }, None => (or_dash::<&str>(None)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn actors_are_read_leniently_and_the_fullest_mailbox_comes_first() {
        let answer = json!({"actors": [
            {"path": "a/lease/x", "mailbox_depth": 0, "more": {"unknown": true}},
            {"path": "a/lease/y", "mailbox_depth": 3, "paused_for_ms": 2_500},
            {"path": "a/session/z"},
            {"no": "path"},
        ]});
        let all = Actors::new(None, String::new());
        let order: Vec<_> = all
            .fitting(&answer)
            .iter()
            .map(|actor| actor["path"].as_str().unwrap())
            .collect();
        assert_eq!(order, ["a/lease/y", "a/lease/x", "a/session/z"]);
        let leases = Actors::new(None, "lease".to_owned());
        assert_eq!(leases.fitting(&answer).len(), 2);
        assert!(all.fitting(&json!("nothing of the kind")).is_empty());
        let text = table("a", &all.fitting(&answer)).into_string();
        assert!(text.contains("paused") && text.contains("for 2 s"), "{text}");
    }
}
