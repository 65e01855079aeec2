//! Lengths of time, as people type and read them, and the time a command may take.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The longest time limit: about four months.
const SECONDS_MAX: f64 = 1e7;

/// A length of time, as in 90s, 15m or 1h30m; a number alone counts seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Its seconds.
    pub seconds: f64,
}

impl Span {
    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

impl From<Duration> for Span {
    fn from(time: Duration) -> Self {
        Self { seconds: time.as_secs_f64() }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "expected a length of time from 1s on, such as 90s, 15m or 1h30m".to_owned();
        let (mut seconds, mut number, mut units) = (0.0, String::new(), 0);
        for character in text.chars() {
            let unit = match character {
                's' => 1.0,
                'm' => 60.0,
                'h' => 3600.0,
                digit => {
                    number.push(digit);
                    continue;
                }
            };
            units += 1;
            seconds += unit * std::mem::take(&mut number).parse::<f64>().map_err(|_| wrong())?;
        }
        if units == 0 {
            seconds = std::mem::take(&mut number).parse().map_err(|_| wrong())?;
        }
        let valid = number.is_empty() && (1.0..=SECONDS_MAX).contains(&seconds);
        if valid { Ok(Self { seconds }) } else { Err(wrong()) }
    }
}

/// The way it is typed: 8s, 1m05s, 10m, 1h30m.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length of time is positive and below SECONDS_MAX"
        )]
        let all = self.seconds.round() as u64;
        let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
        match (hours, minutes, seconds) {
            (0, 0, _) => write!(f, "{seconds}s"),
            (0, _, 0) => write!(f, "{minutes}m"),
            (0, ..) => write!(f, "{minutes}m{seconds:02}s"),
            (_, 0, _) => write!(f, "{hours}h"),
            _ => write!(f, "{hours}h{minutes:02}m"),
        }
    }
}

/// The time a command may take, counted from its start.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// When it started.
    pub started: Instant,
    /// What it may take.
    pub time: Duration,
}

impl Limit {
    /// So long from now on.
    pub fn from_now(time: Duration) -> Self {
        Self { started: Instant::now(), time }
    }

    /// When a share of the time is over.
    pub fn at(&self, share: f64) -> Instant {
        self.started + self.time.mul_f64(share)
    }

    /// The share of the time that is over.
    pub fn share(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / self.time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_units_or_are_seconds() {
        let seconds = |text: &str| text.parse::<Span>().map(|span| span.seconds);
        assert_eq!(seconds("90s"), Ok(90.0));
        assert_eq!(seconds("600"), Ok(600.0));
        assert_eq!(seconds("1h30m"), Ok(5400.0));
        assert_eq!(seconds("0.5h"), Ok(1800.0));
        for wrong in ["", "h", "-5m", "-5", "1h5", "0s", "0", "NaNs", "inf", "1e99", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lengths_of_time_are_shown_as_they_are_typed() {
        let shown = |seconds: f64| Span { seconds }.to_string();
        assert_eq!(
            [8.2, 60.0, 65.0, 600.0, 5400.0, 7200.0, 7260.0].map(shown),
            ["8s", "1m", "1m05s", "10m", "1h30m", "2h", "2h01m"]
        );
    }
}
