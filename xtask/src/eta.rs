//! The remaining time of a campaign, and the line on stderr that says so.

use std::io::{self, Write};
use std::time::Duration;

/// Returns the remaining time if the rest goes on at the same pace.
pub fn left(took: Duration, done: usize, total: usize) -> Option<Duration> {
    let rest = total.saturating_sub(done) as f64;
    (done > 0).then(|| took.mul_f64(rest / done as f64))
}

/// `, about 12 s left`, if that can be said.
pub fn told(took: Duration, done: usize, total: usize) -> String {
    let left = left(took, done, total);
    left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs()))
}

/// Draws the line anew for a person who has it `seen`, or adds one to a log.
pub fn draw(seen: bool, text: &str) {
    let (before, behind) = if seen { ("\r", "\x1b[K") } else { ("", "\n") };
    let _ = write!(io::stderr(), "{before}{text}{behind}");
}

/// Wipes the line away.
pub fn clear(seen: bool) {
    if seen {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_a_piece_as_what_is_done() {
        let took = Duration::from_secs(30);
        assert_eq!(left(took, 10, 40), Some(Duration::from_secs(90)));
        assert_eq!(left(took, 0, 40), None);
        assert_eq!(left(took, 41, 40), Some(Duration::ZERO));
        assert_eq!(
            (told(took, 10, 40), told(took, 0, 40)),
            (", about 90 s left".into(), String::new())
        );
    }
}
