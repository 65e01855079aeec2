//! Penalties for tokens that were said.

use forerun_verify::Token;

use super::Sampling;

impl Sampling {
    /// Changes the logits of the last tokens of `committed` and then `path`.
    pub(super) fn penalise(&self, logits: &mut [f32], committed: &[Token], path: &[Token]) {
        let last_n = self.repeat_last_n.unwrap_or(usize::MAX);
        let path = &path[path.len().saturating_sub(last_n)..];
        let committed = &committed[committed.len().saturating_sub(last_n - path.len())..];
        let mut said = [committed, path].concat();
        said.sort_unstable();
        for same in said.chunk_by(|one, two| one == two) {
            if let Some(logit) = logits.get_mut(same[0].index()) {
                // Dividing a logit below zero would make its token likelier.
                let repeated = if *logit > 0.0 {
                    *logit / self.repeat_penalty
                } else {
                    *logit * self.repeat_penalty
                };
                let count = same.len() as f32;
                *logit = repeated - (count * self.frequency_penalty + self.presence_penalty);
            }
        }
    }
}
