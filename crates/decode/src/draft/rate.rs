//! How often a guess is right, learned as it goes.

/// How many guesses of earlier sequences count at most, and how many of this one.
pub(super) const EARLIER_MAX: f32 = 12.0;
pub(super) const OWN_MAX: f32 = 64.0;

/// Each rate counts as wrong so many times more: what was always right is not certain, and a long
/// draft is as likely as the product of its rates.
const DOUBT: f32 = 1.0;

/// How often something was right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    right: f32,
    tried: f32,
}

impl Rate {
    /// Before anything is known.
    pub(super) fn guessed(chance: f32) -> Self {
        let tried = 2.0;
        Self { right: chance * (tried + DOUBT), tried }
    }

    pub(super) fn chance(self) -> f32 {
        self.right / (self.tried + DOUBT)
    }

    /// Takes a guess into account, of which so much was expected to be right: 1, or its share among
    /// several guesses.
    pub(super) fn learn(&mut self, right: bool, expected: f32, tried_max: f32) {
        self.right += f32::from(u8::from(right));
        self.tried += expected;
        self.bound(tried_max);
    }

    /// Has old guesses count less.
    pub(super) fn bound(&mut self, tried_max: f32) {
        if self.tried > tried_max {
            self.right *= tried_max / self.tried;
            self.tried = tried_max;
        }
    }
}
