//! The state machine as a page of documentation, from its one table.

use payment_store::{PayoutState, TRANSITIONS};
use std::fmt::Write as _;

/// The page: a diagram, the table of steps, and which states hold money.
#[must_use]
pub fn state_machine_page() -> String {
    let mut page = String::from(
        "# The payout's state machine\n\n\
         Generated from the one table that the store's predicates come from (`payment_store::TRANSITIONS`). T is the\n\
         presented token, the mark is the account's fence.\n\n\
         ```mermaid\nstateDiagram-v2\n",
    );
    for t in TRANSITIONS {
        let from = t.from.map_or("[*]", PayoutState::as_str);
        line(&mut page, format_args!("    {from} --> {}: {}", t.to, t.step.as_str()));
    }
    for state in PayoutState::ALL.into_iter().filter(|state| state.is_final()) {
        line(&mut page, format_args!("    {state} --> [*]"));
    }
    page.push_str("```\n\n| step | from | to | token | evidence at the rail | note |\n|---|---|---|---|---|---|\n");
    for t in TRANSITIONS {
        let from = t.from.map_or("—", PayoutState::as_str);
        let evidence = if t.evidence.is_empty() { "—" } else { t.evidence };
        line(
            &mut page,
            format_args!(
                "| {} | {from} | {} | {} | {evidence} | {} |",
                t.step.as_str(),
                t.to,
                t.token.words(),
                t.note
            ),
        );
    }
    let holding: Vec<_> = PayoutState::ALL
        .into_iter()
        .filter(|state| state.is_hold())
        .map(PayoutState::as_str)
        .collect();
    line(
        &mut page,
        format_args!(
            "\nThe amount is set aside in {}. A hold never expires; only a step frees it.\n\
             Any step that is not in the table is refused with `ILLEGAL_TRANSITION`, naming the states that are allowed.",
            holding.join(" and ")
        ),
    );
    page
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = writeln!(page, "{text}");
}
