//! Figures as text. An unknown figure is `-`.

use linerate_sys::text::thousands;

/// Formats a figure that was estimated from a sample: `~32.1`.
pub(super) fn estimated(n: Option<f64>, decimals: usize) -> String {
    let text = fine(n, decimals);
    // No `~` before `-` or `<`: an unknown figure or a bound is not an estimate.
    if text.starts_with(|first: char| first.is_ascii_digit()) { format!("~{text}") } else { text }
}

/// Formats a figure with `decimals` digits; a figure that would be rounded to 0 is shown as a
/// bound.
pub(super) fn fine(n: Option<f64>, decimals: usize) -> String {
    let least = 0.1_f64.powi(decimals as i32);
    match n {
        None => "-".into(),
        Some(n) if n > 0.0 && n < least / 2.0 => format!("<{least:.decimals$}"),
        Some(n) if n >= 1000.0 => thousands(n.round() as u64),
        Some(n) => format!("{n:.decimals$}"),
    }
}

/// Formats a packet rate with about three digits: `4.31 Mpps`.
pub fn rate(pps: f64) -> String {
    scaled(pps, "pps")
}

pub(super) fn scaled(n: f64, unit: &str) -> String {
    let (n, prefix) = match n {
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => (n, ""),
    };
    format!("{n:.2} {prefix}{unit}").trim_end().to_owned()
}

/// Formats the lateness of packets: `200 us`.
pub(super) fn late(ns: Option<u64>) -> String {
    ns.map_or("-".into(), |ns| format!("{:.0} us", ns as f64 / 1e3))
}
