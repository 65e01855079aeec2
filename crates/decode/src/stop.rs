//! Stop strings: text that ends a generation and is not part of it.
//!
//! Text is matched as it streams. Nothing is looked at twice, and only what may still turn out to
//! be the beginning of a stop string is held back. End tokens and lengths are not text, and are
//! not decided here.

/// Why a list of stop strings is refused.
///
/// ```
/// use forerun_decode::{StopError, StopStrings};
///
/// assert_eq!(StopStrings::new([""]), Err(StopError::Empty { index: 0 }));
/// assert_eq!(
///     StopStrings::new(vec!["x"; 33]).unwrap_err().to_string(),
///     "33 stop strings, at most 32 are taken"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// A string is empty, so it would stop every text before it begins.
    #[error("stop string {index} is empty")]
    Empty {
        /// Where in the list, from 0.
        index: usize,
    },
    /// A string is too long.
    #[error("stop string {index} has {bytes} bytes, at most {} are taken", StopStrings::LEN_MAX)]
    Long {
        /// Where in the list, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// There are too many strings.
    #[error("{count} stop strings, at most {} are taken", StopStrings::COUNT_MAX)]
    Many {
        /// How many.
        count: usize,
    },
}

/// A checked list of stop strings; empty by default.
///
/// ```
/// use forerun_decode::StopStrings;
///
/// let stops = StopStrings::new(["\n\n", "User:"])?;
/// assert_eq!(stops.as_slice(), ["\n\n", "User:"]);
/// # Ok::<(), forerun_decode::StopError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings(Vec<String>);

impl StopStrings {
    /// Most strings of a list.
    pub const COUNT_MAX: usize = 32;
    /// Most bytes of a string.
    pub const LEN_MAX: usize = 512;

    /// Checks a list.
    ///
    /// # Errors
    /// If a string is empty or too long, or there are too many.
    pub fn new<S: Into<String>>(list: impl IntoIterator<Item = S>) -> Result<Self, StopError> {
        let list: Vec<String> = list.into_iter().map(Into::into).collect();
        if list.len() > Self::COUNT_MAX {
            return Err(StopError::Many { count: list.len() });
        }
        for (index, stop) in list.iter().enumerate() {
            match stop.len() {
                0 => return Err(StopError::Empty { index }),
                bytes if bytes > Self::LEN_MAX => return Err(StopError::Long { index, bytes }),
                _ => {}
            }
        }
        Ok(Self(list))
    }

    /// The strings, as they were given.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// Lets text through until a stop string.
///
/// The stop is the one that ends first in the stream; of those that end together, the longest,
/// which starts first. Nothing from its start on is let through, however the text was split.
///
/// ```
/// use forerun_decode::{StopFilter, StopStrings};
///
/// let mut filter = StopFilter::new(&StopStrings::new(["User:"])?);
/// let mut text = String::new();
/// assert_eq!(filter.push("Hello. Us", &mut text), None);
/// assert_eq!(text, "Hello. "); // "Us" may become a stop.
/// assert_eq!(filter.push("ed. User", &mut text), None);
/// assert_eq!(text, "Hello. Used. ");
/// assert_eq!(filter.push(": more", &mut text), Some("User:"));
/// assert_eq!(text, "Hello. Used. ");
/// # Ok::<(), forerun_decode::StopError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopFilter {
    matchers: Vec<Matcher>,
    /// The end of the stream: the longest beginning of a stop string it ends with.
    held: String,
    /// The matcher that hit.
    hit: Option<usize>,
}

impl StopFilter {
    /// Nothing has streamed.
    pub fn new(stops: &StopStrings) -> Self {
        let list = stops.as_slice();
        // A string that has another one inside, before its end, is never the first to end. To hold
        // back its beginning would delay text for nothing.
        let can_hit = |stop: &&String| {
            let without_end = &stop.as_bytes()[..stop.len() - 1];
            !list.iter().any(|inner| contains(without_end, inner.as_bytes()))
        };
        let matchers = list.iter().filter(can_hit).map(|stop| Matcher::new(stop)).collect();
        Self { matchers, held: String::new(), hit: None }
    }

    /// Takes text, appends to `out` what is let through, and gives the stop string that was hit,
    /// if one was. After a hit all text is dropped and the same stop is given.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        if self.hit.is_none() {
            self.hit = self.feed(text, out);
        }
        self.hit()
    }

    /// The stop string that was hit.
    pub fn hit(&self) -> Option<&str> {
        self.hit.map(|index| self.matchers[index].stop.as_str())
    }

    /// Says that no more text comes: appends what was held back. After a hit that is nothing.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        for matcher in &mut self.matchers {
            matcher.matched = 0;
        }
    }

    fn feed(&mut self, text: &str, out: &mut String) -> Option<usize> {
        for (position, byte) in text.bytes().enumerate() {
            let mut longest = None;
            for (index, matcher) in self.matchers.iter_mut().enumerate() {
                if matcher.step(byte) {
                    longest = longest.max(Some((matcher.stop.len(), index)));
                }
            }
            if let Some((len, index)) = longest {
                self.release(&text[..=position], len, out);
                self.held.clear();
                return Some(index);
            }
        }
        let hold = self.matchers.iter().map(|matcher| matcher.matched).max().unwrap_or(0);
        self.release(text, hold, out);
        None
    }

    /// Appends to `out` all that was held back and `text`, but for the last `hold` bytes, which are
    /// held back. They begin as a stop string does, that is, with a character.
    fn release(&mut self, text: &str, hold: usize, out: &mut String) {
        let through = self.held.len() + text.len() - hold;
        if let Some(of_text) = through.checked_sub(self.held.len()) {
            out.push_str(&self.held);
            out.push_str(&text[..of_text]);
            self.held.clear();
            self.held.push_str(&text[of_text..]);
        } else {
            out.push_str(&self.held[..through]);
            self.held.drain(..through);
            self.held.push_str(text);
        }
    }
}

fn contains(text: &[u8], inner: &[u8]) -> bool {
    text.windows(inner.len()).any(|window| window == inner)
}

/// Knuth, Morris and Pratt's automaton for one stop string.
#[derive(Debug, Clone)]
struct Matcher {
    stop: String,
    /// `fallback[n]`: length of the longest proper prefix of the first `n + 1` bytes that they also
    /// end with.
    fallback: Vec<usize>,
    /// How many bytes of the stop string the stream ends with, at most all but one.
    matched: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let mut matcher = Self { stop: stop.to_owned(), fallback: vec![0], matched: 0 };
        // The string is its own stream: what it ends with, one byte late, is what to fall back to.
        for &byte in &stop.as_bytes()[1..] {
            matcher.step(byte);
            matcher.fallback.push(matcher.matched);
        }
        matcher.matched = 0;
        matcher
    }

    /// Takes a byte, and says whether the stop string is whole with it.
    fn step(&mut self, byte: u8) -> bool {
        let stop = self.stop.as_bytes();
        while self.matched > 0 && stop[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if stop[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == stop.len()
    }
}
