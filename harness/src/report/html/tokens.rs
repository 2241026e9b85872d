//! The tokens of each key over time: in words for every key, drawn for those with the most grants.

use super::chart::{LEFT, RIGHT, Scale, figure, px, short, time_axis};
use super::{ROWS_MAX, left_out, sign, table};
use crate::report::run::{StackSeen, counted};
use crate::report::timeline::Timeline;
use crate::report::tokens::{self, KeyTokens};
use maud::{Markup, html};

/// Keys that are drawn; each has a shape of its own.
const DRAWN_MAX: usize = 6;
/// Points of a key, at most.
const POINTS_MAX: usize = 250;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 234.0;

pub(super) fn section(id: &str, stack: &StackSeen) -> Markup {
    let keys = tokens::of(&stack.evidence);
    if keys.is_empty() {
        return html! { p { "Nothing was granted on this stack." } };
    }
    let falling = keys.iter().filter(|key| !key.strictly_rising).count();
    let rows = html! {
        thead { tr {
            th scope="col" { "Key" }
            th.n scope="col" { "Grants" }
            th.n scope="col" { "First token" }
            th.n scope="col" { "Last token" }
            th scope="col" { "Strictly rising" }
        } }
        tbody { @for key in keys.iter().take(ROWS_MAX) { tr {
            th scope="row" { (key.key) }
            td.n { (key.grants) }
            td.n { (key.first) }
            td.n { (key.last) }
            td { @if key.strictly_rising { span.held { "yes" } } @else { span.failed { (sign(false)) " NO" } } }
        } } }
    };
    html! {
        @if falling == 0 { p { span.held { "✔ Strictly rising on each of " (counted(keys.len(), "key", "keys")) "." } } }
        @else { p.failed { (sign(false)) " Not strictly rising on " (counted(falling, "key", "keys")) " of " (keys.len()) "." } }
        (drawing(id, stack, &keys))
        (table("Tokens by key, in the order in which the lock service granted them", &rows))
        (left_out(keys.len(), "key", "keys"))
    }
}

#[allow(clippy::cast_precision_loss, reason = "tokens of a run, as places in a drawing")]
fn drawing(id: &str, stack: &StackSeen, keys: &[KeyTokens]) -> Markup {
    // A key with one grant says nothing over time, unless there is no other.
    let often = keys.iter().any(|key| key.points.len() > 1);
    let drawn: Vec<_> = keys
        .iter()
        .filter(|key| key.points.len() > usize::from(often))
        .take(DRAWN_MAX)
        .collect();
    let points = || drawn.iter().flat_map(|key| &key.points);
    let Some(highest) = points().map(|(_, token)| *token).max() else {
        return html! {};
    };
    let lowest = points().map(|(_, token)| *token).min().unwrap_or(0);
    let end = Timeline::of(&stack.evidence, &[]).end_ms;
    let time = Scale::time(points().map(|(at, _)| *at).fold(end, f64::max));
    let height = Scale {
        low: lowest as f64 - 1.0,
        high: highest as f64 + 1.0,
        from: BOTTOM,
        to: TOP,
    };
    let whole = |tick: &f64| tick.fract().abs() < 1e-9;
    let drawing = html! {
        (time_axis(&time, TOP, BOTTOM))
        @for tick in height.ticks().iter().filter(|tick| whole(tick)) {
            line.grid x1=(px(LEFT)) x2=(px(RIGHT)) y1=(px(height.at(*tick))) y2=(px(height.at(*tick))) {}
            text.axis x=(px(LEFT - 8.0)) y=(px(height.at(*tick) + 4.0)) text-anchor="end" { (format!("{tick:.0}")) }
        }
        text.axis x="4" y=(px(TOP + 4.0)) { "token" }
        @for (n, key) in drawn.iter().enumerate() {
            @let points: Vec<_> = thinned(&key.points).iter().map(|(at, token)| (time.at(*at), height.at(*token as f64))).collect();
            polyline.joined points=(points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")) {}
            @for (x, y) in points { path.mark d=(shape(n, x, y)) {} }
        }
    };
    let caption = html! {
        ul.legend {
            @for (n, key) in drawn.iter().enumerate() {
                li { svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true" { path.mark d=(shape(n, 8.0, 8.0)) {} } (short(&key.key, 40)) }
            }
        }
        @if keys.len() > drawn.len() {
            p { (counted(keys.len() - drawn.len(), "key is", "keys are")) " not drawn; the table has them." }
        }
        @if drawn.iter().any(|key| key.points.len() > POINTS_MAX) { p { "Of a key with many grants only some are drawn, each that does not rise among them." } }
    };
    let desc = format!(
        "Tokens {lowest} to {highest} of {}, each with a shape of its own.",
        counted(drawn.len(), "key", "keys")
    );
    figure(
        &format!("{id}-tokens"),
        &format!("Tokens of {} over time", stack.name),
        &desc,
        BOTTOM + 24.0,
        &drawing,
        &caption,
    )
}

/// Some of many points: the last one always, and each that does not rise.
fn thinned(points: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let falls = |n: usize| n > 0 && points[n].1 <= points[n - 1].1;
    let kept = points.iter().enumerate();
    kept.filter(|(n, _)| n % step == 0 || n + 1 == points.len() || falls(*n))
        .map(|(_, point)| *point)
        .take(2 * POINTS_MAX)
        .collect()
}

/// The mark of the n-th key: told apart by its shape.
fn shape(n: usize, x: f64, y: f64) -> String {
    match n % DRAWN_MAX {
        0 => format!("M{:.1} {y:.1} a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0 z", x - 4.0),
        1 => format!("M{:.1} {:.1} h7 v7 h-7 z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1} l4.5 8 h-9 z", y - 4.8),
        3 => format!("M{x:.1} {:.1} l4.8 4.8 l-4.8 4.8 l-4.8 -4.8 z", y - 4.8),
        4 => format!("M{:.1} {:.1} h9 l-4.5 8 z", x - 4.5, y - 3.2),
        _ => format!("M{:.1} {y:.1} h9 M{x:.1} {:.1} v9", x - 4.5, y - 4.5),
    }
}
