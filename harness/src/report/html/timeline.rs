//! The timeline of a stack as a drawing and as tables: each worker's grants as bars, what struck it shaded with a
//! pattern, each refusal as a numbered mark.
//!
//! ```text
//!  W1 │ [ 2 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▌            bar: a grant with its token; dashed with a thick end: taken away
//!     │    ▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨ P1         hatched: stopped; dotted: an injected fault
//!     │                       ▼R1          a write refused, in the table under this number
//! ```
//! What would be too close to be told apart is drawn as one; what is too much is left out, and said.

use super::chart::{LEFT, RIGHT, Scale, at_ms, figure, px, short, text_width, time_axis};
use super::{ROWS_MAX, left_out, table};
use crate::report::run::{StackSeen, counted};
use crate::report::timeline::{End, Lane, Span, Timeline};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Lanes of one drawing, at most.
const LANES_MAX: usize = 48;
/// Bars of one drawing, at most; each lane has its share.
const BARS_MAX: usize = 6_000;
/// Marks of one kind in one drawing, at most.
const MARKS_MAX: usize = 1_500;
/// The height of a lane with marks under its bar.
const LANE: f64 = 46.0;
/// The height of a lane without.
const BARE_LANE: f64 = 30.0;
/// Where the first lane begins.
const TOP: f64 = 10.0;
/// Bars closer than this are drawn as one.
const TOO_CLOSE: f64 = 2.5;
/// So wide at most is what is drawn as one: a block still says when.
const BLOCK: f64 = 36.0;
/// Letters of a lane's name.
const NAME_LETTERS: usize = 19;

/// A bar: one grant, or several too close to be told apart.
struct Bar<'a> {
    first: &'a Span,
    last: &'a Span,
    grants: usize,
}

impl Bar<'_> {
    /// Whether it was given back by its holder; several are drawn as one only when all were.
    const fn given_back(&self) -> bool {
        matches!(self.first.end, End::Released)
    }

    fn text(&self) -> String {
        let (first, last) = (self.first, self.last);
        if self.grants == 1 {
            return format!(
                "{} under token {}, from {} to {}, {}",
                first.key,
                first.token,
                at_ms(first.from_ms),
                at_ms(first.to_ms),
                first.end.as_str()
            );
        }
        format!(
            "{} grants, tokens {} to {}, from {} to {}, all released",
            self.grants,
            first.token,
            last.token,
            at_ms(first.from_ms),
            at_ms(last.to_ms)
        )
    }
}

/// What struck a lane, under its number.
struct Strike<'a> {
    lane: usize,
    id: String,
    name: &'a str,
    what: String,
    from_ms: f64,
    to_ms: f64,
    fault: bool,
    killed: bool,
}

pub(super) fn section(id: &str, stack: &StackSeen, faults: &[crate::chaos::fault::FaultRecord]) -> Markup {
    let timeline = Timeline::of(&stack.evidence, faults);
    if timeline.lanes.is_empty() {
        return html! { p { "No worker made a call, and nothing was struck: there is no timeline." } };
    }
    let lanes = chosen(&timeline);
    let strikes = strikes(&lanes);
    let refused = numbered(&lanes);
    html! {
        (drawing(id, stack, &timeline, &lanes, &strikes, &refused))
        (workers(&lanes))
        (refusals(&refused, &timeline))
        (struck(&strikes))
    }
}

/// The lanes that are drawn: all, or where there are too many those on which something went wrong first.
fn chosen(timeline: &Timeline) -> Vec<&Lane> {
    let mut order: Vec<(usize, &Lane)> = timeline.lanes.iter().enumerate().collect();
    if order.len() > LANES_MAX {
        order.sort_by_key(|(n, lane)| (lane.refused.is_empty(), lane.stretches.is_empty(), *n));
        order.truncate(LANES_MAX);
        order.sort_by_key(|(n, _)| *n);
    }
    order.into_iter().map(|(_, lane)| lane).collect()
}

/// Pauses are P1 …, faults F1 …, kills K1 …: over all lanes, in the order of time.
fn strikes<'a>(lanes: &[&'a Lane]) -> Vec<Strike<'a>> {
    let mut strikes = Vec::new();
    for (at, lane) in lanes.iter().enumerate() {
        for stretch in &lane.stretches {
            let fault = stretch.what != "paused";
            strikes.push(Strike {
                lane: at,
                id: String::new(),
                name: &lane.name,
                what: if fault {
                    stretch.what.clone()
                } else {
                    "stopped where it stood".to_owned()
                },
                from_ms: stretch.from_ms,
                to_ms: stretch.to_ms,
                fault,
                killed: false,
            });
        }
        for killed_ms in &lane.killed_ms {
            strikes.push(Strike {
                lane: at,
                id: String::new(),
                name: &lane.name,
                what: "killed".to_owned(),
                from_ms: *killed_ms,
                to_ms: *killed_ms,
                fault: false,
                killed: true,
            });
        }
    }
    strikes.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
    let (mut paused, mut faults, mut killed) = (0, 0, 0);
    for strike in &mut strikes {
        let (letter, count) = if strike.killed {
            ("K", &mut killed)
        } else if strike.fault {
            ("F", &mut faults)
        } else {
            ("P", &mut paused)
        };
        *count += 1;
        strike.id = format!("{letter}{count}");
    }
    strikes
}

struct Numbered<'a> {
    lane: usize,
    number: usize,
    refused: &'a crate::report::timeline::Refused,
}

/// Refusals of the drawn lanes, numbered in the order of time.
fn numbered<'a>(lanes: &[&'a Lane]) -> Vec<Numbered<'a>> {
    let mut all: Vec<_> = lanes
        .iter()
        .enumerate()
        .flat_map(|(lane, found)| {
            found.refused.iter().map(move |refused| Numbered {
                lane,
                number: 0,
                refused,
            })
        })
        .collect();
    all.sort_by(|a, b| a.refused.at_ms.total_cmp(&b.refused.at_ms));
    for (n, one) in all.iter_mut().enumerate() {
        one.number = n + 1;
    }
    all
}

/// A lane's grants as bars.
fn bars<'a>(lane: &'a Lane, scale: &Scale) -> Vec<Bar<'a>> {
    let mut spans: Vec<&Span> = lane.spans.iter().collect();
    spans.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
    let mut bars: Vec<Bar<'_>> = Vec::new();
    for span in spans {
        let plain = span.end == End::Released;
        if let Some(bar) = bars.last_mut()
            && plain
            && bar.given_back()
            && scale.at(span.from_ms) - scale.at(bar.last.to_ms) < TOO_CLOSE
            && scale.at(span.to_ms) - scale.at(bar.first.from_ms) < BLOCK
            && (scale.at(span.to_ms) - scale.at(span.from_ms) < 2.0 * TOO_CLOSE
                || scale.at(bar.last.to_ms) - scale.at(bar.last.from_ms) < 2.0 * TOO_CLOSE)
        {
            bar.grants += 1;
            if span.to_ms > bar.last.to_ms {
                bar.last = span;
            }
            continue;
        }
        bars.push(Bar {
            first: span,
            last: span,
            grants: 1,
        });
    }
    bars
}

fn drawing(
    id: &str,
    stack: &StackSeen,
    timeline: &Timeline,
    lanes: &[&Lane],
    strikes: &[Strike<'_>],
    refused: &[Numbered<'_>],
) -> Markup {
    let scale = Scale::time(timeline.end_ms);
    let mut tops = vec![TOP];
    for lane in lanes {
        let bare = lane.refused.is_empty() && lane.stretches.is_empty() && lane.killed_ms.is_empty();
        let top = tops[tops.len() - 1];
        tops.push(top + if bare { BARE_LANE } else { LANE });
    }
    let place = |lane: usize| tops[lane];
    let bottom = place(lanes.len());
    let (hatch, dots) = (format!("{id}-hatch"), format!("{id}-dots"));
    let mut labels = Labels::default();
    let bars: Vec<Vec<Bar<'_>>> = lanes.iter().map(|lane| bars(lane, &scale)).collect();
    let share = BARS_MAX / lanes.len();
    let drawing = html! {
        defs {
            pattern id=(hatch) width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                line.hatch x1="0" y1="0" x2="0" y2="7" {}
            }
            pattern id=(dots) width="6" height="6" patternUnits="userSpaceOnUse" {
                circle.dots cx="1.5" cy="1.5" r="1.3" {}
                circle.dots cx="4.5" cy="4.5" r="1.3" {}
            }
        }
        (time_axis(&scale, TOP, bottom))
        @for (n, lane) in lanes.iter().enumerate() {
            text x=(px(LEFT - 8.0)) y=(px(place(n) + 18.0)) text-anchor="end" { title { (lane.name) } (short(&lane.name, NAME_LETTERS)) }
            line.grid x1="0" x2=(px(RIGHT)) y1=(px(place(n))) y2=(px(place(n))) {}
            @for bar in bars[n].iter().take(share) { (bar_of(bar, &scale, place(n))) }
        }
        // Refusals have their words first: they are what the run is about.
        (marks(refused, &scale, &place, &mut labels))
        (shades(strikes, &scale, &place, [&hatch, &dots], &mut labels))
    };
    let left_bars: usize = bars.iter().map(|bars| bars.len().saturating_sub(share)).sum();
    let left_lanes = timeline.lanes.len() - lanes.len();
    let desc = format!(
        "{} over {}: {}, {}, {}. The tables under the chart say the same in words.",
        counted(lanes.len(), "lane", "lanes"),
        at_ms(timeline.end_ms),
        counted(lanes.iter().map(|lane| lane.spans.len()).sum(), "grant", "grants"),
        counted(strikes.len(), "pause, kill or fault", "pauses, kills and faults"),
        counted(refused.len(), "refused write", "refused writes"),
    );
    let caption = html! {
        (legend(id))
        @if left_lanes > 0 { p { (counted(left_lanes, "lane", "lanes")) " more without refusals, left out of the drawing." } }
        @if left_bars > 0 { p { (counted(left_bars, "bar", "bars")) " more, left out of the drawing." } }
        @if some(strikes, |strike| strike.lane).len() < strikes.len() || some(refused, |one| one.lane).len() < refused.len() { p { "Of the marks only some are drawn, evenly over the run." } }
    };
    let title = format!(
        "Timeline of {}: who held which lock, what struck whom, who was turned away",
        stack.name
    );
    figure(id, &title, &desc, bottom + 26.0, &drawing, &caption)
}

fn bar_of(bar: &Bar<'_>, scale: &Scale, top: f64) -> Markup {
    let (from, to) = (scale.at(bar.first.from_ms), scale.at(bar.last.to_ms));
    let width = (to - from).max(1.5);
    let label = if bar.grants == 1 {
        bar.first.token.to_string()
    } else {
        format!("×{}", bar.grants)
    };
    html! {
        rect.grant.taken[!bar.given_back()].many[bar.grants > 1] x=(px(from)) y=(px(top + 5.0)) width=(px(width)) height="18" {
            title { (bar.text()) }
        }
        @if !bar.given_back() && bar.first.end != End::Open {
            line.cap x1=(px(from + width)) x2=(px(from + width)) y1=(px(top + 3.0)) y2=(px(top + 25.0)) {}
        }
        @if text_width(&label) + 4.0 < width {
            text.halo x=(px(from + 3.0)) y=(px(top + 18.5)) { (label) }
        }
    }
}

/// Where labels stand already, lane by lane, so that none is written over another.
#[derive(Default)]
struct Labels {
    taken: Vec<Vec<(f64, f64)>>,
}

impl Labels {
    /// The first of these texts and places that is free: `true` is right of `at`, `false` left of it.
    fn place<'t>(&mut self, lane: usize, at: f64, gap: f64, tries: &[(&'t str, bool)]) -> Option<(f64, &'t str)> {
        if self.taken.len() <= lane {
            self.taken.resize(lane + 1, Vec::new());
        }
        for (text, right) in tries {
            let width = text_width(text);
            let from = if *right { at + gap } else { at - gap - width };
            let to = from + width;
            let apart = |(other_from, other_to): &(f64, f64)| to + 4.0 < *other_from || from > other_to + 4.0;
            if self.taken[lane].iter().all(apart) && from >= LEFT && to <= super::chart::WIDTH {
                self.taken[lane].push((from, to));
                return Some((from, text));
            }
        }
        None
    }
}

fn shades(
    strikes: &[Strike<'_>],
    scale: &Scale,
    place: &impl Fn(usize) -> f64,
    patterns: [&str; 2],
    labels: &mut Labels,
) -> Markup {
    let [hatch, dots] = patterns;
    html! {
        @for strike in some(strikes, |strike| strike.lane) {
            @let (from, to, top) = (scale.at(strike.from_ms), scale.at(strike.to_ms), place(strike.lane));
            @if strike.killed {
                g { title { (strike.id) ": " (strike.name) " killed at " (at_ms(strike.from_ms)) }
                    path.killed d=(format!("M{:.1} {:.1} l9 9 m0 -9 l-9 9", from - 4.5, top + 25.0)) {}
                }
            } @else {
                @let pattern = if strike.fault { dots } else { hatch };
                rect x=(px(from)) y=(px(top + 26.0)) width=(px((to - from).max(2.0))) height="7" fill={ "url(#" (pattern) ")" } {
                    title { (strike.id) ": " (strike.name) " " (strike.what) ", from " (at_ms(strike.from_ms)) " to " (at_ms(strike.to_ms)) }
                }
                rect.edge x=(px(from)) y=(px(top + 26.0)) width=(px((to - from).max(2.0))) height="7" {}
            }
            @let long = format!("{} {}", strike.id, strike.what);
            @if let Some((x, text)) = labels.place(strike.lane, from, 0.0, &[(&long, true), (&strike.id, true), (&strike.id, false)]) {
                text.tag.halo x=(px(x)) y=(px(top + 44.0)) { (text) }
            }
        }
    }
}

fn marks(refused: &[Numbered<'_>], scale: &Scale, place: &impl Fn(usize) -> f64, labels: &mut Labels) -> Markup {
    html! {
        @for one in some(refused, |one| one.lane) {
            @let (at, top) = (scale.at(one.refused.at_ms), place(one.lane));
            @let tag = format!("R{}", one.number);
            @let long = match (one.refused.presented, one.refused.superseded_by, &one.refused.superseded_by_holder) {
                (Some(shown), Some(above), Some(holder)) => format!("{tag} {} {shown} < {above} of {}", one.refused.verb, short(holder, NAME_LETTERS)),
                (Some(shown), Some(above), None) => format!("{tag} {} {shown} < {above}", one.refused.verb),
                (Some(shown), None, Some(_)) => format!("{tag} {} {shown}, revoked", one.refused.verb),
                _ => tag.clone(),
            };
            g { title { (long) ", at " (at_ms(one.refused.at_ms)) }
                path.refusal d=(format!("M{:.1} {:.1} h11 l-5.5 9 z", at - 5.5, top + 24.5)) {}
            }
            @if let Some((x, text)) = labels.place(one.lane, at, 6.0, &[(&long, true), (&long, false), (&tag, true), (&tag, false)]) {
                text.refusal-tag.halo x=(px(x)) y=(px(top + 44.0)) { (text) }
            }
        }
    }
}

/// All marks, or where there are too many each lane's share, evenly over the run.
fn some<T>(marks: &[T], lane: impl Fn(&T) -> usize) -> Vec<&T> {
    let mut of_lane: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for mark in marks {
        of_lane.entry(lane(mark)).or_default().0 += 1;
    }
    let share = (MARKS_MAX / of_lane.len().max(1)).max(1);
    let kept = marks.iter().filter(|mark| {
        of_lane.get_mut(&lane(mark)).is_some_and(|(all, seen)| {
            *seen += 1;
            (*seen - 1) % all.div_ceil(share) == 0
        })
    });
    kept.collect()
}

fn legend(id: &str) -> Markup {
    let key = |drawing: Markup, words: &str| {
        html! { li { svg width="34" height="20" viewBox="0 0 34 20" aria-hidden="true" { (drawing) } (words) } }
    };
    html! {
        ul.legend {
            (key(html! { rect.grant x="1" y="2" width="30" height="15" {} text x="5" y="14" { "7" } }, "a grant and its token, given back"))
            (key(html! { rect.grant.taken x="1" y="2" width="28" height="15" {} line.cap x1="29" x2="29" y1="0" y2="19" {} }, "a grant that expired, was lost or revoked"))
            (key(html! { rect.many.grant x="1" y="2" width="31" height="15" {} text x="4" y="14" { "×9" } }, "so many grants, too close to tell apart"))
            (key(html! { rect x="1" y="6" width="31" height="8" fill={ "url(#" (id) "-hatch)" } {} rect.edge x="1" y="6" width="31" height="8" {} }, "P: the process stood still"))
            (key(html! { rect x="1" y="6" width="31" height="8" fill={ "url(#" (id) "-dots)" } {} rect.edge x="1" y="6" width="31" height="8" {} }, "F: an injected fault"))
            (key(html! { path.killed d="M12 5 l9 9 m0 -9 l-9 9" {} }, "K: the process was killed"))
            (key(html! { path.refusal d="M11 5 h11 l-5.5 9 z" {} }, "R: a stale write, refused: the token shown < the token that superseded it, and whose that was"))
        }
    }
}

/// The lanes in numbers.
fn workers(lanes: &[&Lane]) -> Markup {
    let lanes: Vec<_> = lanes
        .iter()
        .filter(|lane| !lane.spans.is_empty() || lane.contended > 0)
        .collect();
    let ended = |lane: &Lane, end: &[End]| lane.spans.iter().filter(|span| end.contains(&span.end)).count();
    let rows = html! {
        thead { tr {
            th scope="col" { "Worker" }
            th.n scope="col" { "Grants" }
            th.n scope="col" { "Given back" }
            th.n scope="col" { "Taken away" }
            th.n scope="col" { "Asked in vain" }
            th.n scope="col" { "Writes refused" }
        } }
        tbody { @for lane in lanes.iter().take(ROWS_MAX) { tr {
            th scope="row" { (lane.name) }
            td.n { (lane.spans.len()) }
            td.n { (ended(lane, &[End::Released])) }
            td.n { (ended(lane, &[End::Expired, End::Lost, End::Revoked])) }
            td.n { (lane.contended) }
            td.n { (lane.refused.len()) }
        } } }
    };
    html! { @if !lanes.is_empty() { (table("Each worker in numbers", &rows)) } }
}

fn refusals(refused: &[Numbered<'_>], timeline: &Timeline) -> Markup {
    let or_dash = |token: Option<u64>| token.map_or_else(|| "—".to_owned(), |token| token.to_string());
    let rows = html! {
        thead { tr {
            th scope="col" { "No." }
            th scope="col" { "Who" }
            th scope="col" { "Tried" }
            th scope="col" { "Payout" }
            th.n scope="col" { "At" }
            th.n scope="col" { "Token shown" }
            th.n scope="col" { "Superseded by" }
            th scope="col" { "Held by" }
        } }
        tbody { @for one in refused.iter().take(ROWS_MAX) {
            @let refused = one.refused;
            tr {
                th scope="row" { "R" (one.number) }
                td { (refused.worker) }
                td { (refused.verb) }
                td { (refused.payout.as_deref().unwrap_or("—")) }
                td.n { (at_ms(refused.at_ms)) }
                td.n { (or_dash(refused.presented)) }
                td.n { (or_dash(refused.superseded_by)) }
                td { (refused.superseded_by_holder.as_deref().unwrap_or("nobody in the record")) }
            }
        } }
    };
    html! {
        @if refused.is_empty() { p { "No worker's write was refused on this stack." } }
        @else {
            (table("Stale writes refused (FENCED_OUT), each with the grant that superseded it", &rows))
            (left_out(refused.len(), "refusal", "refusals"))
        }
        @if timeline.probes_refused > 0 {
            p.muted { (counted(timeline.probes_refused, "stale write", "stale writes")) " of the harness's own, made to prove the fences, refused as well." }
        }
    }
}

fn struck(strikes: &[Strike<'_>]) -> Markup {
    let rows = html! {
        thead { tr {
            th scope="col" { "No." }
            th scope="col" { "Whom" }
            th scope="col" { "What" }
            th.n scope="col" { "From" }
            th.n scope="col" { "Until" }
            th.n scope="col" { "For" }
        } }
        tbody { @for strike in strikes.iter().take(ROWS_MAX) { tr {
            th scope="row" { (strike.id) }
            td { (strike.name) }
            td { (strike.what) }
            td.n { (at_ms(strike.from_ms)) }
            @if strike.killed { td.n { "—" } td.n { "—" } }
            @else {
                td.n { (at_ms(strike.to_ms)) }
                td.n { (at_ms(strike.to_ms - strike.from_ms)) }
            }
        } } }
    };
    html! {
        @if !strikes.is_empty() {
            (table("What struck whom on this stack", &rows))
            (left_out(strikes.len(), "row", "rows"))
        }
    }
}
