//! What pictures share: lengths, and scales from values to places.

/// A place or a length in a picture.
pub(crate) fn px(length: f64) -> String {
    format!("{length:.1}")
}

/// From values to places along a picture.
pub(crate) struct Scale {
    /// The values at its ends.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Where its ends are in the picture.
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Scale {
    /// The place of a value; what lies beyond an end is shown at it.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// What lies between its round numbers.
    fn step(&self) -> f64 {
        step((self.high - self.low) / 5.0)
    }

    /// A round number, with as many digits as tell it from the next.
    pub(crate) fn name(&self, tick: f64) -> String {
        let digits = match self.step() {
            step if step > 0.95 => 0,
            step if step > 0.095 => 1,
            _ => 2,
        };
        format!("{tick:.digits$}")
    }

    /// Round numbers along it, six at most.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let step = self.step();
        let first = (self.low / step - 1e-9).ceil();
        let ticks = (0..6).map(|index| (first + f64::from(index)) * step);
        ticks.filter(|tick| *tick <= self.high + 1e-9 * step).collect()
    }
}

/// The next of 1, 2 and 5 times a power of ten.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-12).log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| nice * power >= least * 0.999);
    nice.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_few_round_numbers() {
        let ticks = |low, high| Scale { low, high, from: 0.0, to: 1.0 }.ticks();
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.9, 2.3), [1.0, 1.5, 2.0]);
        assert_eq!(ticks(0.0, 47.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        for high in [0.003, 0.3, 3.0, 33.0] {
            assert!((2..=6).contains(&ticks(0.0, high).len()), "{high}");
        }
    }

    #[test]
    fn values_beyond_an_end_are_shown_at_it() {
        let scale = Scale { low: 1.0, high: 2.0, from: 10.0, to: 20.0 };
        assert_eq!((scale.at(1.5), scale.at(9.0), scale.at(0.0)), (15.0, 20.0, 10.0));
    }
}
