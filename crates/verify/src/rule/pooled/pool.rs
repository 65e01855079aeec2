//! One depth's pool: all sampled candidates share one unit of weight, in random order.
//!
//! Candidates at one node that were drawn from one row are alike and form a group. A group's
//! *demand* for a token is its share of the node's flow over the row's probability; a drawn token
//! passes with probability `min(1, demand / bar)`. The bar would ideally be the chance that the
//! pool is still full when the candidate arrives, which depends on all bars: [`Pool::new`] looks
//! for that fixed point. Whatever it finds is lossless, because a passing token is granted no more
//! than the smaller of bar and chance; only the accepted length depends on how good it is.

use super::arrival::{Racers, first_chances};
use super::{Place, Takes};
use crate::block::Block;
use crate::dist::Dist;
use crate::draft::{Candidate, Draft, Node, RowId};
use crate::profile::{Class, Profile, Ratio};
use crate::share::{Piece, Take};

/// Most steps of the search for the bars of a class.
const STEPS: usize = 48;
/// A distance from the fixed point that is not worth another step.
const SETTLED: f64 = 1e-7;

struct Group<'a> {
    place: usize,
    row_id: RowId,
    row: &'a Dist,
    count: usize,
    /// What turns a ratio into a demand: the node's weight over its number of candidates.
    demand: f64,
    profile: Profile,
}

/// What a class of one group's tokens is offered.
#[derive(Debug, Clone, Copy)]
struct Offer {
    class: Class,
    /// The bar, as a ratio.
    bar: f64,
    /// The mean chance to pass.
    passes: f64,
    /// The chance that the pool is still full on arrival, and what of it is granted.
    chance: f64,
    grant: f64,
}

/// What a class of tokens is offered, by group.
type Offers = Vec<Offer>;

pub(super) struct Pool<'a> {
    ratios: Vec<Option<Ratio<'a>>>,
    groups: Vec<Group<'a>>,
    classes: Vec<Offers>,
    mean: f64,
}

impl<'a> Pool<'a> {
    /// Sets the bars from the rows alone: which tokens were drawn is not looked at.
    pub(super) fn new(
        block: &Block<'a>,
        live: &[(Node, f64)],
        sampled: &[(usize, Candidate)],
    ) -> Self {
        let draft = block.draft();
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut ratios = Vec::new();
        for (place, &(node, weight)) in live.iter().enumerate() {
            let rows: Vec<RowId> =
                sampled.iter().filter(|(at, _)| *at == place).filter_map(|(_, s)| s.row).collect();
            let mut distinct: Vec<(RowId, usize)> = Vec::new();
            for row in &rows {
                match distinct.iter_mut().find(|(known, _)| known == row) {
                    Some((_, count)) => *count += 1,
                    None => distinct.push((*row, 1)),
                }
            }
            let share = |count: usize| count as f64 / rows.len() as f64;
            let mixture = distinct.iter().map(|(row, n)| (share(*n), draft.draft_row(*row)));
            let ratio =
                (!rows.is_empty()).then(|| Ratio::new(block.target(node), mixture.collect()));
            for (row_id, count) in distinct {
                let row = draft.draft_row(row_id);
                let profile = ratio.as_ref().expect("it has rows").profile(row);
                let demand = weight / rows.len() as f64;
                groups.push(Group { place, row_id, row, count, demand, profile });
            }
            ratios.push(ratio);
        }
        let (classes, mean) = best_classes(&groups);
        Self { ratios, groups, classes, mean }
    }

    /// The part of the unit that is taken on average.
    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// Gives each drawn token its weight, and says how much was given in all.
    pub(super) fn realise(
        &self,
        draft: &Draft,
        sampled: &[(usize, Candidate)],
        mut give: impl FnMut(Node, f64),
    ) -> f64 {
        let candidates: Vec<(usize, f64)> = sampled
            .iter()
            .map(|(place, candidate)| {
                let same = |g: &Group<'_>| g.place == *place && Some(g.row_id) == candidate.row;
                let group = self.groups.iter().position(same).expect("every candidate has a group");
                let ratio =
                    self.ratios[*place].as_ref().expect("a place with candidates has a ratio");
                (group, ratio.at(draft.token(candidate.child)))
            })
            .collect();
        let (mut full, mut used) = (1.0, 0.0);
        let mut chances = Vec::new();
        for class in &self.classes {
            let racers: Vec<Racers> = candidates
                .iter()
                .map(|&(group, ratio)| Racers {
                    count: 1,
                    still: 1.0,
                    passes: class[group].piece(0.0).passes(ratio),
                })
                .collect();
            first_chances(&racers, &mut chances);
            for (((_, candidate), &(group, _)), (racer, chance)) in
                sampled.iter().zip(&candidates).zip(racers.iter().zip(&chances))
            {
                let offer = &class[group];
                if racer.passes > 0.0 && offer.chance > 0.0 {
                    let given = full * (offer.grant / offer.chance) * racer.passes * chance;
                    give(candidate.child, given);
                    used += given;
                }
            }
            full *= racers.iter().map(|racer| 1.0 - racer.passes).product::<f64>();
        }
        used
    }

    /// Tells each place what its candidates take.
    pub(super) fn settle(self, places: &mut [Place<'a>]) {
        for (place, ratio) in self.ratios.into_iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let mut takes = Vec::new();
            let mut taken = 0.0;
            for (index, group) in self.groups.iter().enumerate() {
                if group.place != place {
                    continue;
                }
                let count = group.count as f64;
                let offers = self.classes.iter().map(|class| class[index]);
                taken +=
                    offers.clone().map(|offer| count * offer.passes * offer.grant).sum::<f64>();
                let pieces = offers.map(|offer| offer.piece(count * offer.grant)).collect();
                takes.push(Take { row: group.row, pieces });
            }
            places[place].takes = Takes::Pooled { ratio, takes, taken };
        }
    }
}

impl Offer {
    fn piece(&self, amount: f64) -> Piece {
        Piece { class: self.class, bar: self.bar, amount }
    }
}

/// One class of all tokens, or two where the tokens in greatest demand come first, whichever
/// takes more of the unit on average.
fn best_classes(groups: &[Group<'_>]) -> (Vec<Offers>, f64) {
    let mut search = Search::new(groups);
    let one = search.solve(|_| Class::ALL);
    let one_mean = mean(groups, &one);
    let top = groups.iter().zip(&one).map(|(g, offer)| offer.bar * g.demand).fold(0.0, f64::max);
    let bars: Vec<f64> =
        groups.iter().map(|group| group.profile.snap(top / group.demand)).collect();
    let first = search.solve(|index| Class { from: bars[index], ..Class::ALL });
    if first.iter().all(|offer| offer.passes <= 0.0) {
        // Nobody is in greater demand than can be met: one class serves all.
        return (vec![one], one_mean);
    }
    search.retire(&first);
    let second = search.solve(|index| Class { from: 0.0, to: bars[index] });
    let two_mean = mean(groups, &first) + mean(groups, &second);
    if two_mean > one_mean { (vec![first, second], two_mean) } else { (vec![one], one_mean) }
}

/// The part of the unit that a class takes on average.
fn mean(groups: &[Group<'_>], class: &Offers) -> f64 {
    let taken =
        |(group, offer): (&Group<'_>, &Offer)| group.count as f64 * offer.passes * offer.grant;
    groups.iter().zip(class).map(taken).sum()
}

/// The search for the bars of one class after the other.
struct Search<'g, 'a> {
    groups: &'g [Group<'a>],
    classes: Vec<Class>,
    racers: Vec<Racers>,
    chances: Vec<f64>,
    /// The bars as demands, and as ratios.
    bars: Vec<f64>,
    ratios: Vec<f64>,
    /// Chances and their distance from the bars, at the last step.
    last: Vec<(f64, f64)>,
}

impl<'g, 'a> Search<'g, 'a> {
    fn new(groups: &'g [Group<'a>]) -> Self {
        let racers = groups.iter().map(|g| Racers { count: g.count, still: 1.0, passes: 0.0 });
        Self {
            groups,
            classes: vec![Class::ALL; groups.len()],
            racers: racers.collect(),
            chances: Vec::with_capacity(groups.len()),
            bars: vec![0.0; groups.len()],
            ratios: vec![0.0; groups.len()],
            last: vec![(0.0, 0.0); groups.len()],
        }
    }

    /// Sets the bars of one class: near the fixed point, where answers are exact.
    fn solve(&mut self, class: impl Fn(usize) -> Class) -> Offers {
        self.classes.iter_mut().enumerate().for_each(|(index, it)| *it = class(index));
        self.find_fixed_point();
        for ((ratio, bar), group) in self.ratios.iter_mut().zip(&self.bars).zip(self.groups) {
            *ratio = group.profile.snap(bar / group.demand);
        }
        self.race();
        let offer = |index: usize| Offer {
            class: self.classes[index],
            bar: self.ratios[index],
            passes: self.racers[index].passes,
            chance: self.chances[index],
            grant: self.chances[index].min(self.ratios[index] * self.groups[index].demand),
        };
        (0..self.groups.len()).map(offer).collect()
    }

    /// Takes those who passed out of the race.
    fn retire(&mut self, offers: &Offers) {
        for (racers, offer) in self.racers.iter_mut().zip(offers) {
            racers.still = (racers.still - offer.passes).max(0.0);
        }
    }

    /// The chances on arrival at the bars that stand, as ratios.
    fn race(&mut self) {
        for (index, group) in self.groups.iter().enumerate() {
            self.racers[index].passes =
                group.profile.passing(self.ratios[index], self.classes[index]);
        }
        first_chances(&self.racers, &mut self.chances);
    }

    /// The chances on arrival at the bars, as demands.
    fn race_at_bars(&mut self) {
        for ((ratio, bar), group) in self.ratios.iter_mut().zip(&self.bars).zip(self.groups) {
            *ratio = (bar / group.demand).max(f64::MIN_POSITIVE);
        }
        self.race();
    }

    /// Brings the bars close to the chances they lead to.
    ///
    /// Chances rise with the bars, so plain steps from below never overshoot, and they arrive at
    /// once where target and drafter are alike (from above they would crawl). Each step is
    /// stretched by how the last one went, Anderson's acceleration of depth one, and taken back
    /// to a plain one where that went too far.
    fn find_fixed_point(&mut self) {
        // The lowest chances: every token passes.
        self.bars.fill(0.0);
        self.race_at_bars();
        self.bars.copy_from_slice(&self.chances);
        let mut stretch = 0.0;
        for step in 0..STEPS {
            self.race_at_bars();
            let (mut lowest, mut highest, mut dot, mut square) = (0.0_f64, 0.0_f64, 0.0, 0.0);
            for (index, (_, last_gap)) in self.last.iter().enumerate() {
                let gap = self.chances[index] - self.bars[index];
                let change = gap - last_gap;
                (lowest, highest) = (lowest.min(gap), highest.max(gap));
                dot += gap * change;
                square += change * change;
            }
            if highest.max(-lowest) < SETTLED {
                break;
            }
            if stretch != 0.0 && lowest < -SETTLED {
                stretch = 0.0;
                self.bars.iter_mut().zip(&self.last).for_each(|(bar, last)| *bar = last.0);
                continue;
            }
            stretch = if step > 0 && square > 0.0 { dot / square } else { 0.0 };
            for (index, last) in self.last.iter_mut().enumerate() {
                let chance = self.chances[index];
                let stretched = chance - stretch * (chance - last.0);
                *last = (chance, chance - self.bars[index]);
                self.bars[index] = stretched.clamp(0.0, 1.0);
            }
        }
    }
}
