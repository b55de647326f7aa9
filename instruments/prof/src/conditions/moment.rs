//! Formatting of a time as RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats a time as `2002-03-07T01:02:03Z`: RFC 3339, UTC, whole seconds. A time before 1970 is
/// printed as the start of 1970.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the year, month and day of the day `days` after 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from the first of March: then the leap day is the last of its year, and every
/// year starts on the same day of a cycle of 400 years, which has 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    // Count days from 0000-03-01, which is 719,468 days before 1970-01-01.
    let days = days + 719_468;
    let (cycle, of_cycle) = (days / 146_097, days % 146_097);
    // Subtract a day for each earlier leap day and add one for each earlier century without a leap
    // day, so that every year has 365 days.
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    // March to July and August to December have 153 days each (31 30 31 30 31), so 5 months are 153
    // days.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * cycle + year + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_moment_is_written_as_rfc_3339_has_it() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_795_231_200), "2026-11-21T03:20:00Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn every_day_of_800_years_follows_the_one_before() {
        let leap = |year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut expected = (1970, 1, 1);
        for days in 0..292_194 {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            let length = match month {
                2 => 28 + u64::from(leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, last) if last == length => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }
}
