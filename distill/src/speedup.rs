//! What a draft model would gain, by the costs that the controller reckons with.
//!
//! What passes take is measured. How many tokens of a path are accepted is not: each is taken to be
//! accepted as often as any other, whatever came before it. `forerun tune` measures both.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;

use forerun_decode::{CostCurve, Costs, DrafterId, Engine, SystemClock};
use forerun_lab::MEASURE;
use forerun_llama::{EngineOptions, LlamaEngine, LlamaHead, Model, ModelOptions};

/// Longer drafts hardly ever pay.
const LEN_MAX: usize = 16;
const DRAFTER: DrafterId = DrafterId(0);

/// What passes of a target and of a draft model take.
#[derive(Debug, Clone)]
pub struct Forecast(Costs);

/// A draft length and what it would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speedup {
    /// Tokens of a draft.
    pub len: usize,
    /// Speed-up over plain decoding; below 1 no drafting is better.
    pub speedup: f64,
}

impl Forecast {
    /// From curves.
    pub fn new(target: CostCurve, draft: CostCurve) -> Self {
        Self(Costs { target, drafters: BTreeMap::from([(DRAFTER, draft)]) })
    }

    /// Measures both, one after the other. The draft may be a head of the target.
    ///
    /// # Errors
    /// If one cannot be loaded, or a pass fails.
    pub fn measure(
        target: &Path,
        draft: &Path,
        threads: Option<NonZeroU32>,
    ) -> anyhow::Result<Self> {
        let context_len = NonZeroU32::new(256);
        let options = EngineOptions { context_len, threads, ..EngineOptions::default() };
        let target = Model::load(ModelOptions::new(target))?;
        let mut engine = LlamaEngine::new(&target, &options)?;
        let measured = |engine: &mut dyn Engine| CostCurve::measure(engine, MEASURE, &SystemClock);
        let plain = measured(&mut engine)?;
        let draft = Model::load(ModelOptions::new(draft))?;
        let drafting = match draft.head_kind() {
            Some(_) => {
                let mut head = LlamaHead::new(&draft, (&target, &mut engine), &options)?;
                measured(&mut head)?
            }
            None => measured(&mut LlamaEngine::new(&draft, &options)?)?,
        };
        Ok(Self::new(plain, drafting))
    }

    /// The draft length that is fastest if each drafted token is accepted with this probability.
    pub fn best(&self, accepted: f64) -> Speedup {
        let plain = self.0.target.seconds(1, 1);
        // The target adds a token of its own to each round.
        let (mut reached, mut tokens) = (1.0, 1.0);
        let mut best = Speedup { len: 0, speedup: 0.0 };
        for len in 1..=LEN_MAX {
            reached *= accepted;
            tokens += reached;
            let seconds = plain + self.0.drafting(&[DRAFTER], 1, len, 1);
            let speedup = tokens * plain / seconds;
            if speedup > best.speedup {
                best = Speedup { len, speedup };
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_length_is_where_one_more_token_costs_more_than_it_brings() {
        // A target's pass takes 10 ms whatever it scores, a draft's 1 ms.
        let forecast =
            Forecast::new(CostCurve::new([(1, 0.010), (64, 0.010)]), CostCurve::new([(1, 0.001)]));
        let best = forecast.best(0.5);
        // 1.5 tokens in 11 ms, 1.75 in 12, 1.875 in 13.
        assert_eq!(best.len, 2);
        assert!((best.speedup - 1.75 * 10.0 / 12.0).abs() < 1e-9, "{best:?}");
        assert!(forecast.best(0.9).len > 2);
    }

    #[test]
    fn a_draft_model_as_slow_as_its_target_gains_nothing() {
        let curve = || CostCurve::new([(1, 0.010), (64, 0.640)]);
        let best = Forecast::new(curve(), curve()).best(0.6);
        assert!(best.speedup < 0.6, "{best:?}");
    }
}
