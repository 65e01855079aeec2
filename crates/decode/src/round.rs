//! The heart: draft, score, verify, commit.
//!
//! A round serves any number of sequences: drafters propose for all of them, the target scores all
//! proposals in one pass, a rule turns each into a verdict, and each sequence commits what was
//! accepted and the token after it. Nothing is rolled back: the next round compares what is
//! committed with what is cached. Stop conditions and text are the caller's.
//!
//! Where a rule lets tokens be committed unscored, a drafted path begins with such tokens: a round in
//! which all of it is goes without the target, and the next pass scores them as it scores a draft.

use forerun_verify::{Block, Chance, Draft, Node, Promise, Spend, Token, Verdict};

use crate::cache::Reuse;
use crate::commit::{Commit, Dropped, FixedPath, Passes, Round, Times};
use crate::constraint::Constraint;
use crate::cost::Pass;
use crate::decoder::Decoder;
use crate::defer::Unscored;
use crate::draft::{DraftRequest, Drafter, DrafterId, Draw, FixedTokens, Shown, Watched};
use crate::engine::{Branch, Output, Rows, Step};
use crate::error::DecodeError;
use crate::gate::{self, Lesson, SeenToken, Watch};
use crate::logprob::TokenLogprob;
use crate::policy::{DraftPolicy, Limits, Plan};
use crate::sequence::Sequence;

mod stretch;

use stretch::{branches, settle};

/// A sequence's part in a round.
pub struct Turn<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// What its request allows to be drafted, and how that is verified.
    pub policy: &'a DraftPolicy,
    /// What this round drafts of that.
    pub plan: &'a Plan,
    /// How much this round may do beside.
    pub limits: Limits,
    /// Where its drafts and verdicts draw from.
    pub chance: &'a mut dyn Chance,
}

impl Decoder {
    /// Runs one round for all turns.
    ///
    /// # Errors
    /// Nothing was committed; the error says what can be done. A drafter's failure is no error: the
    /// sequence gets its next token without it, and [`Commit::dropped`] says why.
    pub fn round(&mut self, turns: &mut [Turn<'_>]) -> Result<Round, DecodeError> {
        let started = self.clock.now();
        let shares = self.draft(turns)?;
        let drafted = self.clock.now();
        self.score(turns, &shares)?;
        let scored = self.clock.now();
        let verdicts = self.verify(turns, &shares)?;
        let ran = shares.iter().filter(|share| share.runs);
        let mut counts = ran.clone().map(Share::token_count);
        let tokens = counts.clone().sum();
        let target = Pass { tokens, sequences: ran.count(), time: scored - drafted };
        // With cells of their own, sequences share a pass only as far as they have as many tokens.
        let first = counts.next();
        let even = counts.all(|count| Some(count) == first);
        let together = even || self.target.paths_max() > 1;
        let target = (together && target.sequences > 0).then_some(target);
        let features = match self.output.feature_count() {
            0 => Vec::new(),
            _ => committed_features(&shares, &verdicts),
        };
        let parts = turns.iter_mut().zip(shares).zip(verdicts);
        let commits = parts.map(|((turn, share), verdict)| commit(turn.sequence, share, verdict));
        let commits = commits.collect();
        let verified = self.clock.now();
        self.show(turns, features);
        let drafters = self.drafters.passes();
        let draft_pass = drafters.iter().map(|(_, pass)| pass.time).sum();
        let drafting = (drafted - started) + (self.clock.now() - verified);
        let times = Times {
            draft_pass,
            draft: drafting.saturating_sub(draft_pass),
            target: scored - drafted,
            verify: verified - scored,
        };
        Ok(Round { commits, times, passes: Passes { target, drafters } })
    }

    /// Has every drafter propose for the sequences whose plans name it.
    fn draft(&mut self, turns: &mut [Turn<'_>]) -> Result<Vec<Share>, DecodeError> {
        let (vocab_len, context_len) = (self.target.vocab_len(), self.target.context_len());
        let mut proposals = Vec::with_capacity(turns.len());
        for turn in &mut *turns {
            check(turn.sequence, context_len)?;
            debug_assert!(turn.policy.allows(turn.plan), "{:?} {:?}", turn.policy, turn.plan);
            let (span, plan) = (self.span(turn), turn.plan);
            // A round that only prefills commits nothing: what it drew would be lost, and the output
            // would depend on what was cached.
            let len_max = if span.only_prefills { 0 } else { draft_len_max(turn, context_len) };
            let unscored = turn.sequence.deferred.stretch.len();
            let len_max = len_max.min(self.target.forgets_max().saturating_sub(unscored));
            proposals.push(Proposal {
                span,
                draft_len_max: len_max,
                drafters: &plan.drafters,
                gates: &plan.gates,
                width: plan.width,
                request: (len_max > 0).then(|| request(turn, len_max, vocab_len)),
                fixed_paths: Vec::new(),
                seen: Seen::default(),
                dropped: Vec::new(),
            });
        }
        for (id, drafter) in self.drafters.iter_mut() {
            propose(id, &mut **drafter, &mut proposals);
        }
        let shares = proposals.into_iter().map(|proposal| proposal.finish(vocab_len));
        let mut shares = shares.collect::<Result<Vec<Share>, DecodeError>>()?;
        for (turn, share) in turns.iter().zip(&mut shares) {
            turn.policy.rule.admits(&share.draft)?;
            // Heads read hidden states, which tokens that are not scored have none of.
            let by_head = |id: &DrafterId| self.drafters[*id].kind().is_head();
            share.defer(turn, turn.plan.drafters.iter().any(by_head))?;
        }
        Ok(shares)
    }

    /// Which of a sequence's tokens run in this round.
    fn span(&self, turn: &Turn<'_>) -> Span {
        let len = turn.sequence.scored_len();
        let reuse = self.reuse(turn.sequence);
        let end = len.min(reuse.len.saturating_add(turn.limits.prefill_max.max(1)));
        Span { reuse, end, only_prefills: end < len }
    }

    /// Runs the target over what is not cached and over the drafts.
    fn score(&mut self, turns: &[Turn<'_>], shares: &[Share]) -> Result<(), DecodeError> {
        let all = || turns.iter().map(|turn| &*turn.sequence).zip(shares);
        let parts = || all().filter(|(_, share)| share.runs);
        if parts().next().is_none() {
            return Ok(());
        }
        let steps = parts().map(|(sequence, share)| Step {
            slot: sequence.slot(),
            keep: share.span.reuse.keep,
            trunk: &sequence.tokens[share.span.reuse.len..share.span.end],
            tree: &share.branches,
            rows: if share.span.only_prefills { Rows::None } else { Rows::All },
        });
        let result = self.target.extend(&steps.collect::<Vec<_>>(), &mut self.output);
        if let Err(error) = result {
            let kept = parts().map(|(sequence, share)| (sequence.slot(), share.span.reuse.keep));
            self.caches.failed(kept, &error);
            return Err(error.into());
        }
        for (sequence, Share { span, branches, .. }) in parts() {
            let trunk = &sequence.tokens[..span.end];
            self.caches.extended(sequence.slot(), span.reuse.len, trunk, branches);
        }
        Ok(())
    }

    /// Verifies each draft by the target's rows; there is nothing to verify where a prompt is still
    /// being prefilled, or the target did not run.
    fn verify(
        &mut self,
        turns: &mut [Turn<'_>],
        shares: &[Share],
    ) -> Result<Vec<Option<Verified>>, DecodeError> {
        let mut first_row = 0;
        let verdict = |(turn, share): (&mut Turn<'_>, &Share)| {
            if share.span.only_prefills || !share.runs {
                return Ok(None);
            }
            let verified = verify(turn, share, &mut self.output, first_row)?;
            first_row += share.branches.len() + 1;
            Ok(Some(verified))
        };
        turns.iter_mut().zip(shares).map(verdict).collect()
    }

    /// Shows the drafters what the target's pass said of tokens that are committed now.
    fn show(&mut self, turns: &[Turn<'_>], features: Vec<CommittedFeatures>) {
        if features.is_empty() {
            return;
        }
        let parts = turns.iter().map(|turn| &*turn.sequence).zip(features);
        let shown = parts.map(|(sequence, CommittedFeatures { start, rows })| Shown {
            slot: sequence.slot(),
            tokens: &sequence.tokens,
            start,
            features: rows.into_iter().map(|row| self.output.feature(row)).collect(),
        });
        let shown: Vec<Shown<'_>> = shown.collect();
        self.drafters.iter_mut().for_each(|(_, drafter)| drafter.show(&shown));
    }
}

/// Which feature rows of a pass belong to a sequence's committed tokens.
struct CommittedFeatures {
    /// The token of the first.
    start: usize,
    rows: Vec<usize>,
}

/// Returns, for each share, the feature rows of its trunk, of what was committed unscored, and of what
/// was accepted of its draft.
fn committed_features(shares: &[Share], verdicts: &[Option<Verified>]) -> Vec<CommittedFeatures> {
    let mut first = 0;
    let of_share = |(share, verified): (&Share, &Option<Verified>)| {
        let start = share.span.reuse.len;
        if !share.runs {
            return CommittedFeatures { start, rows: Vec::new() };
        }
        let trunk_end = first + share.span.end - start + share.stretch.len();
        let mut accepted = Vec::new();
        let verdict = verified.as_ref().and_then(|verified| verified.verdict);
        let mut node = verdict.map_or(Node::ROOT, |verdict| verdict.node);
        while let Some(parent) = share.draft.parent(node) {
            accepted.push(trunk_end + node.index() - 1);
            node = parent;
        }
        let rows = (first..trunk_end).chain(accepted.into_iter().rev()).collect();
        first += share.token_count();
        CommittedFeatures { start, rows }
    };
    shares.iter().zip(verdicts).map(of_share).collect()
}

/// Which of a sequence's committed tokens run in the target's pass.
struct Span {
    /// What is cached of them.
    reuse: Reuse,
    /// Where the trunk ends after the pass.
    end: usize,
    /// Whether tokens are left for the next round, so that there is no row to draw from.
    only_prefills: bool,
}

/// A draft for a sequence while drafters propose.
struct Proposal<'a> {
    span: Span,
    draft_len_max: usize,
    /// Those that its plan names.
    drafters: &'a [DrafterId],
    /// What looks at their paths.
    gates: &'a [Watch],
    /// How many paths one of them may propose.
    width: usize,
    /// None if nothing is to be drafted.
    request: Option<DraftRequest<'a>>,
    fixed_paths: Vec<(DrafterId, FixedTokens)>,
    seen: Seen,
    dropped: Vec<Dropped>,
}

/// One sequence's share of the target's pass.
struct Share {
    span: Span,
    draft_len_max: usize,
    /// Whether the target runs for it: always, unless all that was drafted is committed unscored.
    runs: bool,
    /// What is committed unscored: in earlier rounds, and in this one.
    stretch: Vec<Unscored>,
    /// How many of these in this one.
    fresh: usize,
    /// What is judged.
    draft: Draft,
    /// Stretch and draft as the engine takes them.
    branches: Vec<Branch>,
    fixed_paths: Vec<(DrafterId, FixedTokens)>,
    seen: Seen,
    dropped: Vec<Dropped>,
}

/// What gates saw of a draft.
#[derive(Default)]
struct Seen {
    tokens: Vec<(DrafterId, SeenToken)>,
    /// Paths they ended.
    stopped: usize,
}

/// A verdict, unless the sequence is over; the log-probabilities of its tokens if they are wanted; what
/// they and tokens committed unscored spent if the rule is lossy; and what gates learn from it.
struct Verified {
    verdict: Option<Verdict>,
    logprobs: Vec<TokenLogprob>,
    spent: Vec<Spend>,
    lessons: Vec<Lesson>,
}

impl Proposal<'_> {
    fn finish(self, vocab_len: usize) -> Result<Share, DecodeError> {
        let draft = match self.request {
            Some(request) => request.tree.finish()?,
            None => Draft::empty(vocab_len),
        };
        let branches = branches(&[], &draft);
        let Self { span, draft_len_max, fixed_paths, seen, dropped, .. } = self;
        let (runs, stretch, fresh) = (true, Vec::new(), 0);
        Ok(Share {
            span,
            draft_len_max,
            runs,
            stretch,
            fresh,
            draft,
            branches,
            fixed_paths,
            seen,
            dropped,
        })
    }
}

impl Share {
    /// Tokens it adds to the target's pass.
    fn token_count(&self) -> usize {
        self.span.end - self.span.reuse.len + self.branches.len()
    }
}

fn check(sequence: &Sequence, context_len: usize) -> Result<(), DecodeError> {
    match sequence.tokens.len() {
        0 => Err(DecodeError::EmptyPrompt),
        len if len > context_len => Err(DecodeError::ContextFull { len, context_len }),
        _ => Ok(()),
    }
}

/// Most tokens a drafter may propose: what the plan says, but never more than can be committed
/// beside the next token, than the context has room for, or than the constraint has time for. None
/// before the first token, which does not wait for a drafter's prefill. That depends on the
/// sequence alone, never on what is cached, so that a seed gives the same output either way.
fn draft_len_max(turn: &Turn<'_>, context_len: usize) -> usize {
    let Turn { sequence, plan, limits, .. } = turn;
    if plan.drafters.is_empty() || sequence.is_new() || sequence.is_over {
        return 0;
    }
    let paths = (plan.drafters.len() * plan.width).max(1);
    let room = context_len.saturating_sub(sequence.tokens.len());
    let room = room.min(sequence.masks_within(limits.mask_budget)) / paths;
    plan.draft_len.min(sequence.wanted().saturating_sub(1)).min(room)
}

fn request<'a>(turn: &'a mut Turn<'_>, len_max: usize, vocab_len: usize) -> DraftRequest<'a> {
    let (slot, prompt_len) = (turn.sequence.slot(), turn.sequence.prompt_len());
    let Sequence { tokens, sampling, constraint, .. } = &mut *turn.sequence;
    DraftRequest {
        slot,
        tokens,
        prompt_len,
        sampling,
        constraint: constraint.as_mut().map(|it| &mut **it as &mut dyn Constraint),
        len_max,
        width: turn.plan.width,
        price: turn.plan.price.clone(),
        drafter_prefill_max: turn.plan.drafter_prefill_max,
        draw: match turn.policy.rule.noise() {
            None => Draw::Chance(&mut *turn.chance),
            Some(noise) => Draw::Noise(noise),
        },
        tree: Draft::start(turn.policy.scheme, vocab_len),
        fixed_paths: Vec::new(),
        gate: None,
        failure: None,
    }
}

/// Has one drafter propose for the sequences whose plans name it.
fn propose<'a>(id: DrafterId, drafter: &mut dyn Drafter, proposals: &mut [Proposal<'a>]) {
    let named = proposals.iter_mut().filter(|it| it.drafters.contains(&id));
    let (mut named, mut requests): (Vec<&mut Proposal<'a>>, Vec<DraftRequest<'a>>) =
        named.filter_map(|it| it.request.take().map(|request| (it, request))).unzip();
    if named.is_empty() {
        return;
    }
    for (proposal, request) in named.iter().zip(&mut requests) {
        // There is room for several paths of one drafter, which is the model if there is one.
        let several = proposal.drafters.len() == 1 || drafter.kind().is_model();
        request.width = if several { proposal.width } else { 1 };
        let watch = proposal.gates.iter().find(|watch| watch.drafter == id);
        request.gate = watch.cloned().map(Watched::new);
    }
    let failed = drafter.draft(&mut requests).err();
    for (proposal, mut request) in named.iter_mut().zip(requests) {
        // What was drawn before a failure stays: dropping it for what it is would be lossy.
        if let Some(failure) = request.failure.take().or_else(|| failed.clone()) {
            proposal.dropped.push(Dropped { drafter: id, kind: drafter.kind(), failure });
        }
        proposal.fixed_paths.extend(request.fixed_paths.drain(..).map(|path| (id, path)));
        if let Some(gate) = request.gate.take() {
            proposal.seen.tokens.extend(gate.seen.into_iter().map(|token| (id, token)));
            proposal.seen.stopped += gate.stopped;
        }
        proposal.request = Some(request);
    }
}

/// Shapes the target's rows as plain decoding would at each position, and has the rule decide.
fn verify(
    turn: &mut Turn<'_>,
    share: &Share,
    output: &mut Output,
    first_row: usize,
) -> Result<Verified, DecodeError> {
    let promise = turn.policy.rule.promise();
    let (mut settled, is_over) = (settle(turn, share, output, first_row)?, turn.sequence.is_over);
    if is_over {
        return Ok(Verified {
            verdict: None,
            logprobs: Vec::new(),
            spent: settled,
            lessons: Vec::new(),
        });
    }
    let (draft, first_row) = (&share.draft, first_row + share.stretch.len());
    let scored_len = turn.sequence.scored_len();
    let Sequence { tokens, sampling, constraint, logprobs, balance, deferred, .. } =
        &mut *turn.sequence;
    let (tokens, unscored) = (&tokens[..scored_len], share.stretch.iter().map(|it| it.token));
    let needs_path = sampling.needs_path() || constraint.is_some();
    // Log-probabilities are of the rows as they came.
    let keeps_rows = logprobs.is_some() && (sampling.changes_logits() || constraint.is_some());
    let mut target = Vec::with_capacity(draft.len() + 1);
    let mut gaps = vec![f64::INFINITY; draft.len()];
    for node in std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, _, _)| node)) {
        let path: Vec<Token> = match needs_path {
            true => unscored.clone().chain(draft.path_to(node)).collect(),
            false => Vec::new(),
        };
        let logits = match keeps_rows {
            true => output.copied(first_row + node.index()),
            false => output.row_mut(first_row + node.index()),
        };
        if let Some(constraint) = constraint {
            constraint.mask(&path, logits)?;
        }
        let row = sampling.row(logits, tokens, &path)?;
        if matches!(promise, Promise::Near(_)) {
            let best = logits[row.likeliest().0.index()];
            for (child, token, _) in draft.nodes().filter(|(_, _, parent)| *parent == node) {
                gaps[child.index() - 1] = f64::from(best) - f64::from(logits[token.index()]);
            }
        }
        target.push(row);
    }
    let block = Block::new(draft, &target).expect("a row for each node, of one vocabulary");
    let position = (scored_len + share.stretch.len()) as u64;
    let block = block.at(position).with_gaps(&gaps).expect("a gap for each node");
    let block = balance.map_or(block, |balance| block.holding(balance));
    let verdict = turn.policy.rule.verify(&block, turn.chance)?;
    let mut lessons = Vec::new();
    match promise {
        Promise::Lossless => lessons = gate::lessons(&block, &share.seen.tokens),
        // Part of what gates saw is committed unscored: it is not in the block.
        Promise::Deferred(deferral) => {
            deferred.judged(draft, |parent, token| block.target(parent).prob(token));
            let mut held = settled.last().map_or(balance.unwrap_or(0.0), |last| last.balance);
            settled.resize_with(share.stretch.len() + verdict.accepted + 1, || {
                held = deferral.after(held, 0.0);
                Spend::nothing(held)
            });
        }
        _ => {
            settled = turn.policy.rule.spent(&block, &verdict).tokens;
            lessons = gate::lessons(&block, &share.seen.tokens);
        }
    }
    let row = |node: Node| output.row(first_row + node.index());
    let logprobs = logprobs.map(|top| TokenLogprob::of_verdict(row, draft, verdict, top));
    let logprobs = logprobs.unwrap_or_default();
    Ok(Verified { verdict: Some(verdict), logprobs, spent: settled, lessons })
}

/// Commits what is not judged and, if there is a verdict, what was accepted and the next token.
fn commit(sequence: &mut Sequence, share: Share, verified: Option<Verified>) -> Commit {
    let Share {
        span, draft_len_max, runs, stretch, fresh, draft, fixed_paths, seen, dropped, ..
    } = share;
    let prefilled = if runs { span.end - span.reuse.len } else { 0 };
    let commit = Commit { prefilled, draft_len_max, dropped, ..Commit::default() };
    sequence.note_masks();
    if span.only_prefills {
        return Commit { prefills: true, ..commit };
    }
    let late = stretch.len() - fresh;
    let mut tokens: Vec<Token> = stretch[late..].iter().map(|it| it.token).collect();
    sequence.deferred.stretch = if runs { Vec::new() } else { stretch };
    let (verdict, logprobs, spent, lessons) = match verified {
        Some(Verified { verdict, logprobs, spent, lessons }) => {
            sequence.balance = spent.last().map(|last| last.balance);
            (verdict, logprobs, spent, lessons)
        }
        None => (None, Vec::new(), Vec::new(), Vec::new()),
    };
    tokens.extend(verdict.map_or_else(Vec::new, |verdict| draft.path_to(verdict.node)));
    let agreed = |path: &[Token]| path.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    let judged = |(drafter, path): (DrafterId, FixedTokens)| {
        let accepted = agreed(&path.tokens);
        let predicted = path.predicted.iter().take(accepted).filter(|it| **it).count();
        FixedPath { drafter, drafted: path.tokens.len(), accepted, predicted }
    };
    let drafted = fresh + draft.len();
    // A drafter that failed may have none of its path in the draft.
    let fixed_paths = fixed_paths.into_iter().filter(|_| drafted > 0).map(judged).collect();
    let accepted = tokens.len();
    tokens.extend(verdict.map(|verdict| verdict.next));
    if let Some(constraint) = &mut sequence.constraint {
        constraint.commit(&tokens);
    }
    let committed = tokens.len();
    sequence.tokens.extend(tokens);
    let rejects = |verdict: Verdict| draft.nodes().any(|(_, _, parent)| parent == verdict.node);
    Commit {
        drafted,
        draft_len: fresh + draft.nodes().map(|(node, _, _)| draft.depth(node)).max().unwrap_or(0),
        accepted,
        deferred: fresh,
        committed,
        corrected: verdict.is_some_and(rejects),
        fixed_paths,
        logprobs,
        spent,
        lessons,
        stopped: seen.stopped,
        late: if runs { late } else { 0 },
        ..commit
    }
}
