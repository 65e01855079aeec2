//! The heart: draft, score, verify, commit.
//!
//! A round serves any number of sequences: drafters propose for all of them, the target scores all
//! proposals in one pass, a rule turns each into a verdict, and each sequence commits what was
//! accepted and the token after it. Nothing is rolled back: the next round compares what is
//! committed with what is cached. Stop conditions and text are the caller's.

use std::time::{Duration, Instant};

use forerun_verify::{Block, Chance, Draft, DraftError, Node, Refusal, RowError, Token, Verdict};

use crate::cache::{Reuse, SlotCaches};
use crate::constraint::{Constraint, ConstraintError};
use crate::control::Costs;
use crate::cost::{CostCurve, Pass};
use crate::draft::{Ask, DraftFailure, Drafter, Draw};
use crate::engine::{Branch, Engine, EngineError, Output, Rows, Slot, Step};
use crate::logprob::TokenLogprob;
use crate::sequence::{Sequence, Verification};

/// A sequence's part in a round, and what its random choices are drawn from.
pub struct Turn<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Where its drafts and verdicts draw from.
    pub chance: &'a mut dyn Chance,
}

/// What a round did for one sequence.
#[derive(Debug, Default)]
pub struct Commit {
    /// Tokens read into the cache that needed reading: the prompt's, or one in a later round.
    pub read: usize,
    /// Most tokens of a path that drafters were asked for; none where nobody was asked.
    pub asked: usize,
    /// Tokens drafted, on all paths together.
    pub drafted: usize,
    /// Length of the longest drafted path.
    pub draft_len: usize,
    /// Drafted tokens that were accepted.
    pub accepted: usize,
    /// Tokens committed: none while a prompt is being read, else `accepted + 1`.
    pub committed: usize,
    /// Whether the last committed token stands where a drafted one was rejected.
    pub corrected: bool,
    /// Drafters that failed; this sequence goes on without them.
    pub dropped: Vec<Dropped>,
    /// The fixed paths that were drafted.
    pub guesses: Vec<Guess>,
    /// For each committed token, where the sequence wants them.
    pub logprobs: Vec<TokenLogprob>,
}

/// A fixed path that was drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess {
    /// Who guessed, by index.
    pub drafter: usize,
    /// How many tokens.
    pub drafted: usize,
    /// How many of them were committed.
    pub accepted: usize,
}

/// A drafter that failed a sequence and is no longer in its plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropped {
    /// Its index.
    pub drafter: usize,
    /// Its name.
    pub name: &'static str,
    /// What happened.
    pub failure: DraftFailure,
}

/// Where a round's time went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Passes of draft models.
    pub draft_pass: Duration,
    /// The rest of drafting: shaping and drawing from rows, looking up.
    pub draft: Duration,
    /// The target's pass.
    pub target: Duration,
    /// Shaping the target's rows and judging.
    pub verify: Duration,
}

impl Times {
    /// Adds another round's.
    pub(crate) fn add(&mut self, other: Self) {
        self.draft_pass += other.draft_pass;
        self.draft += other.draft;
        self.target += other.target;
        self.verify += other.verify;
    }
}

/// The passes of a round.
#[derive(Debug, Clone, Default)]
pub struct Passes {
    /// The target's, unless it took several.
    pub target: Option<Pass>,
    /// The drafters', by index.
    pub drafters: Vec<(usize, Pass)>,
}

/// What a round did.
#[derive(Debug)]
pub struct Round {
    /// For each turn, in order.
    pub commits: Vec<Commit>,
    /// For all of them together.
    pub times: Times,
    /// The passes it ran.
    pub passes: Passes,
}

/// Why a round failed. Nothing was committed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There is nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The sequence does not fit.
    #[error(
        "{len} tokens do not fit a context of {context_len}: shorten the prompt or raise --ctx-size"
    )]
    ContextFull {
        /// Its tokens.
        len: usize,
        /// What a slot holds.
        context_len: usize,
    },
    /// The target's memory cannot forget rejected tokens.
    #[error(
        "the target's memory is recurrent and cannot forget rejected drafts: decode without drafters"
    )]
    CannotDraft,
    /// The target's pass failed.
    #[error("target: {0}")]
    Engine(#[from] EngineError),
    /// The text cannot be held to its form.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The target gave a row that is no law.
    #[error("target: {0}")]
    Row(#[from] RowError),
    /// The rule is not lossless for the drafts it was given.
    #[error(transparent)]
    Rule(#[from] Refusal),
    /// The drafters did not draw by the plan's scheme.
    #[error("draft: {0}")]
    Draft(#[from] DraftError),
}

/// A target, its drafters, and the memory rounds reuse.
pub struct Decoder {
    target: Box<dyn Engine>,
    drafters: Vec<Box<dyn Drafter>>,
    /// What the target's slots hold.
    caches: SlotCaches,
    output: Output,
}

/// One sequence's share of the target's pass.
struct Share {
    reuse: Reuse,
    /// End of the trunk after the pass.
    end: usize,
    draft: Draft,
    /// The fixed paths in it, by drafter.
    guesses: Vec<(usize, Vec<Token>)>,
    tree: Vec<Branch>,
    rows: Rows,
}

/// What was drafted for a sequence.
struct Drafted {
    tree: Draft,
    guesses: Vec<(usize, Vec<Token>)>,
}

impl Decoder {
    /// A target and the drafters that sequences may name in their plans by index.
    ///
    /// # Errors
    /// Where there are drafters but the target cannot forget what is rejected.
    pub fn new(
        target: Box<dyn Engine>,
        drafters: Vec<Box<dyn Drafter>>,
    ) -> Result<Self, DecodeError> {
        if !drafters.is_empty() && !target.can_cut() {
            return Err(DecodeError::CannotDraft);
        }
        let caches = SlotCaches::new(target.slot_count());
        Ok(Self { target, drafters, caches, output: Output::default() })
    }

    /// The target.
    pub fn target(&self) -> &dyn Engine {
        &*self.target
    }

    /// The drafters, in the order plans name them.
    pub fn drafters(&mut self) -> &mut [Box<dyn Drafter>] {
        &mut self.drafters
    }

    /// Runs one round for all turns.
    ///
    /// # Errors
    /// Nothing was committed; the error says what can be done. A drafter's failure is no error:
    /// the sequence goes on without it and [`Commit::dropped`] says why.
    pub fn round(&mut self, turns: &mut [Turn<'_>]) -> Result<Round, DecodeError> {
        let started = Instant::now();
        let mut commits: Vec<Commit> = turns.iter().map(|_| Commit::default()).collect();
        let drafts = self.draft(turns, &mut commits)?;
        let drafted = Instant::now();
        let mut passes = Passes::default();
        for (index, drafter) in self.drafters.iter_mut().enumerate() {
            passes.drafters.extend(drafter.passes().into_iter().map(|pass| (index, pass)));
        }
        let draft_pass = passes.drafters.iter().map(|(_, pass)| pass.time).sum();
        let shares = self.score(turns, drafts)?;
        let scored = Instant::now();
        let tokens = shares.iter().map(|share| share.end - share.reuse.len + share.tree.len());
        let (tokens, time) = (tokens.sum(), scored - drafted);
        passes.target = Some(Pass { tokens, sequences: turns.len(), time });
        let mut verdicts = Vec::with_capacity(turns.len());
        let mut row = 0;
        for (turn, share) in turns.iter_mut().zip(&shares) {
            let reading = matches!(share.rows, Rows::None);
            verdicts.push(match reading {
                true => None,
                false => Some(verify(turn, &share.draft, &mut self.output, &mut row)?),
            });
        }
        for (index, (turn, share)) in turns.iter_mut().zip(&shares).enumerate() {
            commits[index].read = share.end - share.reuse.len;
            turn.sequence.note_masks();
            if let Some((verdict, logprobs)) = verdicts[index].take() {
                commits[index].logprobs = logprobs;
                commit(turn.sequence, share, verdict, &mut commits[index]);
            }
        }
        let times = Times {
            draft_pass,
            draft: (drafted - started).saturating_sub(draft_pass),
            target: scored - drafted,
            verify: scored.elapsed(),
        };
        Ok(Round { commits, times, passes })
    }

    /// Measures what passes cost, target first. The caches must be empty, and are so afterwards.
    ///
    /// # Errors
    /// Where a pass fails.
    pub fn measure(&mut self, may_take: Duration) -> Result<Costs, DecodeError> {
        let share = may_take / (1 + u32::try_from(self.drafters.len()).unwrap_or(u32::MAX - 1));
        let mut drafters = Vec::with_capacity(self.drafters.len());
        let started = Instant::now();
        for drafter in &mut self.drafters {
            drafters.push(drafter.measure(share.min(may_take / 3))?);
        }
        let left = may_take.saturating_sub(started.elapsed());
        let target = CostCurve::measure(&mut *self.target, left);
        self.caches.clear();
        let target = target?;
        Ok(Costs { target, drafters })
    }

    /// Copies the prefix of `tokens` that one slot holds to another, in the caches of target and
    /// drafters, if that is more than the other has and the engine can. Returns whether it did.
    pub fn share(&mut self, from: Slot, to: Slot, tokens: &[Token]) -> bool {
        let len = self.shares(from, tokens);
        let worth = from != to && len > self.shares(to, tokens);
        if !worth || !self.target.copy(from, to, len) {
            return false;
        }
        self.caches.copied(from, to, len);
        for drafter in &mut self.drafters {
            drafter.copy(from, to, len);
        }
        true
    }

    /// Forgets what a slot holds, in the target and all drafters, so that the next sequence there
    /// uses and learns nothing of it.
    pub fn forget(&mut self, slot: Slot) {
        self.caches.extended(slot, 0, &[], &[]);
        self.drafters.iter_mut().for_each(|drafter| drafter.forget(slot));
    }

    /// How many of these tokens the target's slot holds as a prefix, whoever left them there.
    pub fn shares(&self, slot: Slot, tokens: &[Token]) -> usize {
        self.caches.of(slot).shared(tokens)
    }

    /// How many tokens of a sequence the target has yet to run before the next can be drawn.
    pub fn unread(&self, sequence: &Sequence) -> usize {
        let cached = self.caches.of(sequence.slot());
        sequence.tokens.len() - cached.reuse(&sequence.tokens).len
    }

    /// The tokens the target's slot holds; none after an error that lost the caches
    /// ([`crate::Caches::Lost`]).
    pub fn cached_tokens(&self, slot: Slot) -> &[Token] {
        self.caches.of(slot).trunk()
    }

    /// Lets every drafter propose for the sequences that name it.
    fn draft(
        &mut self,
        turns: &mut [Turn<'_>],
        commits: &mut [Commit],
    ) -> Result<Vec<Drafted>, DecodeError> {
        let (vocab_len, context_len) = (self.target.vocab_len(), self.target.context_len());
        let mut asks: Vec<Option<Ask<'_>>> = Vec::with_capacity(turns.len());
        let mut wishes: Vec<Vec<usize>> = Vec::with_capacity(turns.len());
        for turn in &mut *turns {
            // A round that only reads commits nothing. What it drew would be lost, and the text would
            // depend on what was cached.
            let reads = self.caches.of(turn.sequence.slot()).reuse(&turn.sequence.tokens).len
                + turn.sequence.read_max.max(1);
            let len_max = match reads < turn.sequence.tokens.len() {
                true => 0,
                false => draft_len_max(turn.sequence, context_len),
            };
            let slot = turn.sequence.slot();
            let prompt_len = turn.sequence.prompt_len();
            let Sequence { tokens, sampling, constraint, plan, .. } = &mut *turn.sequence;
            let len = tokens.len();
            if len == 0 {
                return Err(DecodeError::EmptyPrompt);
            }
            if len > context_len {
                return Err(DecodeError::ContextFull { len, context_len });
            }
            commits[asks.len()].asked = len_max;
            wishes.push(plan.drafters.clone());
            asks.push((len_max > 0).then(|| Ask {
                slot,
                tokens,
                prompt_len,
                sampling,
                constraint: constraint.as_mut().map(|it| &mut **it as &mut dyn Constraint),
                len_max,
                width: plan.width,
                glance: plan.glance,
                draw: match &plan.verification {
                    Verification::Rule(_) => Draw::Chance(&mut *turn.chance),
                    Verification::Coupled(noise) => Draw::Noise(*noise),
                },
                tree: Draft::start(plan.scheme, vocab_len),
                guesses: Vec::new(),
                failure: None,
            }));
        }
        let mut guesses: Vec<Vec<(usize, Vec<Token>)>> = vec![Vec::new(); asks.len()];
        for (index, drafter) in self.drafters.iter_mut().enumerate() {
            ask(index, &mut **drafter, &mut asks, &wishes, commits);
            for (ask, guesses) in asks.iter_mut().zip(&mut guesses) {
                let made = ask.iter_mut().flat_map(|ask| ask.guesses.drain(..));
                guesses.extend(made.map(|path| (index, path)));
            }
        }
        let finish = |(ask, guesses): (Option<Ask<'_>>, _)| {
            let tree = match ask {
                Some(ask) => ask.tree.finish()?,
                None => Draft::empty(vocab_len),
            };
            Ok(Drafted { tree, guesses })
        };
        let drafts = asks.into_iter().zip(guesses).map(finish);
        let drafts: Vec<Drafted> = drafts.collect::<Result<_, DraftError>>()?;
        for ((turn, commit), draft) in turns.iter_mut().zip(&*commits).zip(&drafts) {
            let plan = &mut turn.sequence.plan;
            let failed = |drafter| commit.dropped.iter().any(|drop| drop.drafter == drafter);
            plan.drafters.retain(|drafter| !failed(*drafter));
            plan.verification.admits(&draft.tree)?;
        }
        Ok(drafts)
    }

    /// Runs the target over what is not cached and over the drafts.
    fn score(
        &mut self,
        turns: &mut [Turn<'_>],
        drafts: Vec<Drafted>,
    ) -> Result<Vec<Share>, DecodeError> {
        let share = |(turn, draft): (&Turn<'_>, Drafted)| {
            let reuse = self.caches.of(turn.sequence.slot()).reuse(&turn.sequence.tokens);
            share(turn.sequence, reuse, draft)
        };
        let shares: Vec<Share> = turns.iter().zip(drafts).map(share).collect();
        let steps = turns.iter().zip(&shares).map(|(turn, share)| Step {
            slot: turn.sequence.slot(),
            keep: share.reuse.keep,
            trunk: &turn.sequence.tokens[share.reuse.len..share.end],
            tree: &share.tree,
            rows: share.rows,
        });
        let result = self.target.extend(&steps.collect::<Vec<_>>(), &mut self.output);
        if let Err(error) = result {
            let kept = turns.iter().zip(&shares);
            let kept = kept.map(|(turn, share)| (turn.sequence.slot(), share.reuse.keep));
            self.caches.failed(kept, &error);
            return Err(error.into());
        }
        for (turn, share) in turns.iter().zip(&shares) {
            let (slot, tokens) = (turn.sequence.slot(), &turn.sequence.tokens);
            self.caches.extended(slot, share.reuse.len, &tokens[..share.end], &share.tree);
        }
        Ok(shares)
    }
}

/// Most tokens a drafter may propose: what the plan says, never more than can be committed beside
/// the next token, nor than the context holds, nor than its constraint has time for. None before the first token, which is not to wait
/// for a drafter to read the prompt; and that depends on the text alone, never on what is cached,
/// so that a seed gives the same text either way.
fn draft_len_max(sequence: &Sequence, context_len: usize) -> usize {
    if sequence.plan.drafters.is_empty() || sequence.is_new() {
        return 0;
    }
    let paths = sequence.plan.drafters.len() * sequence.plan.width;
    let room = context_len.saturating_sub(sequence.tokens.len()).min(sequence.masks_max());
    let room = room / paths.max(1);
    sequence.plan.draft_len.min(sequence.wanted().saturating_sub(1)).min(room)
}

/// Lets one drafter propose for the sequences that name it.
fn ask<'a>(
    index: usize,
    drafter: &mut dyn Drafter,
    asks: &mut [Option<Ask<'a>>],
    wishes: &[Vec<usize>],
    commits: &mut [Commit],
) {
    let wanting = |at: &usize| asks[*at].is_some() && wishes[*at].contains(&index);
    let places: Vec<usize> = (0..asks.len()).filter(wanting).collect();
    if places.is_empty() {
        return;
    }
    let mut batch: Vec<Ask<'a>> = places.iter().filter_map(|at| asks[*at].take()).collect();
    let failed = drafter.draft(&mut batch).err();
    for (at, mut ask) in places.into_iter().zip(batch) {
        // What was drawn before a failure stays: dropping it for what it is would be lossy.
        if let Some(failure) = ask.failure.take().or_else(|| failed.clone()) {
            let name = drafter.name();
            commits[at].dropped.push(Dropped { drafter: index, name, failure });
        }
        asks[at] = Some(ask);
    }
}

fn share(sequence: &Sequence, reuse: Reuse, drafted: Drafted) -> Share {
    let Drafted { tree: draft, guesses } = drafted;
    let len = sequence.tokens.len();
    let end = len.min(reuse.len + sequence.read_max.max(1));
    let rows = if end == len { Rows::All } else { Rows::None };
    let branch = |(_, token, parent): (Node, _, Node)| Branch { parent: parent.index(), token };
    let tree = draft.nodes().map(branch).collect();
    Share { reuse, end, draft, guesses, tree, rows }
}

/// Shapes the target's rows as plain decoding would at each position, and judges; with the
/// log-probabilities of what is to be committed, where they are wanted.
fn verify(
    turn: &mut Turn<'_>,
    draft: &Draft,
    output: &mut Output,
    row: &mut usize,
) -> Result<(Verdict, Vec<TokenLogprob>), DecodeError> {
    let Sequence { tokens, sampling, constraint, logprobs, plan, .. } = &mut *turn.sequence;
    let needs_path = sampling.needs_path() || constraint.is_some();
    let first = *row;
    let mut raw: Vec<Vec<f32>> = Vec::new();
    let mut target = Vec::with_capacity(draft.len() + 1);
    for node in std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, _, _)| node)) {
        let path = if needs_path { draft.path_to(node) } else { Vec::new() };
        let logits = output.row_mut(first + node.index());
        if logprobs.is_some() {
            raw.push(logits.to_vec());
        }
        if let Some(constraint) = constraint {
            constraint.mask(&path, logits)?;
        }
        target.push(sampling.row(logits, tokens, &path)?);
        *row += 1;
    }
    let block = Block::new(draft, &target).expect("a row for each node, of one vocabulary");
    let verdict = plan.verification.judge(tokens.len(), &block, turn.chance)?;
    let said = logprobs.map(|top| said(&raw, draft, verdict, top));
    Ok((verdict, said.unwrap_or_default()))
}

/// The log-probabilities of a verdict's tokens, by the rows they were drawn from.
fn said(raw: &[Vec<f32>], draft: &Draft, verdict: Verdict, top: usize) -> Vec<TokenLogprob> {
    let mut nodes = vec![verdict.node];
    while let Some((_, _, parent)) = draft.nodes().find(|(node, _, _)| Some(node) == nodes.last()) {
        nodes.push(parent);
    }
    nodes.reverse();
    let tokens = draft.path_to(verdict.node).into_iter().chain([verdict.next]);
    let of = |(node, token): (Node, Token)| TokenLogprob::of(&raw[node.index()], token, top);
    nodes.into_iter().zip(tokens).map(of).collect()
}

fn commit(sequence: &mut Sequence, share: &Share, verdict: Verdict, commit: &mut Commit) {
    let draft = &share.draft;
    let mut tokens = draft.path_to(verdict.node);
    let agreed = |path: &[Token]| path.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    let judged = |(drafter, path): &(usize, Vec<Token>)| Guess {
        drafter: *drafter,
        drafted: path.len(),
        accepted: agreed(path),
    };
    // A drafter that failed may have none of its path in the draft.
    let guesses = share.guesses.iter().filter(|_| !draft.is_empty());
    commit.guesses = guesses.map(judged).collect();
    tokens.push(verdict.next);
    if let Some(constraint) = &mut sequence.constraint {
        constraint.commit(&tokens);
    }
    sequence.tokens.extend(tokens);
    commit.drafted = draft.len();
    commit.draft_len = draft.nodes().map(|(node, _, _)| draft.depth(node)).max().unwrap_or(0);
    commit.accepted = verdict.accepted;
    commit.committed = verdict.accepted + 1;
    commit.corrected = draft.nodes().any(|(_, _, parent)| parent == verdict.node);
}
