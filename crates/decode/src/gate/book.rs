//! The gates of a controller: one for each drafter and temperature, to be stored as numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::logistic::Logistic;
use super::{Gate, Lesson, Watch, Worth};
use crate::drafter_id::DrafterId;

/// How numbers are laid out; another layout gets another number.
const FORMAT: u32 = 1;

/// Most gates that are loaded: more than drafters and temperatures come to.
const GATES_MAX: usize = 1024;

/// Temperatures are told apart by tenths, up to two.
const TENTHS: f32 = 10.0;
const TENTHS_MAX: f32 = 20.0;

/// The gates that a controller uses and trains.
///
/// ```
/// use forerun_decode::{DrafterId, Gates};
/// let gates = Gates::new([(DrafterId(0), "small.gguf for large.gguf".to_owned())]);
/// assert!(gates.of(DrafterId(0), 0.8).is_none(), "nothing was seen yet");
/// assert!(gates.save().gates.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gates {
    drafters: BTreeMap<DrafterId, String>,
    /// By name and tenths of the temperature. A drafter that was loaded may not be there now.
    known: BTreeMap<(String, u32), Gate>,
}

/// Gates as numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedGates {
    /// The layout.
    pub format: u32,
    /// The gates.
    pub gates: Vec<SavedGate>,
}

/// One gate as numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedGate {
    /// Whose it is.
    pub drafter: String,
    /// At which temperature, in tenths.
    pub tenths: u32,
    /// Examples that count.
    pub seen: f64,
    /// Of these, accepted.
    pub accepted: f64,
    /// What it goes by before a draw.
    pub row: SavedFit,
    /// What it goes by after a draw.
    pub token: SavedFit,
}

/// Weights, and how firmly they are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFit {
    /// The weights.
    pub weights: Vec<f64>,
    /// The inverse of their covariance, row by row.
    pub precision: Vec<Vec<f64>>,
}

/// Why stored gates are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// Another version wrote them.
    #[error("gates of format {format}; expected {FORMAT}: delete the file to begin anew")]
    Format {
        /// Their format.
        format: u32,
    },
    /// There are more than can be.
    #[error("{gates} gates; expected at most {GATES_MAX}: delete the file to begin anew")]
    TooMany {
        /// How many.
        gates: usize,
    },
    /// A gate's numbers are none that training comes to.
    #[error(
        "the numbers of the gate of {drafter} at temperature {} cannot be right: delete the file to \
         begin anew", f64::from(*tenths) / 10.0
    )]
    Numbers {
        /// Whose it is.
        drafter: String,
        /// At which temperature.
        tenths: u32,
    },
}

impl Gates {
    /// For these drafters, by names that hold wherever the gates are stored: what drafts for what.
    pub fn new(drafters: impl IntoIterator<Item = (DrafterId, String)>) -> Self {
        Self { drafters: drafters.into_iter().collect(), known: BTreeMap::new() }
    }

    /// Takes over what was stored. What it knows already of the same drafters is replaced.
    ///
    /// # Errors
    /// If the numbers cannot be what training came to; nothing is taken over then.
    pub fn load(&mut self, saved: &SavedGates) -> Result<(), BookError> {
        let SavedGates { format, gates } = saved;
        if *format != FORMAT {
            return Err(BookError::Format { format: *format });
        }
        if gates.len() > GATES_MAX {
            return Err(BookError::TooMany { gates: gates.len() });
        }
        let gate = |saved: &SavedGate| {
            let refused =
                || BookError::Numbers { drafter: saved.drafter.clone(), tenths: saved.tenths };
            let gate = saved.gate().ok_or_else(refused)?;
            Ok(((saved.drafter.clone(), saved.tenths), gate))
        };
        let loaded: BTreeMap<_, _> = gates.iter().map(gate).collect::<Result<_, BookError>>()?;
        self.known.extend(loaded);
        Ok(())
    }

    /// Returns all it knows, as numbers. Examples that came after the last fit are not in it.
    pub fn save(&self) -> SavedGates {
        let saved = |((drafter, tenths), gate): (&(String, u32), &Gate)| SavedGate {
            drafter: drafter.clone(),
            tenths: *tenths,
            seen: gate.seen,
            accepted: gate.accepted,
            row: SavedFit::of(&gate.row),
            token: SavedFit::of(&gate.token),
        };
        SavedGates { format: FORMAT, gates: self.known.iter().map(saved).collect() }
    }

    /// The gate of a drafter at a temperature, once it has seen something.
    pub fn of(&self, drafter: DrafterId, temperature: f32) -> Option<&Gate> {
        self.known.get(&self.key(drafter, temperature)?)
    }

    /// All gates, with whose they are and at which temperature.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, &Gate)> {
        self.known.iter().map(|((drafter, tenths), gate)| {
            (drafter.as_str(), f64::from(*tenths) / f64::from(TENTHS), gate)
        })
    }

    /// What looks at a drafter's paths in one round, and ends them where they are not worth what they
    /// cost, if that is given. So many tokens were committed since one was rejected.
    ///
    /// ```
    /// # use forerun_decode::{DrafterId, Gates};
    /// let gates = Gates::new([(DrafterId(0), "small.gguf for large.gguf".to_owned())]);
    /// assert!(!gates.watch((DrafterId(0), 0.8), 0, None).stops());
    /// ```
    pub fn watch(
        &self,
        (drafter, temperature): (DrafterId, f32),
        since_rejection: usize,
        worth: Option<Worth>,
    ) -> Watch {
        let gate = self.of(drafter, temperature);
        let fitted = gate.map_or_else(|| Gate::default().fitted(), Gate::fitted);
        Watch { drafter, fitted, since_rejection, worth }
    }

    /// Whether it has gates for a drafter.
    pub(crate) fn covers(&self, drafter: DrafterId) -> bool {
        self.drafters.contains_key(&drafter)
    }

    /// Learns from a round.
    pub(crate) fn learn(&mut self, lessons: &[Lesson], temperature: f32) {
        for lesson in lessons {
            if let Some(key) = self.key(lesson.drafter, temperature) {
                self.known.entry(key).or_default().learn(lesson);
            }
        }
    }

    fn key(&self, drafter: DrafterId, temperature: f32) -> Option<(String, u32)> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let tenths = (temperature * TENTHS).round().clamp(0.0, TENTHS_MAX) as u32;
        self.drafters.get(&drafter).map(|name| (name.clone(), tenths))
    }
}

impl SavedGate {
    fn gate(&self) -> Option<Gate> {
        let sound = self.seen.is_finite() && (0.0..=self.seen).contains(&self.accepted);
        let gate = Gate {
            row: self.row.logistic()?,
            token: self.token.logistic()?,
            seen: self.seen,
            accepted: self.accepted,
            ..Gate::default()
        };
        sound.then_some(gate)
    }
}

impl SavedFit {
    fn of<const N: usize>(fitted: &Logistic<N>) -> Self {
        let precision = fitted.precision().iter().map(|row| row.to_vec()).collect();
        Self { weights: fitted.weights().to_vec(), precision }
    }

    fn logistic<const N: usize>(&self) -> Option<Logistic<N>> {
        Logistic::from_numbers(&self.weights, &self.precision)
    }
}
