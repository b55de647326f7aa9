//! Charts as inline SVG that fit any width without shrinking the text.
//!
//! Places along x are shares of the width, written in per cent; places along y, letters and strokes
//! are in pixels. A chart is as wide as the page lets it be, and its letters stay as large as those
//! around it, on a phone as on a desk. Colours are classes, which the page's style sets for a light
//! and for a dark ground.

use std::fmt::Write;

use crate::escape::escape;
use crate::number::grouped;
use crate::words::elided;

/// Width of a label's letter in pixels, also of wide letters in a fallback font.
const LETTER: f64 = 7.4;

/// Letters of labels that fit side by side on the narrowest page, of 360 pixels.
pub const LETTERS: usize = (290.0 / LETTER) as usize;

/// A chart that is being drawn.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

/// The part of a label's text that is placed at the label's position.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// The start of the text.
    Start,
    /// The middle of the text.
    Middle,
    /// The end of the text.
    End,
}

/// A mark at a position. Shape and colour both show its meaning.
#[derive(Debug, Clone, Copy)]
pub enum Mark {
    /// Better: a disc.
    Disc,
    /// Worse: a diamond.
    Diamond,
    /// No difference: a ring.
    Ring,
    /// Unknown: a cross.
    Cross,
}

impl Svg {
    /// Creates an empty chart with a name, and a description for readers who cannot see it.
    #[must_use]
    pub fn new(title: &str, desc: &str) -> Svg {
        let (title, desc) = (escape(title), escape(desc));
        Svg { text: format!("<title>{title}</title><desc>{desc}</desc>") }
    }

    /// Draws a bar between two positions along x and two positions along y.
    pub fn bar(&mut self, x: (f64, f64), y: (f64, f64), class: &str, tip: &str) {
        let (left, wide) = (pct(x.0.min(x.1)), pct((x.1 - x.0).abs()));
        let (top, high) = (px(y.0.min(y.1)), px((y.1 - y.0).abs()));
        let tip = tooltip(tip);
        self.add(format_args!(
            r#"<rect class="{class}" x="{left}" y="{top}" width="{wide}" height="{high}">{tip}</rect>"#
        ));
    }

    /// Draws a bar with a name in it, cut off at the bar's end.
    pub fn frame(&mut self, x: (f64, f64), y: (f64, f64), class: &str, (tip, name): (&str, &str)) {
        self.bar(x, y, class, tip);
        if !name.is_empty() {
            let (left, wide) = (pct(x.0.min(x.1)), pct((x.1 - x.0).abs()));
            let (top, high) = (px(y.0.min(y.1)), px((y.1 - y.0).abs()));
            let (base, name) = (px((y.1 - y.0).abs() - 4.5), escape(name));
            self.add(format_args!(
                r#"<svg class="{class}" x="{left}" y="{top}" width="{wide}" height="{high}"><text x="3" y="{base}">{name}</text></svg>"#
            ));
        }
    }

    /// Draws a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let [x1, x2] = [pct(from.0), pct(to.0)];
        let [y1, y2] = [px(from.1), px(to.1)];
        self.add(format_args!(
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        ));
    }

    /// Draws a point.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, class: &str) {
        let [x, y, r] = [pct(at.0), px(at.1), px(radius)];
        self.add(format_args!(r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}"/>"#));
    }

    /// Draws a mark.
    pub fn mark(&mut self, at: (f64, f64), mark: Mark, class: &str, tip: &str) {
        let form = match mark {
            Mark::Disc => r#"<circle r="5"/>"#,
            Mark::Diamond => r#"<path d="M0-6.5 6.5 0 0 6.5-6.5 0z"/>"#,
            Mark::Ring => r#"<circle class="hollow" r="4.5"/>"#,
            Mark::Cross => r#"<path class="hollow" d="M-4-4 4 4M-4 4 4-4"/>"#,
        };
        let [x, y, tip] = [pct(at.0), px(at.1), tooltip(tip)];
        self.add(format_args!(
            r#"<svg class="{class}" x="{x}" y="{y}" overflow="visible"><g>{tip}{form}</g></svg>"#
        ));
    }

    /// Writes a label with its baseline at `at`, moved by `dx` pixels.
    pub fn label(&mut self, at: (f64, f64), dx: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let [x, y, dx] = [pct(at.0), px(at.1), px(dx)];
        let text = escape(text);
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}" dx="{dx}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// Writes the heading of a row: its name on the left and its text on the right; the text is
    /// below if both do not fit side by side on the narrowest page.
    pub fn head(&mut self, top: f64, name: &str, said: &str) {
        let below = head_height(name, said) - HEAD;
        self.label((0.0, top + 14.0), 0.0, Anchor::Start, "name", &elided(name, LETTERS));
        let said = elided(said, LETTERS);
        self.label((1.0, top + 14.0 + below), 0.0, Anchor::End, "value", &said);
    }

    /// Draws the grid of an axis along x, from `top` to `bottom`, labelled below.
    pub fn grid_x(&mut self, axis: &Axis, (top, bottom): (f64, f64)) {
        for tick in axis.ticks() {
            let x = axis.at(tick);
            let class = if tick == 0.0 { "zero" } else { "grid" };
            self.line((x, top), (x, bottom), class);
            self.label((x, bottom + 15.0), 0.0, Anchor::Middle, "tick", &axis.label(tick));
        }
    }

    /// Draws the grid of a vertical axis, with a label on each line.
    pub fn grid_y(&mut self, axis: &Axis, (top, bottom): (f64, f64)) {
        for tick in axis.ticks() {
            let y = bottom + (top - bottom) * axis.at(tick);
            let class = if tick == 0.0 { "zero" } else { "grid" };
            self.line((0.0, y), (1.0, y), class);
            self.label((0.0, y - 3.0), 0.0, Anchor::Start, "tick", &axis.label(tick));
        }
    }

    /// Returns the finished chart, `height` pixels high.
    #[must_use]
    pub fn finish(self, height: f64) -> String {
        let (height, text) = (px(height), self.text);
        format!(r#"<svg class="chart" role="img" width="100%" height="{height}">{text}</svg>"#)
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(element);
    }
}

/// Height of a row's heading with one line, in pixels.
const HEAD: f64 = 20.0;

/// Returns the height of a row's heading in pixels.
#[must_use]
pub fn head_height(name: &str, said: &str) -> f64 {
    let letters = name.chars().count() + 2 + said.chars().count();
    if letters > LETTERS { HEAD + 16.0 } else { HEAD }
}

/// A linear axis that begins and ends at a tick.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    step: f64,
    unit: &'static str,
    /// True if a label has a sign that shows its direction from 0.
    signed: bool,
}

impl Axis {
    /// Creates an axis over the finite `values`, with about `ticks` ticks.
    #[must_use]
    pub fn over(values: impl IntoIterator<Item = f64>, ticks: f64, unit: &'static str) -> Axis {
        // Limit the values, because larger ones would lose their ticks to rounding. They are drawn
        // at the axis's end.
        let finite = values.into_iter().filter(|x| x.is_finite()).map(|x| x.clamp(-1e15, 1e15));
        let (low, high) = finite.fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(x), h.max(x)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        // Equal values need a span nevertheless. A millionth of the value is less than its printed
        // digits.
        let least = (low.abs().max(high.abs()) * 1e-6).max(1e-9);
        let step = nice((high - low).max(least) / ticks);
        let (low, mut high) = ((low / step).floor() * step, (high / step).ceil() * step);
        if high <= low {
            high = low + step;
        }
        Axis { low, high, step, unit, signed: false }
    }

    /// Returns the axis with signs in its labels.
    #[must_use]
    pub fn signed(self) -> Axis {
        Axis { signed: true, ..self }
    }

    /// Returns the position of `x`, from 0 to 1; values outside the axis are at an end.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let share = (x - self.low) / (self.high - self.low);
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Returns true if `x` is on the axis.
    #[must_use]
    pub fn holds(&self, x: f64) -> bool {
        (self.low..=self.high).contains(&x)
    }

    /// Returns the axis's ticks, a small number for any range.
    pub fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let (low, step) = (self.low, self.step);
        let n = ((self.high - low) / step).round().clamp(0.0, 20.0) as u32;
        (0..=n).map(move |i| {
            let x = low + step * f64::from(i);
            // The tick at 0 may differ from 0 by a rounding error.
            if x.abs() < step / 1e3 { 0.0 } else { x }
        })
    }

    /// Returns a tick's label.
    #[must_use]
    pub fn label(&self, tick: f64) -> String {
        let digits = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        let number = match (tick == 0.0, self.signed) {
            _ if tick.abs() >= 1e7 => format!("{tick:.1e}"),
            (true, _) => "0".to_owned(),
            (false, true) => format!("{tick:+.digits$}"),
            (false, false) => format!("{tick:.digits$}"),
        };
        let number = if number.contains('e') { number } else { grouped(&number) };
        format!("{number}{}", self.unit)
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not below `x`.
fn nice(x: f64) -> f64 {
    let power = 10f64.powf(x.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power);
    steps.into_iter().find(|step| *step >= x * 0.999).unwrap_or(10.0 * power)
}

fn tooltip(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) }
}

fn pct(share: f64) -> String {
    let text = format!("{:.3}", 100.0 * share);
    format!("{}%", trimmed(&text))
}

fn px(x: f64) -> String {
    trimmed(&format!("{x:.2}")).to_owned()
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_begins_and_ends_at_ticks_and_has_few_of_them() {
        let axis = Axis::over([-53.0, 4.0], 4.0, " %").signed();
        let labels: Vec<String> = axis.ticks().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["-60 %", "-40 %", "-20 %", "0 %", "+20 %"]);
        assert_eq!((axis.at(-60.0), axis.at(20.0), axis.at(-20.0)), (0.0, 1.0, 0.5));
        assert!(axis.holds(4.0) && !axis.holds(21.0));
    }

    #[test]
    fn an_axis_over_anything_is_finite() {
        let hostile = [
            vec![],
            vec![f64::NAN, f64::INFINITY],
            vec![0.0, 0.0],
            vec![7e-310],
            vec![1e308, -1e308],
            vec![1e15, 1e15 - 0.125],
            vec![-1e300],
        ];
        for values in hostile {
            let axis = Axis::over(values.clone(), 4.0, "");
            let ticks: Vec<f64> = axis.ticks().collect();
            assert!((1..=21).contains(&ticks.len()), "{values:?} {axis:?}");
            assert!(ticks.iter().all(|tick| tick.is_finite()), "{values:?} {axis:?}");
            assert!(ticks.iter().all(|tick| axis.label(*tick).len() < 24), "{values:?} {axis:?}");
            assert!([f64::NAN, 0.0, 1e308].iter().all(|x| (0.0..=1.0).contains(&axis.at(*x))));
        }
    }

    #[test]
    fn a_label_cannot_become_an_element() {
        let mut svg = Svg::new("<b>", "a & b");
        svg.label((0.5, 10.0), 0.0, Anchor::Middle, "tick", "<script>");
        svg.mark((1.0 / 3.0, 4.0), Mark::Disc, "better", "\"<i>\"");
        let text = svg.finish(20.0);
        assert!(text.contains("<title>&lt;b&gt;</title><desc>a &amp; b</desc>"), "{text}");
        assert!(text.contains("&lt;script&gt;") && text.contains("x=\"33.333%\""), "{text}");
        assert!(!text.contains("<i>"), "{text}");
    }
}
