//! `strftime` for templates that write the date. In UTC, and English, as Python's is by default.

use std::time::Duration;

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time since 1970. A `-` after `%` leaves out the padding, as in C libraries.
pub(super) fn strftime(since: Duration, format: &str) -> Result<String, Error> {
    let date = Date::new(since.as_secs());
    let mut out = String::with_capacity(2 * format.len());
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let text =
            directive.and_then(|directive| date.text(directive, padded)).ok_or_else(|| {
                let unknown = directive.map_or("%".to_owned(), |directive| format!("%{directive}"));
                let message = format!("strftime_now does not know {unknown}");
                Error::new(ErrorKind::InvalidOperation, message)
            })?;
        out.push_str(&text);
    }
    Ok(out)
}

/// The day of a time since 1970, as in `2024-02-29`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(forerun_decode::date(Duration::from_secs(86_400 * 19_782)), "2024-02-29");
/// ```
pub fn date(since: Duration) -> String {
    let Date { year, month, day, .. } = Date::new(since.as_secs());
    format!("{year:04}-{month:02}-{day:02}")
}

/// A second of the Gregorian calendar.
#[derive(Debug, Clone, Copy)]
struct Date {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
    /// From 1.
    year_day: u64,
    /// From 0, Sunday.
    weekday: u64,
    /// Of the day.
    second: u64,
}

impl Date {
    fn new(since: u64) -> Self {
        let (days, second) = (since / 86_400, since % 86_400);
        // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March, so
        // that leap days end them, and are counted in eras of 400 from the year 0.
        let from_march = days + 719_468;
        let (era, era_day) = (from_march / 146_097, from_march % 146_097);
        let era_year = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
        let march_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
        let march_month = (5 * march_day + 2) / 153;
        let day = march_day - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = 400 * era + era_year + u64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let year_day = if month <= 2 { march_day - 305 } else { march_day + 60 + u64::from(leap) };
        Self { year, month, day, year_day, weekday: (days + 4) % 7, second }
    }

    /// The text of one directive.
    fn text(self, directive: char, padded: bool) -> Option<String> {
        let (hour, minute) = (self.second / 3600, self.second / 60 % 60);
        let number = |number: u64, width: usize| {
            format!("{number:0width$}", width = if padded { width } else { 1 })
        };
        let name = |names: &[&str], index: u64, len: usize| {
            let name = names[usize::try_from(index).expect("an index is small")];
            name[..len.min(name.len())].to_owned()
        };
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'j' => number(self.year_day, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(self.second % 60, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => name(&MONTHS, self.month - 1, usize::MAX),
            'b' => name(&MONTHS, self.month - 1, 3),
            'A' => name(&WEEKDAYS, self.weekday, usize::MAX),
            'a' => name(&WEEKDAYS, self.weekday, 3),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{minute:02}:{:02}", self.second % 60),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_follows_the_one_before() {
        let (mut year, mut month, mut day, mut year_day) = (1970, 1, 1, 1);
        for days in 0..366 * 500 {
            let date = Date::new(days * 86_400 + 86_399);
            assert_eq!((date.year, date.month, date.day), (year, month, day), "day {days}");
            assert_eq!((date.year_day, date.weekday), (year_day, (days + 4) % 7), "day {days}");
            let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
            let month_len = match month {
                2 if leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (day, year_day) = (day + 1, year_day + 1);
            if day > month_len {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month, year_day) = (year + 1, 1, 1);
            }
        }
    }

    #[test]
    fn a_format_is_written_as_by_python() {
        // datetime.fromtimestamp(1_709_200_983, UTC).strftime(…), a leap day.
        let since = Duration::from_secs(1_709_200_983);
        let format = "%Y|%y|%m|%d|%j|%H|%I|%M|%S|%p|%B|%b|%A|%a|%F|%T|%%|%-m|%-d|%-I|%-M";
        let expected = "2024|24|02|29|060|10|10|03|03|AM|February|Feb|Thursday|Thu|2024-02-29|\
                        10:03:03|%|2|29|10|3";
        assert_eq!(strftime(since, format).unwrap(), expected);
        let clock = |hour: u64| strftime(Duration::from_secs(3600 * hour), "%I %p").unwrap();
        assert_eq!([0, 1, 12, 23].map(clock), ["12 AM", "01 AM", "12 PM", "11 PM"]);
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        for format in ["%Q", "%", "%-", "50%é"] {
            let error = strftime(Duration::ZERO, format).unwrap_err();
            assert!(error.detail().unwrap().starts_with("strftime_now does not know %"), "{error}");
        }
    }
}
