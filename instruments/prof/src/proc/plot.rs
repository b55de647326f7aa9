//! A series as a picture: rates over time, in SVG, for any viewer and without a font of ours.

use std::fmt::Display;

use linerate_sys::{Code, Error, Result};
use plotters::prelude::*;
use plotters::style::FontDesc;

use super::rates::{Rate, Rates};
use super::series::{Column, Feed, Sample};
use crate::print::harmless;

/// Columns that can be chosen: with [`POINTS_MAX`] points each this is 16 MB.
const CHOSEN_MAX: usize = 512;

/// Points of a line that are kept: more than the picture has pixels for. Of a longer series,
/// neighbours are joined in their mean.
const POINTS_MAX: usize = 2000;

/// Lines that are drawn: more cannot be told apart.
const LINES_MAX: usize = 8;

const SIZE: (u32, u32) = (960, 520);

/// Height of two names beside each other.
const LEGEND_ROW: i32 = 20;

/// Colours that are told apart by the colour-blind too, dark enough for a light ground.
/// Source: Okabe and Ito, Color Universal Design; without the yellow.
const COLOURS: [RGBColor; LINES_MAX] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(127, 127, 127),
];

const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// Draws the columns that `choose` takes: a counter as a rate, a gauge as it is. They have to have
/// one unit. The eight lines that reach highest are drawn; the picture says how many are not.
///
/// # Errors
/// What `feed` failed with; `E-UNSUPPORTED` if nothing is chosen, or too much, or things of
/// different units, or if there are fewer than two samples.
pub fn svg(feed: &mut dyn Feed, title: &str, choose: impl Fn(&Column) -> bool) -> Result<String> {
    let mut curves = Curves::default();
    let (mut rates, mut rate, mut sample) = (Rates::default(), Rate::default(), Sample::default());
    while feed.next(&mut sample)? {
        if rates.step(feed.columns(), &sample, &mut rate) {
            curves.add(feed.columns(), &rate, &choose)?;
        }
    }
    let unit = curves.unit.take().ok_or_else(|| {
        let why = "no column was chosen, or the series has fewer than two samples";
        refused(why).fix("look at the names in its table")
    })?;
    draw(&curves, title, &unit).map_err(refused)
}

fn refused(why: impl Display) -> Error {
    Error::new(Code::Unsupported, "cannot draw the series", why.to_string())
}

/// What is to be drawn.
#[derive(Default)]
struct Curves {
    unit: Option<String>,
    /// End of each interval, and its length.
    times: Vec<(u64, u64)>,
    curves: Vec<Curve>,
    /// Columns looked at so far.
    seen: usize,
    /// How many intervals make a point.
    joined: usize,
    /// Intervals of the last point.
    open: usize,
}

struct Curve {
    name: String,
    /// Its column.
    at: usize,
    /// A value for each time, `None` for a gap.
    values: Vec<Option<f64>>,
}

impl Curves {
    fn add(
        &mut self,
        columns: &[Column],
        rate: &Rate,
        choose: &impl Fn(&Column) -> bool,
    ) -> Result<()> {
        for (at, column) in columns.iter().enumerate().skip(self.seen) {
            if choose(column) {
                self.choose(at, column)?;
            }
        }
        self.seen = columns.len();
        if self.curves.is_empty() {
            return Ok(());
        }
        if self.times.len() == POINTS_MAX && self.open == self.joined {
            self.halve();
        }
        let value = |curve: &Curve| rate.values.get(curve.at).copied().flatten();
        let joins = self.open > 0 && self.open < self.joined;
        if joins && let Some(last) = self.times.last_mut() {
            let before_ns = last.1;
            *last = (rate.t_ns, before_ns + rate.span_ns);
            for curve in &mut self.curves {
                let more = value(curve);
                if let Some(last) = curve.values.last_mut() {
                    *last = mean((*last, before_ns), (more, rate.span_ns));
                }
            }
            self.open += 1;
        } else {
            self.times.push((rate.t_ns, rate.span_ns));
            for curve in &mut self.curves {
                let value = value(curve);
                curve.values.push(value);
            }
            self.open = 1;
        }
        self.joined = self.joined.max(1);
        Ok(())
    }

    fn choose(&mut self, at: usize, column: &Column) -> Result<()> {
        let unit = column.rate_unit();
        let known = self.unit.get_or_insert_with(|| unit.clone());
        if *known != unit {
            let why = format!("{} has {unit}, the columns before it have {known}", column.name);
            return Err(refused(why).fix("choose columns of one unit"));
        }
        if self.curves.len() == CHOSEN_MAX {
            let why = format!("more than {CHOSEN_MAX} columns are chosen");
            return Err(refused(why).fix("choose fewer columns"));
        }
        let device = device(column).map(|device| format!("{} {device}", column.name));
        let name = device.unwrap_or_else(|| column.name.clone());
        self.curves.push(Curve { name, at, values: vec![None; self.times.len()] });
        Ok(())
    }

    /// Joins neighbours: half the points, each of twice the time.
    fn halve(&mut self) {
        let spans = self.times.clone();
        for curve in &mut self.curves {
            let pairs = curve.values.chunks_exact(2).zip(spans.chunks_exact(2));
            curve.values = pairs.map(|(v, t)| mean((v[0], t[0].1), (v[1], t[1].1))).collect();
        }
        self.times = spans.chunks_exact(2).map(|t| (t[1].0, t[0].1 + t[1].1)).collect();
        self.joined *= 2;
        self.open = self.joined;
    }
}

/// Who is behind an interrupt that has but a number: the last word of what the kernel says of it.
fn device(column: &Column) -> Option<&str> {
    let number = column.name.strip_prefix("interrupts/")?.split('/').next()?;
    let device = column.about.rsplit(' ').next().filter(|device| !device.is_empty());
    device.filter(|_| number.bytes().all(|b| b.is_ascii_digit()))
}

/// Mean over time of two neighbours; a gap stays one.
fn mean(a: (Option<f64>, u64), b: (Option<f64>, u64)) -> Option<f64> {
    let (x, y) = a.0.zip(b.0)?;
    let (a_ns, b_ns) = (a.1 as f64, b.1 as f64);
    Some((x * a_ns + y * b_ns) / (a_ns + b_ns))
}

type Drawn<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn draw(curves: &Curves, title: &str, unit: &str) -> Drawn<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (shown, note) = shown(curves);
        // The legend is above the lines, so that it covers none.
        let legend_rows = shown.len().div_ceil(2) as i32;
        let (head, body) = root.split_vertically(64 + LEGEND_ROW * legend_rows);
        head.draw(&Text::new(brief(title, 100), (16, 12), font(20)))?;
        head.draw(&Text::new(note, (16, 38), font(14)))?;
        for (at, (curve, colour)) in shown.iter().zip(COLOURS).enumerate() {
            let (x, y) = (16 + 464 * (at as i32 % 2), 62 + LEGEND_ROW * (at as i32 / 2));
            let line = vec![(x, y + 7), (x + 22, y + 7)];
            head.draw(&PathElement::new(line, colour.stroke_width(3)))?;
            head.draw(&Text::new(brief(&curve.name, 60), (x + 30, y), font(15)))?;
        }
        chart(&body, curves, &shown, unit)?;
        root.present()?;
    }
    Ok(svg)
}

/// As many letters of a text as there is room for, without what XML cannot hold.
fn brief(text: &str, letters: usize) -> String {
    let text = harmless(text);
    let end = text.char_indices().nth(letters).map(|(end, _)| end);
    let shown = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    let shown = shown.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    if end.is_some() { shown + "…" } else { shown }
}

/// The lines that reach highest, and what is to be said of the others.
fn shown(curves: &Curves) -> (Vec<&Curve>, String) {
    let peak = |curve: &Curve| curve.values.iter().flatten().copied().fold(0.0, f64::max);
    let mut shown: Vec<(f64, &Curve)> = curves.curves.iter().map(|c| (peak(c), c)).collect();
    let flat = shown.iter().filter(|(peak, _)| *peak == 0.0).count();
    // Something is drawn even if nothing ever happened.
    if flat < shown.len() {
        shown.retain(|(peak, _)| *peak > 0.0);
    }
    shown.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
    let left_out = shown.len().saturating_sub(LINES_MAX);
    shown.truncate(LINES_MAX);
    let mut note = format!("{} points", curves.times.len());
    if curves.joined > 1 {
        note += &format!(", each the mean of {} periods", curves.joined);
    }
    if left_out > 0 {
        note += &format!("; {left_out} lower lines are not drawn");
    }
    if flat > 0 {
        note += &format!("; {flat} columns were 0 throughout");
    }
    (shown.into_iter().map(|(_, curve)| curve).collect(), note)
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    curves: &Curves,
    shown: &[&Curve],
    unit: &str,
) -> Drawn<()> {
    let first_ns = curves.times.first().map_or(0, |(end, span)| end.saturating_sub(*span));
    let last_ns = curves.times.last().map_or(1, |(end, _)| *end).max(first_ns + 1);
    let (scale, time_unit) = time_scale(last_ns - first_ns);
    let time = |ns: u64| ns.saturating_sub(first_ns) as f64 / scale;
    let top = shown.iter().flat_map(|c| c.values.iter().flatten()).copied().fold(0.0, f64::max);
    let top = if top > 0.0 { 1.05 * top } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin_left(16)
        .margin_right(24)
        .margin_bottom(8)
        .x_label_area_size(50)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..time(last_ns), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .x_desc(format!("time, {time_unit}"))
        .y_desc(brief(unit, 60))
        .x_labels(9)
        .y_labels(7)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .label_style(font(15))
        .axis_desc_style(font(16))
        .draw()?;
    for (curve, colour) in shown.iter().zip(COLOURS) {
        let style = ShapeStyle { color: colour.into(), filled: false, stroke_width: 2 };
        for stretch in stretches(curve, &curves.times, &time) {
            chart.draw_series(LineSeries::new(stretch, style))?;
        }
    }
    Ok(())
}

/// The parts of a curve between its gaps, as points. An interval is a step: its rate is that of all
/// its time, and nobody knows of a slope in it.
fn stretches(
    curve: &Curve,
    times: &[(u64, u64)],
    time: &impl Fn(u64) -> f64,
) -> Vec<Vec<(f64, f64)>> {
    let mut stretches = vec![Vec::new()];
    for (value, &(end, span)) in curve.values.iter().zip(times) {
        match (value, stretches.last_mut()) {
            (Some(value), Some(stretch)) => {
                stretch.push((time(end.saturating_sub(span)), *value));
                stretch.push((time(end), *value));
            }
            _ => stretches.push(Vec::new()),
        }
    }
    stretches.retain(|stretch| !stretch.is_empty());
    stretches
}

/// Nanoseconds of a unit in which so long a time is read easily, and its name.
fn time_scale(span_ns: u64) -> (f64, &'static str) {
    match span_ns / 1_000_000_000 {
        ..2 => (1e6, "ms"),
        2..600 => (1e9, "s"),
        600..14_400 => (60e9, "min"),
        14_400.. => (3600e9, "h"),
    }
}

/// A figure of an axis: `0`, `250`, `1.5 k`, `20 M`.
fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    if value != 0.0 && value.abs() < 0.05 {
        // Little is not nothing: two digits that mean something.
        return format!("{value:.1e}");
    }
    // Rounded, so that 0.30000000000000004 is 0.3.
    format!("{}{suffix}", (value * 1e3).round() / 1e3)
}

fn font(size: u32) -> TextStyle<'static> {
    FontDesc::new(FontFamily::SansSerif, f64::from(size), FontStyle::Normal).color(&INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::Kind;

    fn columns() -> Vec<Column> {
        let column = |name: &str, unit: &str| Column {
            name: name.into(),
            unit: unit.into(),
            kind: Kind::Counter,
            about: String::new(),
        };
        vec![column("a", "packets"), column("b", "packets"), column("c", "ns")]
    }

    #[test]
    fn a_long_series_is_joined_in_its_mean_and_its_time_is_kept() {
        let mut curves = Curves::default();
        let intervals = 5 * POINTS_MAX as u64;
        for n in 1..=intervals {
            let values = vec![Some((n % 2) as f64), (n > 2).then_some(1.0), None];
            let rate = Rate { t_ns: n * 10, span_ns: 10, values, resets: 0 };
            curves.add(&columns(), &rate, &|column| column.unit == "packets").unwrap();
        }
        assert!(curves.times.len() <= POINTS_MAX && curves.joined == 8, "{}", curves.joined);
        let time: u64 = curves.times.iter().map(|(_, span)| span).sum();
        assert_eq!((time, curves.times.last().unwrap().0), (10 * intervals, 10 * intervals));
        let [a, b] = &curves.curves[..] else { panic!() };
        assert!(a.values.iter().all(|&mean| mean == Some(0.5)));
        assert_eq!((b.values[0], b.values[1]), (None, Some(1.0)));
    }

    #[test]
    fn columns_of_two_units_are_not_put_on_one_axis() {
        let rate = Rate { t_ns: 1, span_ns: 1, values: vec![None; 3], resets: 0 };
        let e = Curves::default().add(&columns(), &rate, &|_| true).unwrap_err();
        assert!(e.why.contains("c has %, the columns before it have packets/s"), "{e}");
    }

    #[test]
    fn a_gap_breaks_a_line_and_an_interval_is_a_step() {
        let values = vec![Some(1.0), None, Some(2.0), Some(3.0)];
        let curve = Curve { name: "a".into(), at: 0, values };
        let times = [(10, 10), (20, 10), (30, 10), (40, 10)];
        let parts = stretches(&curve, &times, &|ns| ns as f64);
        assert_eq!(parts[0], [(0.0, 1.0), (10.0, 1.0)]);
        assert_eq!(parts[1], [(20.0, 2.0), (30.0, 2.0), (30.0, 3.0), (40.0, 3.0)]);
        assert_eq!(parts.len(), 2);
    }

    #[test]
    fn an_interrupt_of_a_number_is_called_by_its_device() {
        let of = |name: &str| {
            let about = "PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0".into();
            device(&Column { name: name.into(), about, ..columns().remove(0) }).map(str::to_owned)
        };
        assert_eq!(of("interrupts/38/cpu1").as_deref(), Some("virtio2-input.0"));
        assert_eq!(of("interrupts/38").as_deref(), Some("virtio2-input.0"));
        assert_eq!((of("interrupts/LOC/cpu1"), of("stat/ctxt")), (None, None));
    }

    #[test]
    fn an_axis_has_short_figures() {
        let said = [0.0, 0.1 + 0.2, 2500.0, 15_000.0, 2e7, 1.2e9].map(short);
        assert_eq!(said, ["0", "0.3", "2500", "15 k", "20 M", "1.2 G"]);
        assert_eq!([0.00028, 0.0002, -0.04].map(short), ["2.8e-4", "2.0e-4", "-4.0e-2"]);
        assert_eq!(time_scale(1_500_000_000).1, "ms");
        assert_eq!(time_scale(86_400_000_000_000).1, "h");
    }
}
