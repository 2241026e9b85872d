//! The filters above a list. They stand outside its live part, so that nothing changes under somebody's hands.

use crate::topic::Topic;
use http_contract::payment::PayoutState;
use maud::{Markup, html};

fn text(name: &str, label: &str, value: &str) -> Markup {
    let id = format!("filter-{name}");
    html! {
        label for=(id) { (label) }
        input #(id) name=(name) value=(value) autocomplete="off" spellcheck="false";
    }
}

fn choice(name: &str, label: &str, all: &str, options: &[(&str, &str)], chosen: Option<&str>) -> Markup {
    let id = format!("filter-{name}");
    html! {
        label for=(id) { (label) }
        select #(id) name=(name) {
            option value="" selected[chosen.is_none()] { (all) }
            @for (value, word) in options {
                option value=(value) selected[chosen == Some(*value)] { (word) }
            }
        }
    }
}

fn form(action: &str, fields: &Markup) -> Markup {
    html! {
        form.filters method="get" action=(action) role="search" aria-label="Filter this list" {
            (fields)
            button type="submit" { "Filter" }
        }
    }
}

/// The filters of a page; nothing for one without.
pub(crate) fn of(topic: &Topic) -> Markup {
    match topic {
        Topic::Locks { prefix, held, .. } => form(
            "/locks",
            &html! {
                (text("prefix", "Keys that begin with", prefix))
                (choice(
                    "state", "State", "any", &[("held", "held"), ("free", "free")],
                    held.map(|held| if held { "held" } else { "free" }),
                ))
            },
        ),
        Topic::Payouts { state, account, .. } => {
            let states: Vec<_> = PayoutState::ALL
                .iter()
                .map(|state| (state.as_str(), state.as_str()))
                .collect();
            form(
                "/payouts",
                &html! {
                    (choice("state", "State", "any", &states, state.map(PayoutState::as_str)))
                    (text("account", "Account", account.as_deref().unwrap_or_default()))
                },
            )
        }
        Topic::Refusals { account } => form(
            "/refusals",
            &text("account", "Account", account.as_deref().unwrap_or_default()),
        ),
        Topic::Actors { component, prefix } => form(
            "/actors",
            &html! {
                (text("component", "Component", component.as_deref().unwrap_or_default()))
                (text("prefix", "Paths that hold", prefix))
            },
        ),
        _ => html! {},
    }
}
