//! A picture of the ranked difference: two bars for each function of the packet path.
//!
//! ```text
//!      schedule ███████████████████████████  24,853
//!               ██████████                    9,036  (-63.6 %)
//!     speedo_rx ████                          3,358
//!               ▯                             < 216  (≤ -93.6 %)     open: a bound, not a count
//! ```

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{change, digits, grouped, grouped_real, percent};
use super::names::short;
use super::preface;
use crate::diff::{By, Change, Count, Diff, Row, Saving};
use crate::stage::Part;
use crate::{Code, Error, Result};

/// Functions that are drawn: those that saved most, and of these places so many at most for those
/// that rose most.
const DRAWN: usize = 25;
const DRAWN_RISEN: usize = 5;

// Pixels.
const WIDTH: u32 = 960;
const HEAD: i32 = 86;
const ROW: i32 = 34;
const BAR: i32 = 12;
const FOOT: i32 = 34;
const BARS_FROM: i32 = 280;
const BARS_TO: i32 = 740;

const WITHOUT: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const FELL: RGBColor = RGBColor(0x1f, 0x6f, 0xb2);
const ROSE: RGBColor = RGBColor(0xc2, 0x3b, 0x22);
const NOISE: RGBColor = RGBColor(0xc3, 0xcb, 0xd3);
const UNCLEAR: RGBColor = RGBColor(0xd0, 0x8a, 0x10);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws `diff` as an SVG that needs nothing else.
///
/// # Errors
/// `E-FILE` if the packet path has no function to draw.
pub fn svg(diff: &Diff) -> Result<String> {
    let rows = chosen(diff);
    if rows.is_empty() {
        return Err(Error::new(Code::File, WHAT, "no function of the packet path was seen"));
    }
    let mut text = String::new();
    // At most `DRAWN` rows: the height fits.
    let height = HEAD + ROW * rows.len() as i32 + FOOT;
    let area = SVGBackend::with_string(&mut text, (WIDTH, height as u32)).into_drawing_area();
    let drawn = paint(&area, diff, &rows, height).and_then(|()| area.present().map_err(broken));
    drop(area);
    drawn.map(|()| text)
}

const WHAT: &str = "cannot draw the difference";

fn broken<E: std::error::Error + Send + Sync>(e: DrawingAreaErrorKind<E>) -> Error {
    Error::new(Code::File, WHAT, e.to_string())
}

/// The largest savings, then the largest rises, of the packet path.
fn chosen(diff: &Diff) -> Vec<&Row> {
    let rows: Vec<&Row> = diff.rows_of(Part::Path).collect();
    let rose = rows.iter().filter(|row| diff.change(row).is_rise()).count();
    let tail = rose.min(DRAWN_RISEN);
    if rows.len() <= DRAWN {
        return rows;
    }
    let (head, rest) = rows.split_at(DRAWN - tail);
    head.iter().chain(&rest[rest.len() - tail..]).copied().collect()
}

fn paint(area: &Area<'_>, diff: &Diff, rows: &[&Row], height: i32) -> Result<()> {
    area.fill(&WHITE).map_err(broken)?;
    let event = preface::event(&diff.with.event, diff.with.origin);
    label(area, &event, (16, 22), 17, &INK, HPos::Left)?;
    let scale = diff.scale;
    let pct = |sum: crate::diff::Sum| change(sum.saving_as_listed(scale));
    let verdict = format!(
        "in all {}, without idle {}, of what is listed; {}",
        pct(diff.sum()),
        pct(diff.sum_without_idle()),
        scale.by
    );
    label(area, &verdict, (16, 44), 13, &INK, HPos::Left)?;
    legend(area)?;
    let largest = rows.iter().map(|row| length(diff, row)).fold(f64::MIN_POSITIVE, f64::max);
    for (i, row) in rows.iter().enumerate() {
        // At most `DRAWN`.
        let y = HEAD + ROW * i as i32;
        function(area, diff, row, y, largest)?;
    }
    let foot = foot(diff, rows);
    label(area, &foot, (16, height - 16), 12, &INK, HPos::Left)
}

fn legend(area: &Area<'_>) -> Result<()> {
    let entries = [
        (WITHOUT, true, "without"),
        (FELL, true, "with, fell"),
        (ROSE, true, "with, rose"),
        (UNCLEAR, true, "with, may have"),
        (NOISE, true, "with, within noise"),
        (INK, false, "open: fewer than this"),
    ];
    let mut x = 16;
    for (color, filled, text) in entries {
        bar(area, (x, 60), 18, color, filled)?;
        label(area, text, (x + 24, 66), 12, &INK, HPos::Left)?;
        // Characters are some 7 pixels wide.
        x += 24 + 7 * text.len() as i32 + 20;
    }
    Ok(())
}

fn function(area: &Area<'_>, diff: &Diff, row: &Row, y: i32, largest: f64) -> Result<()> {
    label(area, &short(&row.symbol, 36), (BARS_FROM - 8, y + BAR), 13, &INK, HPos::Right)?;
    let scale = diff.scale;
    let sum = row.sum();
    let color = match diff.change(row) {
        Change::Rose => ROSE,
        Change::Fell => FELL,
        Change::MayHaveFallen | Change::MayHaveRisen => UNCLEAR,
        Change::Noise | Change::Unchanged => NOISE,
    };
    let sides = [
        (row.without, scale.without_factor, WITHOUT, String::new()),
        (row.with, scale.with_factor, color, percentage(sum.saving(scale))),
    ];
    for ((count, factor, color, note), y) in sides.into_iter().zip([y, y + BAR]) {
        let (n, filled) = match count {
            Count::Is(n) => (n, true),
            Count::Below(n) => (n, false),
        };
        let amount = n as f64 * factor;
        let share = (amount / largest).clamp(0.0, 1.0);
        let wide = (share * f64::from(BARS_TO - BARS_FROM)).round() as i32;
        bar(area, (BARS_FROM, y), wide, color, filled)?;
        let figure = match scale.by {
            By::AsTheyAre => grouped(n),
            _ => grouped_real(amount, digits(scale)),
        };
        let sign = if filled { "" } else { "< " };
        let text = format!("{sign}{figure}  {note}");
        let at = (BARS_FROM + wide + 8, y + BAR / 2);
        label(area, text.trim_end(), at, 12, &INK, HPos::Left)?;
    }
    Ok(())
}

/// A saving as the change that it is.
fn percentage(saving: Saving) -> String {
    match saving {
        Saving::Is(pct) => format!("({})", change(Some(pct))),
        Saving::AtLeast(pct) => format!("(≤ {} %)", percent(-pct)),
        Saving::Unknown => "(n/a %)".to_owned(),
    }
}

fn length(diff: &Diff, row: &Row) -> f64 {
    let of = |count: Count, factor: f64| match count {
        Count::Is(n) | Count::Below(n) => n as f64 * factor,
    };
    of(row.without, diff.scale.without_factor).max(of(row.with, diff.scale.with_factor))
}

fn foot(diff: &Diff, rows: &[&Row]) -> String {
    let of_path = diff.rows_of(Part::Path).count();
    let unit = match diff.scale.by {
        By::Share => By::Share.suffix().to_owned(),
        by => format!("{}{}", preface::unit(diff.with.event.unit), by.suffix()),
    };
    let doubt =
        if diff.is_doubtful() { "; NOT COMPARABLE, see the warnings of the table" } else { "" };
    format!(
        "in {unit}; {} of {of_path} functions of the packet path; programs, disks, instrument and \
         idle are not drawn{doubt}",
        rows.len()
    )
}

fn bar(area: &Area<'_>, at: (i32, i32), wide: i32, color: RGBColor, filled: bool) -> Result<()> {
    let corners = [at, (at.0 + wide.max(1), at.1 + BAR - 2)];
    let style = if filled { color.filled() } else { color.stroke_width(1) };
    area.draw(&Rectangle::new(corners, style)).map_err(broken)
}

fn label(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    color: &RGBColor,
    side: HPos,
) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(color).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text, at, style)).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Event, Origin, Profile, Row as Seen, Unit};

    fn profile(rows: &[(&str, u64)]) -> Profile {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Counter);
        profile.rows = rows.iter().map(|&(name, count)| Seen::new(name, count)).collect();
        profile
    }

    #[test]
    fn a_function_below_the_cut_off_has_an_open_bar_and_a_bound() {
        let without = profile(&[("speedo_rx", 3358), ("<b>&", 900)]);
        let mut with = profile(&[("<b>&", 216)]);
        with.cut_off_at_the_smallest();
        let text = svg(&Diff::between(&without, &with)).unwrap();
        assert!(text.contains("&lt; 216  (≤ -93.6 %)"), "{text}");
        assert!(text.contains("&lt;b&gt;&amp;"), "names are text: {text}");
        assert!(text.contains("fill=\"none\""), "an open bar: {text}");
    }

    #[test]
    fn what_rose_most_is_drawn_among_many_that_fell() {
        let names: Vec<String> = (0..60).map(|i| format!("f{i}")).collect();
        let mut rows: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 100)).collect();
        rows.push(("grew", 1));
        let mut after: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 50)).collect();
        after.push(("grew", u64::MAX));
        let text = svg(&Diff::between(&profile(&rows), &profile(&after))).unwrap();
        assert!(text.contains("grew") && text.contains("25 of 61 functions"), "{text}");
    }

    #[test]
    fn a_function_without_a_sample_is_fewer_than_one_and_noise_has_a_colour_of_its_own() {
        let (without, with) = (profile(&[("f", 400), ("g", 9)]), profile(&[("g", 8)]));
        let text = svg(&Diff::between(&without, &with)).unwrap();
        assert!(text.contains("&lt; 1  (≤ -99.8 %)"), "{text}");
        assert_eq!(text.matches("#C3CBD3").count(), 2, "in the legend, and g's: {text}");
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        let idle = profile(&[("default_idle", 7)]);
        assert_eq!(svg(&Diff::between(&idle, &idle)).unwrap_err().code, Code::File);
    }
}
