//! What the charts share: the line of time, ticks, and numbers as text.

use maud::{Markup, html};

/// The width of every chart, in its own units.
pub(super) const WIDTH: f64 = 1_000.0;
/// Where the drawing begins: names stand left of it.
pub(super) const LEFT: f64 = 150.0;
/// Where it ends.
pub(super) const RIGHT: f64 = 980.0;
/// The width of a bold letter, about: what does not fit is not written.
const LETTER: f64 = 8.3;
/// Numbers on an axis, at most.
const TICKS_MAX: f64 = 8.0;

/// A scale from a value to a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// The value at the beginning.
    pub low: f64,
    /// The value at the end.
    pub high: f64,
    /// The place of the beginning.
    pub from: f64,
    /// The place of the end.
    pub to: f64,
}

impl Scale {
    /// The line of time from zero to here.
    pub(super) const fn time(end_ms: f64) -> Self {
        Self {
            low: 0.0,
            high: end_ms.max(1.0),
            from: LEFT,
            to: RIGHT,
        }
    }

    /// Where a value stands; what is outside stands at the edge.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round numbers on it.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let span = (self.high - self.low).max(f64::MIN_POSITIVE);
        let rough = span / TICKS_MAX;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|round| round * power)
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let mut ticks = vec![(self.low / step).ceil() * step];
        while let Some(last) = ticks.last().filter(|last| **last + step <= self.high) {
            ticks.push(last + step);
        }
        ticks
    }
}

/// A place in a drawing.
pub(super) fn px(place: f64) -> String {
    format!("{place:.1}")
}

/// How wide this text is, about.
pub(super) fn text_width(text: &str) -> f64 {
    f64::from(u32::try_from(text.chars().count()).unwrap_or(u32::MAX)) * LETTER
}

/// The text, cut short where it is longer than so many letters.
pub(super) fn short(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(letters - 1).collect();
    cut.push('…');
    cut
}

/// Milliseconds as seconds, for a human.
pub(super) fn seconds(ms: u64) -> String {
    at_ms(ms as f64)
}

/// A time or a duration in milliseconds, for a human.
pub(super) fn at_ms(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 && ms > 0.0 => format!("{ms:.2} ms"),
        ms if ms < 10.0 && ms.fract() > 0.005 => format!("{ms:.1} ms"),
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms if ms < 60_000.0 => format!("{:.2} s", ms / 1_000.0),
        ms => {
            let whole = (ms / 1_000.0).round();
            format!("{:.0} min {:02.0} s", (whole / 60.0).floor(), whole % 60.0)
        }
    }
}

/// A number of the axis of time: as many decimals as its step needs.
fn tick(ms: f64, step_ms: f64) -> String {
    let decimals = match step_ms {
        step if step >= 1_000.0 => 0,
        step if step >= 100.0 => 1,
        step if step >= 10.0 => 2,
        _ => 3,
    };
    format!("{:.decimals$} s", ms / 1_000.0)
}

/// The axis of time under a drawing that ends at `bottom`, with its lines from `top`.
pub(super) fn time_axis(scale: &Scale, top: f64, bottom: f64) -> Markup {
    let ticks = scale.ticks();
    let step = ticks.get(1).map_or(scale.high, |second| second - ticks[0]);
    html! {
        @for at in ticks {
            line.grid x1=(px(scale.at(at))) x2=(px(scale.at(at))) y1=(px(top)) y2=(px(bottom)) {}
            text.axis x=(px(scale.at(at))) y=(px(bottom + 16.0)) text-anchor="middle" { (tick(at, step)) }
        }
        line.base x1=(px(scale.from)) x2=(px(scale.to)) y1=(px(bottom)) y2=(px(bottom)) {}
    }
}

/// A drawing with its name and what it shows in words, that can be reached and scrolled by keyboard.
pub(super) fn figure(id: &str, title: &str, desc: &str, height: f64, drawing: &Markup, caption: &Markup) -> Markup {
    html! {
        figure {
            div.scroll tabindex="0" role="region" aria-label=(title) {
                svg.chart role="img" aria-labelledby={ (id) "-t " (id) "-d" } viewBox={ "0 0 " (WIDTH) " " (px(height)) } {
                    title id={ (id) "-t" } { (title) }
                    desc id={ (id) "-d" } { (desc) }
                    (drawing)
                }
            }
            figcaption { (caption) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        for end in [1.0, 7.0, 250.0, 1_985.0, 600_000.0] {
            let scale = Scale::time(end);
            let ticks = scale.ticks();
            assert!((2..=9).contains(&ticks.len()), "{end}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (0.0..=end).contains(tick)), "{end}: {ticks:?}");
        }
    }

    #[test]
    fn times_read_well() {
        for (ms, text) in [
            (0.0, "0 ms"),
            (0.25, "0.25 ms"),
            (3.4, "3.4 ms"),
            (250.0, "250 ms"),
            (1_500.0, "1.50 s"),
            (61_000.0, "1 min 01 s"),
        ] {
            assert_eq!(at_ms(ms), text);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        assert_eq!(short("größer", 4), "grö…");
        assert_eq!(short("W1", 4), "W1");
    }
}
