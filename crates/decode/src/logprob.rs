//! The log-probability of each token, as APIs report it.
//!
//! These are the model's own probabilities: those of its logits before biases, penalties,
//! temperature and all else that shapes what is drawn. So they are the same whether a token was
//! drafted or not.

use forerun_verify::{Draft, Node, Token, Verdict};

/// A token's log-probability, and those of the likeliest tokens in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: Token,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The likeliest tokens, in order; ties go by id.
    pub top: Vec<(Token, f64)>,
}

impl TokenLogprob {
    /// Of a token and the `top` likeliest, by a row of logits.
    ///
    /// ```
    /// use forerun_decode::{Token, TokenLogprob};
    /// let row = [3.0_f32.ln(), 0.0];
    /// let second = TokenLogprob::of(&row, Token(1), 1);
    /// assert!((second.logprob - 0.25_f64.ln()).abs() < 1e-6);
    /// assert_eq!(second.top[0].0, Token(0));
    /// ```
    pub fn of(row: &[f32], token: Token, top: usize) -> Self {
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        let all = f64::from(highest) + sum.ln();
        let of = |index: usize| row.get(index).map_or(f64::NEG_INFINITY, |it| f64::from(*it) - all);
        Self {
            token,
            logprob: of(token.index()),
            top: likeliest(row, top).into_iter().map(|token| (token, of(token.index()))).collect(),
        }
    }

    /// Of the tokens of a verdict, by the rows they were drawn from.
    pub(crate) fn of_verdict<'a>(
        row: impl Fn(Node) -> &'a [f32],
        draft: &Draft,
        verdict: Verdict,
        top: usize,
    ) -> Vec<Self> {
        let nodes = std::iter::successors(Some(verdict.node), |node| draft.parent(*node));
        let mut nodes: Vec<Node> = nodes.collect();
        nodes.reverse();
        let tokens = draft.path_to(verdict.node).into_iter().chain([verdict.next]);
        nodes.into_iter().zip(tokens).map(|(node, token)| Self::of(row(node), token, top)).collect()
    }
}

/// The highest few of a row, in order.
fn likeliest(row: &[f32], count: usize) -> Vec<Token> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (logit, id) in row.iter().zip(0u32..) {
        if best.len() == count && best.last().is_none_or(|last| *logit <= last.0) {
            continue;
        }
        let place = best.partition_point(|(other, _)| other >= logit);
        best.insert(place, (*logit, id));
        best.truncate(count);
    }
    best.into_iter().map(|(_, id)| Token(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_in_order_and_ties_by_id() {
        let row = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        assert_eq!(likeliest(&row, 3), [1, 3, 2].map(Token));
        assert_eq!(likeliest(&row, 0), []);
        assert_eq!(likeliest(&row, 9).len(), 5);
    }

    #[test]
    fn probabilities_add_up() {
        let row = [0.5, -2.0, 7.0, 7.5];
        let first = TokenLogprob::of(&row, Token(0), 4);
        let sum: f64 = first.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{first:?}");
        assert_eq!(first.logprob, first.top[2].1);
    }
}
