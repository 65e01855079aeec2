//! One replica: rounds over the sequences it has, as `forerun serve` runs them.
//!
//! What a round takes comes from measured passes, what a draft brings from measured acceptance. Who
//! reads and who speaks is decided as the server's worker does.

use std::collections::VecDeque;

use forerun_decode::CostCurve;
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;

/// How long prefill may hold up the sequences of others in a round, and how many tokens are prefilled in
/// one. The server's worker bounds the former by 0.1 s while others decode.
const STALL_S: f64 = 0.25;
const READ_MIN: usize = 32;
const READ_MAX: usize = 512;

/// What passes take and drafts bring.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) target: CostCurve,
    /// Nothing for drafts without a model.
    pub(super) drafter: Option<CostCurve>,
    /// How often a position is accepted where all before it were.
    pub(super) accepted: Vec<f64>,
    /// Seconds of a text's round beside the passes.
    pub(super) beside_s: f64,
}

/// How much is drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drafting {
    /// Nothing.
    Off,
    /// Always so much.
    Fixed(usize),
    /// What makes the most tokens a second with the sequences at hand.
    Best,
}

impl Pair {
    /// Tokens a draft of this length commits, on average.
    pub(super) fn committed(&self, len: usize) -> f64 {
        let mut reached = 1.0;
        let mut tokens = 1.0;
        for accepted in self.accepted.iter().take(len) {
            reached *= accepted;
            tokens += reached;
        }
        tokens
    }

    /// What a round takes: so many sequences draft so much, and tokens of prompts are read beside.
    fn seconds(&self, speaking: usize, len: usize, read: usize) -> f64 {
        let target = self.target.between((speaking * (1 + len) + read) as f64);
        let drafts = match (&self.drafter, len) {
            (_, 0) | (None, _) => 0.0,
            // In the first pass a drafter also reads the token the target added.
            (Some(drafter), _) => {
                drafter.between(2.0 * speaking as f64)
                    + (len - 1) as f64 * drafter.between(speaking as f64)
            }
        };
        target + drafts + self.beside_s * speaking as f64
    }

    /// How much to draft.
    fn len(&self, drafting: Drafting, speaking: usize) -> usize {
        let rate = |len: &usize| self.committed(*len) / self.seconds(speaking, *len, 0);
        match drafting {
            Drafting::Off => 0,
            Drafting::Fixed(len) => len.min(self.accepted.len()),
            Drafting::Best => (0..=self.accepted.len())
                .max_by(|one, other| rate(one).total_cmp(&rate(other)))
                .unwrap_or(0),
        }
    }
}

/// A request at a replica.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Text {
    /// Whose it is.
    pub(super) user: usize,
    pub(super) arrived: f64,
    /// Tokens of its prompt, and those of them yet to be read.
    pub(super) prompt: usize,
    unread: usize,
    /// Tokens yet to be made, and those that were.
    left: usize,
    pub(super) made: usize,
    /// Tokens the drafter has yet to read.
    behind: usize,
    /// When its first token came.
    pub(super) first: f64,
}

impl Text {
    pub(super) fn new(user: usize, arrived: f64, prompt: usize, output: usize) -> Self {
        let (prompt, left) = (prompt.max(1), output.max(1));
        Self { user, arrived, prompt, unread: prompt, left, made: 0, behind: prompt, first: 0.0 }
    }
}

/// A server with slots, a queue and a cache of what its last sequences were.
#[derive(Debug)]
pub(super) struct Replica {
    slots: usize,
    active: Vec<Text>,
    waiting: VecDeque<Text>,
    /// Users whose sequences are cached and how long those are, the longest unused first.
    cached: VecDeque<(usize, usize)>,
    /// Prompt tokens, those that were cached, and those made.
    pub(super) prompt_tokens: usize,
    pub(super) hits: usize,
    pub(super) tokens: usize,
}

impl Replica {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            active: Vec::new(),
            waiting: VecDeque::new(),
            cached: VecDeque::new(),
            prompt_tokens: 0,
            hits: 0,
            tokens: 0,
        }
    }

    /// Sequences that are made or wait.
    pub(super) fn load(&self) -> usize {
        self.active.len() + self.waiting.len()
    }

    /// Takes a request.
    pub(super) fn take(&mut self, text: Text) {
        self.waiting.push_back(text);
    }

    /// Begins a round; gives how long it takes, or nothing where there is nothing to do. All prompts
    /// begin with the same `shared` tokens.
    pub(super) fn begin(
        &mut self,
        pair: &Pair,
        drafting: Drafting,
        shared: usize,
    ) -> Option<RoundPlan> {
        while self.active.len() < self.slots {
            let Some(mut text) = self.waiting.pop_front() else { break };
            let own = self.cached.iter().position(|(user, _)| *user == text.user);
            let own = own.and_then(|at| self.cached.remove(at)).map_or(0, |(_, len)| len);
            // Whoever was here before left the beginning that all share.
            let common = if self.tokens > 0 { shared } else { 0 };
            let hit = own.max(common).min(text.prompt - 1);
            self.hits += hit;
            self.prompt_tokens += text.prompt;
            text.unread -= hit;
            text.behind -= hit;
            self.active.push(text);
        }
        if self.active.is_empty() {
            return None;
        }
        let speaking = self.active.iter().filter(|text| text.unread == 0).count();
        let budget = match speaking {
            0 => READ_MAX,
            _ => pair.target.tokens_within(STALL_S).clamp(READ_MIN, READ_MAX),
        };
        let unread: usize = self.active.iter().map(|text| text.unread).sum();
        let read = unread.min(budget);
        let len = if speaking == 0 { 0 } else { pair.len(drafting, speaking) };
        let mut seconds = pair.seconds(speaking, len, read);
        if let Some(drafter) = pair.drafter.as_ref().filter(|_| len > 0) {
            for text in self.active.iter_mut().filter(|text| text.unread == 0) {
                let behind = std::mem::take(&mut text.behind);
                if behind > 0 {
                    seconds += drafter.between(behind as f64);
                }
            }
        }
        Some(RoundPlan { seconds, read, len })
    }

    /// Ends the round at this time; gives the sequences that ended with it.
    pub(super) fn end(
        &mut self,
        plan: &RoundPlan,
        pair: &Pair,
        now: f64,
        chance: &mut Philox,
    ) -> Vec<Text> {
        let mut read = plan.read;
        for text in &mut self.active {
            if text.unread > 0 {
                let part = text.unread.min(read);
                read -= part;
                text.unread -= part;
                // The pass that reads the last of a prompt makes the first token.
                if text.unread > 0 || part == 0 {
                    continue;
                }
            }
            let accepted = pair.accepted.iter().take(if text.made == 0 { 0 } else { plan.len });
            let accepted = accepted.take_while(|rate| unit(chance) < **rate).count();
            let made = (1 + accepted).min(text.left);
            if text.made == 0 {
                text.first = now;
            }
            text.made += made;
            text.left -= made;
            self.tokens += made;
        }
        let (ended, active) = self.active.drain(..).partition(|text| text.left == 0);
        self.active = active;
        let ended: Vec<Text> = ended;
        for text in &ended {
            self.cached.push_back((text.user, text.prompt + text.made));
        }
        // A text that is made has a slot, and what was cached there is gone.
        while self.cached.len() + self.active.len() > self.slots && !self.cached.is_empty() {
            self.cached.pop_front();
        }
        ended
    }
}

/// A round that was begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RoundPlan {
    /// What it takes.
    pub(super) seconds: f64,
    read: usize,
    len: usize,
}

/// A number from 0 to 1.
pub(super) fn unit(chance: &mut Philox) -> f64 {
    (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        Pair {
            target: CostCurve::new([(1, 0.1), (2, 0.11), (64, 0.73)]),
            drafter: Some(CostCurve::new([(1, 0.01), (64, 0.073)])),
            accepted: vec![0.5, 0.5],
            beside_s: 0.0,
        }
    }

    fn alone(drafting: Drafting, prompt: usize, output: usize) -> (f64, Text) {
        let (pair, mut chance) = (pair(), Philox::new(1));
        let mut replica = Replica::new(2);
        replica.take(Text::new(0, 0.0, prompt, output));
        let mut now = 0.0;
        loop {
            let plan = replica.begin(&pair, drafting, 0).unwrap();
            now += plan.seconds;
            if let Some(text) = replica.end(&plan, &pair, now, &mut chance).pop() {
                return (now, text);
            }
        }
    }

    #[test]
    fn a_text_alone_takes_its_prompt_s_pass_and_one_for_each_further_token() {
        let (seconds, text) = alone(Drafting::Off, 1, 5);
        assert!((seconds - 5.0 * 0.1).abs() < 1e-12, "{seconds}");
        assert_eq!((text.made, text.first), (5, 0.1));
        // 64 tokens are read in one pass, which makes the first token.
        let (seconds, text) = alone(Drafting::Off, 64, 2);
        assert!((seconds - (0.73 + 0.1)).abs() < 1e-12 && text.first == 0.73, "{seconds}");
    }

    #[test]
    fn drafts_bring_what_is_accepted_and_cost_what_passes_do() {
        assert_eq!(pair().committed(2), 1.75);
        // Rounds of 1 + 1 tokens: 0.11 for the target, the drafter reads two tokens.
        let round = 0.11 + pair().drafter.unwrap().between(2.0);
        let (seconds, _) = alone(Drafting::Fixed(1), 1, 2001);
        let expected = 0.1 + 2000.0 / 1.5 * round;
        assert!((seconds / expected - 1.0).abs() < 0.03, "{seconds} and not {expected}");
    }

    #[test]
    fn the_best_is_to_draft_alone_and_not_where_texts_are_many() {
        assert_eq!(pair().len(Drafting::Best, 1), 2);
        let mut dear = pair();
        dear.target = CostCurve::new([(1, 0.1), (2, 0.2), (64, 6.4)]);
        assert_eq!(dear.len(Drafting::Best, 8), 0);
    }

    #[test]
    fn a_conversation_that_comes_back_finds_its_text_and_one_slot_keeps_one() {
        let (pair, mut chance) = (pair(), Philox::new(1));
        let mut replica = Replica::new(1);
        let mut ask = |user, prompt| {
            replica.take(Text::new(user, 0.0, prompt, 1));
            let before = replica.hits;
            while let Some(plan) = replica.begin(&pair, Drafting::Off, 3) {
                replica.end(&plan, &pair, 0.0, &mut chance);
            }
            replica.hits - before
        };
        assert_eq!(ask(0, 10), 0);
        assert_eq!(ask(0, 20), 11, "ten tokens of the prompt and one of the answer");
        assert_eq!(ask(1, 20), 3, "what all prompts begin with");
        assert_eq!(ask(0, 30), 3, "the other took the only slot");
    }
}
