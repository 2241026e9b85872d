//! The overview: how the components are, the tokens' history, what needs somebody, what was refused of late.

use super::View;
use super::queue::Queue;
use super::refusals::{Refusals, placed};
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, link, tag};
use crate::topic::Topic;
use crate::upstream::{State, Upstreams};
use crate::when;
use futures_util::future::{LocalBoxFuture, join4};
use http_contract::lock::LineageAnswer;
use http_contract::payment::PayoutState;
use maud::{Markup, html};
use std::time::Duration;

/// How many refusals are shown.
const REFUSALS_MAX: usize = 5;

#[derive(Default)]
pub(super) struct Home {
    lineage: Kept<LineageAnswer>,
    counts: Kept<Vec<(PayoutState, u64)>>,
    queue: Queue,
    refusals: Refusals,
    down: Vec<String>,
}

/// The payouts by state, from the payment resource's own metric.
fn counts(metrics: &str) -> Vec<(PayoutState, u64)> {
    metrics
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("payout_state{")?;
            let state = rest.split_once("state=\"")?.1.split_once('"')?.0;
            let count = rest.rsplit_once(' ')?.1;
            Some((PayoutState::parse(state)?, count.parse().ok()?))
        })
        .collect()
}

impl View for Home {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let trace = up.trace();
            let (lineage, metrics, (), ()) = join4(
                up.read_locks(async |api| api.lineage(&up.trace()).await),
                up.payments.caller.text("/metrics", &trace),
                self.queue.read(up),
                self.refusals.read(up),
            )
            .await;
            self.lineage.take(lineage, up.now());
            self.counts.take(metrics.map(|text| counts(&text)), up.now());
            let down = up
                .all()
                .filter(|upstream| matches!(upstream.health().state, State::Down(_)));
            self.down = down.map(|upstream| upstream.name.clone()).collect();
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let refused = self.refusals.newest();
        let components = match self.down.as_slice() {
            [] => "Every component answers.".to_owned(),
            down => format!("Down: {}.", down.join(", ")),
        };
        let body = html! {
            h2 { "Payouts" }
            (self.counts.show("The payouts by state", now_ms, |counts| html! {
                ul.counts {
                    @for (state, count) in counts {
                        li {
                            (super::payouts::state(*state)) " "
                            (link(&Topic::Payouts { state: Some(*state), account: None, cursor: None }, &format!("{count} payouts")))
                        }
                    }
                }
            }))
            h2 { "Needs a human" }
            (self.queue.troubles(now_ms))
            p { (link(&Topic::Queue, &self.queue.headline())) }
            h2 { "Tokens" }
            (self.lineage.show("The lock store's history", now_ms, |lineage| lineage_of(lineage, now_ms)))
            h2 { "Refused of late" }
            (self.refusals.troubles(now_ms))
            @if refused.is_empty() { p { "Nothing, as far as the components remember." } } @else {
                (placed(&refused[..refused.len().min(REFUSALS_MAX)], now_ms))
                p { (link(&Topic::Refusals { account: None }, &format!("All {} refusals", refused.len()))) }
            }
        };
        Shown {
            title: "Overview".to_owned(),
            headline: format!("{components} {}", self.queue.headline()),
            body,
        }
    }

    fn pace(&self) -> Duration {
        Duration::from_secs(1)
    }
}

fn lineage_of(lineage: &LineageAnswer, now_ms: i64) -> Markup {
    html! {
        dl.facts {
            div {
                dt { "Grants" }
                dd {
                    @if lineage.state == "OK" { (tag(Tone::Good, Icon::Check, "granted")) }
                    @else { (tag(Tone::Bad, Icon::Warning, &lineage.state)) " no grant until an operator has acted" }
                }
            }
            div { dt { "Last token" } dd.token { (lineage.last_token) } }
            div { dt { "Floor" } dd.token { (lineage.token_floor) } }
            div { dt { "State last changed" } dd { (when::at(&lineage.changed_at, now_ms)) " by " (lineage.changed_by) } }
            @if let Some(detail) = &lineage.detail { div { dt { "What was found" } dd { (detail) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_the_metrics() {
        let text = "payout_state{state=\"POSTED\"} 12\npayout_state{state=\"UNKNOWN\"} 1\nother 3\n";
        assert_eq!(counts(text), [(PayoutState::Posted, 12)]);
    }
}
