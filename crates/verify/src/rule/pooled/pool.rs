//! One depth's pool: all sampled slots share one unit of weight, in random order.
//!
//! Slots at one node that were drawn from one row are alike and form a group. A group's *demand*
//! for a token is its share of the node's flow over the row's probability; a drawn token passes
//! with probability `min(1, demand / bar)`. The bar would ideally be the chance that the pool is
//! still full when the slot arrives, which depends on all bars: [`Pool::new`] looks for that fixed
//! point. Whatever it finds is lossless, because a passing token is granted no more than the
//! smaller of bar and chance; only the accepted length depends on how good it is.

use super::arrival::{Racers, first_chances};
use super::{Place, Takes};
use crate::block::Block;
use crate::dist::Dist;
use crate::draft::{Draft, Node, RowId, Slot};
use crate::profile::{Class, Profile, Ratio};
use crate::share::{Piece, Take};

/// Steps of the search for the bars: for good, and to tell two classes apart.
const STEPS: usize = 16;
const ROUGH_STEPS: usize = 3;
/// A distance from the fixed point that is not worth another step.
const SETTLED: f64 = 1e-9;

struct Group<'a> {
    place: usize,
    row_id: RowId,
    row: &'a Dist,
    count: usize,
    /// What turns a ratio into a demand: the node's weight over its number of slots.
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
    pub(super) fn new(block: &Block<'a>, live: &[(Node, f64)], sampled: &[(usize, Slot)]) -> Self {
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
        sampled: &[(usize, Slot)],
        mut give: impl FnMut(Node, f64),
    ) -> f64 {
        let slots: Vec<(usize, f64)> = sampled
            .iter()
            .map(|(place, slot)| {
                let same = |g: &Group<'_>| g.place == *place && Some(g.row_id) == slot.row;
                let group = self.groups.iter().position(same).expect("every slot has a group");
                let ratio = self.ratios[*place].as_ref().expect("a place with slots has a ratio");
                (group, ratio.at(draft.token(slot.child)))
            })
            .collect();
        let (mut full, mut used) = (1.0, 0.0);
        let mut chances = Vec::new();
        for class in &self.classes {
            let racers: Vec<Racers> = slots
                .iter()
                .map(|&(group, ratio)| Racers {
                    count: 1,
                    still: 1.0,
                    passes: class[group].piece(0.0).passes(ratio),
                })
                .collect();
            first_chances(&racers, &mut chances);
            for (((_, slot), &(group, _)), (racer, chance)) in
                sampled.iter().zip(&slots).zip(racers.iter().zip(&chances))
            {
                let offer = &class[group];
                if racer.passes > 0.0 && offer.chance > 0.0 {
                    let given = full * (offer.grant / offer.chance) * racer.passes * chance;
                    give(slot.child, given);
                    used += given;
                }
            }
            full *= racers.iter().map(|racer| 1.0 - racer.passes).product::<f64>();
        }
        used
    }

    /// Tells each place what its slots take.
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
    let everyone: Vec<f64> = vec![1.0; groups.len()];
    let all = vec![Class::ALL; groups.len()];
    // Two classes mostly win; one is needed roughly, to tell them apart.
    let one = solve(groups, all.clone(), &everyone, ROUGH_STEPS);
    let top = groups.iter().zip(&one).map(|(g, offer)| offer.bar * g.demand).fold(0.0, f64::max);
    let bars = groups.iter().map(|group| group.profile.snap(top / group.demand));
    let (high, low) = bars
        .map(|bar| (Class { from: bar, ..Class::ALL }, Class { from: 0.0, to: bar }))
        .unzip();
    let first = solve(groups, high, &everyone, STEPS);
    let still: Vec<f64> = first.iter().map(|offer| (1.0 - offer.passes).max(0.0)).collect();
    let second = solve(groups, low, &still, STEPS);
    let two_mean = mean(groups, &first) + mean(groups, &second);
    if two_mean > mean(groups, &one) {
        return (vec![first, second], two_mean);
    }
    let one = solve(groups, all, &everyone, STEPS);
    let one_mean = mean(groups, &one);
    if two_mean > one_mean { (vec![first, second], two_mean) } else { (vec![one], one_mean) }
}

fn mean(groups: &[Group<'_>], class: &Offers) -> f64 {
    let taken =
        |(group, offer): (&Group<'_>, &Offer)| group.count as f64 * offer.passes * offer.grant;
    groups.iter().zip(class).map(taken).sum()
}

/// The search for one class's bars.
struct Search<'g, 'a> {
    groups: &'g [Group<'a>],
    classes: Vec<Class>,
    racers: Vec<Racers>,
    chances: Vec<f64>,
}

impl Search<'_, '_> {
    /// The chances on arrival if these were the bars, as demands.
    fn try_bars(&mut self, bars: &[f64]) {
        for (index, group) in self.groups.iter().enumerate() {
            let bar = bars[index] / group.demand;
            self.racers[index].passes =
                if bar > 0.0 { group.profile.passing(bar, self.classes[index]) } else { 0.0 };
        }
        first_chances(&self.racers, &mut self.chances);
    }

    /// Bars close to the chances they lead to.
    ///
    /// Chances rise with the bars, so steps from below never overshoot, and they arrive at once
    /// where target and drafter are alike (from above they would crawl). Each step is stretched
    /// by how the last one went: Anderson's acceleration of depth one.
    fn fixed_point(&mut self, steps: usize) -> Vec<f64> {
        // The lowest chances: every token passes.
        self.try_bars(&vec![f64::MIN_POSITIVE; self.groups.len()]);
        let mut bars = self.chances.clone();
        let mut last: Option<(Vec<f64>, Vec<f64>)> = None;
        for _ in 0..steps {
            self.try_bars(&bars);
            let gap: Vec<f64> = self.chances.iter().zip(&bars).map(|(z, bar)| z - bar).collect();
            if gap.iter().all(|gap| gap.abs() < SETTLED) {
                break;
            }
            let mut next = self.chances.clone();
            if let Some((last_chances, last_gap)) = &last {
                let change = |index: usize| gap[index] - last_gap[index];
                let dot: f64 = (0..gap.len()).map(|index| gap[index] * change(index)).sum();
                let square: f64 = (0..gap.len()).map(|index| change(index) * change(index)).sum();
                let stretch = if square > 0.0 { dot / square } else { 0.0 };
                for (index, next) in next.iter_mut().enumerate() {
                    let stretched = *next - stretch * (*next - last_chances[index]);
                    // A stretch that leaves the range of chances went wrong; step plainly.
                    if stretched > 0.0 && stretched <= 1.0 {
                        *next = stretched;
                    }
                }
            }
            last = Some((self.chances.clone(), gap));
            bars = next;
        }
        bars
    }
}

/// Sets the bars of one class: near the fixed point, where answers are exact.
fn solve(groups: &[Group<'_>], classes: Vec<Class>, still: &[f64], steps: usize) -> Offers {
    let racers = groups
        .iter()
        .zip(still)
        .map(|(group, &still)| Racers { count: group.count, still, passes: 0.0 })
        .collect();
    let mut search = Search { groups, classes, racers, chances: Vec::new() };
    let mut bars = search.fixed_point(steps);
    // Where answers are exact the search ends; what was found there is what counts.
    let ratios: Vec<f64> = groups
        .iter()
        .zip(&bars)
        .map(|(group, bar)| group.profile.snap(bar / group.demand))
        .collect();
    for (bar, (ratio, group)) in bars.iter_mut().zip(ratios.iter().zip(groups)) {
        *bar = ratio * group.demand;
    }
    search.try_bars(&bars);
    let offer = |index: usize| Offer {
        class: search.classes[index],
        bar: ratios[index],
        passes: search.racers[index].passes,
        chance: search.chances[index],
        grant: search.chances[index].min(bars[index]),
    };
    (0..groups.len()).map(offer).collect()
}
