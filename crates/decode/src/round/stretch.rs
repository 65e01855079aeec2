//! Tokens that are committed unscored: what a round takes from a draft, and what the target says of it
//! when it scores them.

use forerun_verify::{Draft, Node, Promise, Spend, Token};

use super::{Share, Turn};
use crate::defer::{self, Unscored};
use crate::engine::{Branch, Output};
use crate::error::DecodeError;
use crate::sequence::Sequence;

impl Share {
    /// Takes from the draft what is committed unscored, and has the target score what was.
    pub(super) fn defer(&mut self, turn: &Turn<'_>, by_head: bool) -> Result<(), DecodeError> {
        let Sequence { deferred, balance, constraint, logprobs, .. } = &*turn.sequence;
        if self.span.only_prefills {
            return Ok(());
        }
        // A constraint knows tokens that are committed, and log-probabilities are of rows.
        let may = constraint.is_none() && logprobs.is_none() && !by_head;
        let fresh = match turn.policy.rule.promise() {
            Promise::Deferred(deferral) if may => {
                deferred.admitted(&deferral, balance.unwrap_or(0.0), &self.draft)
            }
            _ => Vec::new(),
        };
        self.fresh = fresh.len();
        self.stretch = [deferred.stretch.as_slice(), &fresh].concat();
        if self.fresh > 0 {
            self.draft = defer::rest(&self.draft, self.fresh)?;
            self.runs = !self.draft.is_empty();
        }
        self.branches = branches(&self.stretch, &self.draft);
        Ok(())
    }
}

/// A path of tokens that are not scored, and a draft after it.
pub(super) fn branches(stretch: &[Unscored], draft: &Draft) -> Vec<Branch> {
    let path = stretch.iter().enumerate();
    let path = path.map(|(parent, unscored)| Branch { parent, token: unscored.token });
    let drafted = draft.nodes();
    let drafted = drafted.map(|(_, token, parent): (Node, _, Node)| Branch {
        parent: stretch.len() + parent.index(),
        token,
    });
    path.chain(drafted).collect()
}

/// What tokens that were committed unscored really spent, by the rows that plain decoding would have
/// drawn them from.
pub(super) fn settle(
    turn: &mut Turn<'_>,
    share: &Share,
    output: &mut Output,
    first_row: usize,
) -> Result<Vec<Spend>, DecodeError> {
    let Promise::Deferred(deferral) = turn.policy.rule.promise() else { return Ok(Vec::new()) };
    let scored_len = turn.sequence.scored_len();
    let Sequence { tokens, sampling, balance, deferred, .. } = &mut *turn.sequence;
    let path: Vec<Token> = share.stretch.iter().map(|it| it.token).collect();
    let (mut balance, mut spent) = (balance.unwrap_or(0.0), Vec::with_capacity(path.len()));
    for (place, unscored) in share.stretch.iter().enumerate() {
        let logits = output.row_mut(first_row + place);
        let row = sampling.row(logits, &tokens[..scored_len], &path[..place])?;
        let distance = unscored.spent(row.prob(unscored.token));
        balance = deferral.after(balance, distance);
        spent.push(Spend { distance, factor: 1.0, balance });
    }
    deferred.scored(&share.stretch, &spent);
    Ok(spent)
}
