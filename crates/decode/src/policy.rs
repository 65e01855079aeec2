//! What a request allows to be drafted, and what one round drafts of that.
//!
//! A [`DraftPolicy`] comes with a request and stays as it is. A [`Plan`] is made from it for each
//! round, by the controller or a scheduler, and is over with the round: one that failed leaves
//! nothing to the next.

use std::sync::Arc;
use std::time::Duration;

use forerun_verify::{BlockRule, Rule, Scheme};

use crate::draft::DrafterId;
use crate::gate::Watch;
use crate::price::Price;

/// What a request allows to be drafted, and how drafts are verified.
#[derive(Debug, Clone)]
pub struct DraftPolicy {
    /// The drafters that may propose; none for plain decoding.
    pub drafters: Vec<DrafterId>,
    /// Most tokens of a drafted path.
    pub draft_len_max: usize,
    /// Most paths of a drafter with a model, or with several places where a text may go on. Others
    /// propose one, whatever this says.
    pub width_max: usize,
    /// How those paths are drawn.
    pub scheme: Scheme,
    /// How drafts are verified.
    pub rule: Arc<dyn Rule>,
}

impl DraftPolicy {
    /// Plain decoding: the target alone.
    pub fn plain() -> Self {
        Self::drafted(Vec::new(), 0, Arc::new(BlockRule))
    }

    /// One path of each of these drafters, of at most this length, verified by this rule.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forerun_decode::{DraftPolicy, DrafterId};
    /// use forerun_verify::PooledRule;
    /// let drafters = [0, 1].map(DrafterId).to_vec();
    /// let policy = DraftPolicy::drafted(drafters, 4, Arc::new(PooledRule)).wide(2);
    /// assert_eq!((policy.plan().draft_len, policy.plan().width), (4, 2));
    /// ```
    pub fn drafted(drafters: Vec<DrafterId>, draft_len_max: usize, rule: Arc<dyn Rule>) -> Self {
        Self { drafters, draft_len_max, width_max: 1, scheme: Scheme::Independent, rule }
    }

    /// Allows so many paths of each drafter that can propose several.
    #[must_use]
    pub fn wide(mut self, width_max: usize) -> Self {
        self.width_max = width_max;
        self
    }

    /// Has paths drawn by this scheme.
    #[must_use]
    pub fn drawn(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Whether a plan stays within it.
    pub fn allows(&self, plan: &Plan) -> bool {
        plan.draft_len <= self.draft_len_max
            && plan.width <= self.width_max
            && plan.drafters.iter().all(|drafter| self.drafters.contains(drafter))
            && (self.may_stop() || !plan.gates.iter().any(Watch::stops))
    }

    /// Whether a path may end before its length by what leads to its end. Whole paths may not: how
    /// long they are would say something of the tokens on others.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forerun_decode::{DraftPolicy, DrafterId};
    /// use forerun_verify::{GbvRule, Scheme};
    /// let policy = DraftPolicy::drafted(vec![DrafterId(0)], 4, Arc::new(GbvRule::default()));
    /// assert!(policy.may_stop() && !policy.drawn(Scheme::Paths).may_stop());
    /// ```
    pub fn may_stop(&self) -> bool {
        self.scheme != Scheme::Paths
    }

    /// Returns the plan that drafts all that is allowed.
    pub fn plan(&self) -> Plan {
        Plan {
            drafters: self.drafters.clone(),
            draft_len: self.draft_len_max,
            width: self.width_max,
            drafter_prefill_max: None,
            price: Price::default(),
            gates: Vec::new(),
        }
    }
}

/// What one round drafts for a sequence, within its [`DraftPolicy`].
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The drafters that propose; none for plain decoding.
    pub drafters: Vec<DrafterId>,
    /// Most tokens of a drafted path.
    pub draft_len: usize,
    /// See [`DraftPolicy::width_max`].
    pub width: usize,
    /// A drafter with a model that has more tokens than this to prefill skips all but the last so
    /// many: enough to see whether it would be of use.
    pub drafter_prefill_max: Option<usize>,
    /// What drafted tokens cost. A drafter that knows how likely its tokens are drafts no more than
    /// pay.
    pub price: Price,
    /// What looks at the paths of drafters with a model, and may end them.
    pub gates: Vec<Watch>,
}

impl Plan {
    /// Plain decoding: nothing is drafted.
    pub fn plain() -> Self {
        Self {
            drafters: Vec::new(),
            draft_len: 0,
            width: 1,
            drafter_prefill_max: None,
            price: Price::default(),
            gates: Vec::new(),
        }
    }

    /// Leaves these drafters out.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forerun_decode::{DraftPolicy, DrafterId};
    /// use forerun_verify::PooledRule;
    /// let drafters = [0, 1].map(DrafterId).to_vec();
    /// let policy = DraftPolicy::drafted(drafters, 4, Arc::new(PooledRule));
    /// assert_eq!(policy.plan().without(&[DrafterId(0)]).drafters, [DrafterId(1)]);
    /// ```
    #[must_use]
    pub fn without(mut self, drafters: &[DrafterId]) -> Self {
        self.drafters.retain(|drafter| !drafters.contains(drafter));
        self
    }
}

/// How much one round may do for a sequence beside drafting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most of its tokens that are prefilled, so that a long prompt can be interrupted and delays
    /// other sequences little.
    pub prefill_max: usize,
    /// How long its constraint's masks may take; no limit if `None`. Drafts are kept short enough
    /// to stay within it, by what masks took in earlier rounds. The next token's mask is always
    /// made.
    pub mask_budget: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { prefill_max: 512, mask_budget: None }
    }
}
