//! How long the load took from its intended start, and the calls as their clients saw them.

use super::chart::{LEFT, RIGHT, Scale, at_ms, figure, px, time_axis};
use super::table;
use crate::history::Call;
use crate::report::latency::{Percentiles, of_calls, of_load};
use crate::report::run::counted;
use crate::report::{Story, Timing};
use maud::{Markup, html};

/// Points that are drawn one by one; more are gathered in columns.
const POINTS_MAX: usize = 400;
/// Columns of gathered points.
const COLUMNS: usize = 120;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 214.0;

pub(super) fn section(id: &str, story: &Story) -> Markup {
    let timings = &story.report.timings;
    let load = of_load(timings);
    html! {
        h3 { "Latency" }
        @if timings.is_empty() { p { "This scenario puts no load with intended starts on the system: there is no such latency to tell." } }
        @else {
            p {
                "From the moment a thing was meant to begin until it was settled. A generator that was late, or had to wait, "
                "adds to the time instead of hiding it (corrected for coordinated omission)."
            }
            (table("Load, from intended start to settled", &percentiles(&load)))
            @let unsettled: usize = load.iter().map(|kind| kind.unsettled).sum();
            @if unsettled > 0 { p.failed { "✘ " (counted(unsettled, "thing was", "things were")) " never settled, and stand in no percentile." } }
            (drawing(id, timings))
        }
        (calls(story.stacks.iter().flat_map(|stack| &stack.evidence.calls)))
    }
}

fn percentiles(load: &[Percentiles]) -> Markup {
    html! {
        thead { tr {
            th scope="col" { "What" }
            th.n scope="col" { "Settled" }
            th.n scope="col" { "Never" }
            th.n scope="col" { "p50" }
            th.n scope="col" { "p90" }
            th.n scope="col" { "p99" }
            th.n scope="col" { "Max" }
        } }
        tbody { @for kind in load { tr {
            th scope="row" { (kind.what) }
            td.n { (kind.count) }
            td.n { (kind.unsettled) }
            @for ms in [kind.p50_ms, kind.p90_ms, kind.p99_ms, kind.max_ms] { td.n { (at_ms(ms)) } }
        } } }
    }
}

fn calls<'a>(calls: impl Iterator<Item = &'a Call>) -> Markup {
    let verbs = of_calls(calls);
    let rows = html! {
        thead { tr {
            th scope="col" { "Call" }
            th.n scope="col" { "Done" }
            th.n scope="col" { "Refused" }
            th.n scope="col" { "Unknown" }
            th.n scope="col" { "p50" }
            th.n scope="col" { "p90" }
            th.n scope="col" { "p99" }
            th.n scope="col" { "Max" }
        } }
        tbody { @for verb in &verbs { tr {
            th scope="row" { (verb.took.what) }
            td.n { (verb.ok) }
            td.n { (verb.refused) }
            td.n { (verb.unknown) }
            @for ms in [verb.took.p50_ms, verb.took.p90_ms, verb.took.p99_ms, verb.took.max_ms] { td.n { (at_ms(ms)) } }
        } } }
    };
    html! { @if !verbs.is_empty() { (table("Calls as their clients saw them, from sending to the answer; a paused client's time is in it", &rows)) } }
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
fn drawing(id: &str, timings: &[Timing]) -> Markup {
    let settled: Vec<(f64, f64)> = timings
        .iter()
        .filter_map(|timing| {
            let took = timing.done_ms?.saturating_sub(timing.intended_ms);
            Some((timing.intended_ms as f64, (took as f64).max(1.0)))
        })
        .collect();
    let never: Vec<f64> = timings
        .iter()
        .filter(|timing| timing.done_ms.is_none())
        .map(|timing| timing.intended_ms as f64)
        .collect();
    let end = settled
        .iter()
        .map(|(at, _)| *at)
        .chain(never.iter().copied())
        .fold(1.0, f64::max);
    let longest = settled.iter().map(|(_, took)| *took).fold(10.0, f64::max);
    let time = Scale::time(end);
    let decades = longest.log10().ceil();
    let height = Scale {
        low: 0.0,
        high: decades,
        from: BOTTOM,
        to: TOP,
    };
    let place = |took: f64| height.at(took.log10());
    let columns = (settled.len() > POINTS_MAX).then(|| columns(&settled, end));
    let drawing = html! {
        (time_axis(&time, TOP, BOTTOM))
        @for decade in 0..=(10.0f64.min(decades) as u32) {
            @let took = 10f64.powi(i32::try_from(decade).unwrap_or(0));
            line.grid x1=(px(LEFT)) x2=(px(RIGHT)) y1=(px(place(took))) y2=(px(place(took))) {}
            text.axis x=(px(LEFT - 8.0)) y=(px(place(took) + 4.0)) text-anchor="end" { (decade_name(took)) }
        }
        text.axis x="4" y=(px(TOP + 4.0)) { "took" }
        text.axis x="4" y=(px(BOTTOM + 16.0)) { "meant to begin at" }
        @match &columns {
            None => @for (at, took) in &settled { circle.mark cx=(px(time.at(*at))) cy=(px(place(*took))) r="3" {} }
            Some(columns) => @for column in columns {
                @let x = time.at(column.at);
                line.joined x1=(px(x)) x2=(px(x)) y1=(px(place(column.half))) y2=(px(place(column.most))) {}
                line.joined x1=(px(x - 3.0)) x2=(px(x + 3.0)) y1=(px(place(column.most))) y2=(px(place(column.most))) {}
                circle.mark cx=(px(x)) cy=(px(place(column.half))) r="2.5" {}
            }
        }
        @for at in never.iter().take(POINTS_MAX) {
            path.lost d=(format!("M{:.1} {:.1} l8 8 m0 -8 l-8 8", time.at(*at) - 4.0, TOP - 4.0)) {}
        }
    };
    let caption = html! {
        @if columns.is_some() { "Circle: the median of the things meant to begin in that stretch; line and bar above it: the longest. " }
        @else { "Each circle is one thing of the load. " }
        "The scale upwards is logarithmic: each line is ten times the one below it."
        @if !never.is_empty() { " Crosses at the top: never settled." }
    };
    let desc = format!(
        "{} by the time they were meant to begin; the longest took {}.",
        counted(settled.len(), "thing", "things"),
        at_ms(longest)
    );
    figure(
        &format!("{id}-latency"),
        "Latency by intended start",
        &desc,
        BOTTOM + 24.0,
        &drawing,
        &caption,
    )
}

fn decade_name(ms: f64) -> String {
    if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.0} s", ms / 1_000.0)
    }
}

struct Column {
    at: f64,
    half: f64,
    most: f64,
}

fn columns(points: &[(f64, f64)], end: f64) -> Vec<Column> {
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); COLUMNS];
    let width = end / COLUMNS as f64;
    for (at, took) in points {
        found[((at / width) as usize).min(COLUMNS - 1)].push(*took);
    }
    let mut columns = Vec::new();
    for (n, mut took) in found.into_iter().enumerate().filter(|(_, took)| !took.is_empty()) {
        took.sort_by(f64::total_cmp);
        columns.push(Column {
            at: (n as f64 + 0.5) * width,
            half: took[(took.len() - 1) / 2],
            most: took[took.len() - 1],
        });
    }
    columns
}
