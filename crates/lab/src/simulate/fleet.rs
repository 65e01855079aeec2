//! Many replicas behind a router, and the users of the fleet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;

use super::replica::{Drafting, Pair, Replica, RoundPlan, Text, unit};

/// How requests are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// To the replica that has the conversation cached, unless it is much busier than others.
    CacheAware,
    /// To each replica in turn.
    RoundRobin,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::CacheAware, Self::RoundRobin];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheAware => "cache-aware",
            Self::RoundRobin => "round-robin",
        }
    }

    /// Where requests go, for a list of all of them.
    pub fn explained(self) -> &'static str {
        match self {
            Self::CacheAware => {
                "Conversations go where their text is cached, unless that replica is far busier than \
                 others"
            }
            Self::RoundRobin => "One replica after the other",
        }
    }
}

/// A replica that knows a conversation is passed over where it has this many times the mean load,
/// and so much more than that.
const SPILL_TIMES: f64 = 1.5;
const SPILL_MORE: f64 = 1.0;

/// What is asked of the fleet.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    /// Tokens of prompts and answers; requests take one after the other.
    pub(super) lengths: Vec<(usize, usize)>,
    /// Tokens that all prompts begin with; part of their length.
    pub(super) shared: usize,
    /// Requests of a conversation, each of which has all before it in its prompt.
    pub(super) turns: usize,
    pub(super) arrivals: Arrivals,
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arrivals {
    /// So many users, each asking again when it has read for so many seconds on average.
    Users(usize, f64),
    /// So many conversations a second begin at random, whose users read as long.
    Rate(f64, f64),
}

/// The fleet.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) replicas: usize,
    /// Sequences of a replica at once.
    pub(super) slots: usize,
    pub(super) policy: Policy,
    pub(super) drafting: Drafting,
    /// Seconds of the router for each request, one after the other.
    pub(super) router_s: f64,
    /// How often the router learns how busy replicas are, in seconds; at 0 it always knows.
    pub(super) load_interval_s: f64,
}

/// What came of it, after the warm-up.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) tokens: usize,
    /// Of requests that ended.
    pub(super) first_s: Vec<f64>,
    pub(super) token_s: Vec<f64>,
    pub(super) whole_s: Vec<f64>,
    /// Share of the time that replicas worked.
    pub(super) busy: f64,
    pub(super) hit_rate: f64,
    /// Requests that wait at the end.
    pub(super) waiting: usize,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A user asks.
    Asks(usize),
    /// A conversation begins, and the next one is due.
    Begins,
    /// A request is at its replica.
    Routed(usize, usize),
    /// A replica's round is over.
    Round(usize),
    /// The router asks replicas how busy they are.
    Polls,
}

/// A conversation.
#[derive(Debug, Clone, Copy, Default)]
struct User {
    turn: usize,
    /// Tokens said so far.
    said: usize,
    /// Where it was last.
    replica: Option<usize>,
    asked: f64,
}

struct Run<'a> {
    fleet: &'a Fleet,
    work: &'a Workload,
    pair: &'a Pair,
    chance: Philox,
    queue: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Events of one time come in the order they were made.
    made: u64,
    replicas: Vec<Replica>,
    rounds: Vec<Option<RoundPlan>>,
    users: Vec<User>,
    asked: usize,
    next: usize,
    router_free: f64,
    /// What replicas said last of how busy they are.
    reported: Vec<usize>,
    /// From when to when it counts what replicas do, and the seconds they worked within.
    counted: (f64, f64),
    busy_s: f64,
}

/// Seconds that can be ordered; none is a NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Runs a fleet for so many seconds after so many of warm-up.
pub(super) fn run(
    fleet: &Fleet,
    work: &Workload,
    pair: &Pair,
    (warm_up_s, seconds): (f64, f64),
    seed: u64,
) -> Outcome {
    let mut run = Run {
        fleet,
        work,
        pair,
        chance: Philox::new(seed),
        queue: BinaryHeap::new(),
        made: 0,
        replicas: (0..fleet.replicas).map(|_| Replica::new(fleet.slots)).collect(),
        rounds: vec![None; fleet.replicas],
        users: Vec::new(),
        asked: 0,
        next: 0,
        router_free: 0.0,
        reported: vec![0; fleet.replicas],
        counted: (warm_up_s, warm_up_s + seconds),
        busy_s: 0.0,
    };
    if fleet.load_interval_s > 0.0 {
        run.at(0.0, Event::Polls);
    }
    match work.arrivals {
        Arrivals::Users(users, _) => (0..users).for_each(|_| run.new_user(0.0)),
        Arrivals::Rate(..) => run.at(0.0, Event::Begins),
    }
    let mut outcome = Outcome { seconds, ..Outcome::default() };
    let mut before = (0, 0, 0);
    let mut warm = false;
    while let Some(Reverse((Time(now), _, event))) = run.queue.pop() {
        if !warm && now >= warm_up_s {
            (before, warm) = (run.sums(), true);
        }
        if now >= warm_up_s + seconds {
            break;
        }
        for text in run.step(now, event) {
            if text.arrived >= warm_up_s {
                outcome.first_s.push(text.first - text.arrived);
                outcome.whole_s.push(now - text.arrived);
                if text.made > 1 {
                    outcome.token_s.push((now - text.first) / (text.made - 1) as f64);
                }
            }
        }
    }
    let after = run.sums();
    outcome.tokens = after.0 - before.0;
    outcome.busy = run.busy_s / (seconds * fleet.replicas as f64);
    outcome.hit_rate = (after.1 - before.1) as f64 / (after.2 - before.2).max(1) as f64;
    outcome.waiting = run.replicas.iter().map(|it| it.load().saturating_sub(fleet.slots)).sum();
    outcome
}

impl Run<'_> {
    fn at(&mut self, time: f64, event: Event) {
        self.made += 1;
        self.queue.push(Reverse((Time(time), self.made, event)));
    }

    fn new_user(&mut self, now: f64) {
        self.users.push(User::default());
        self.at(now, Event::Asks(self.users.len() - 1));
    }

    /// An exponential time.
    fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - unit(&mut self.chance)).ln()
    }

    /// Tokens made, prompt tokens cached, prompt tokens.
    fn sums(&self) -> (usize, usize, usize) {
        self.replicas.iter().fold((0, 0, 0), |sum, it| {
            (sum.0 + it.tokens, sum.1 + it.hits, sum.2 + it.prompt_tokens)
        })
    }

    /// Lets something happen; gives the sequences that ended.
    fn step(&mut self, now: f64, event: Event) -> Vec<Text> {
        match event {
            Event::Begins => {
                let Arrivals::Rate(rate, _) = self.work.arrivals else { return Vec::new() };
                self.new_user(now);
                let wait = self.wait(1.0 / rate);
                self.at(now + wait, Event::Begins);
            }
            Event::Asks(user) => {
                self.users[user].asked = now;
                self.router_free = self.router_free.max(now) + self.fleet.router_s;
                let replica = self.route(user);
                self.users[user].replica = Some(replica);
                self.at(self.router_free, Event::Routed(user, replica));
            }
            Event::Routed(user, replica) => {
                let text = self.ask(user);
                self.replicas[replica].take(text);
                self.begin(replica, now);
            }
            Event::Round(replica) => return self.round(replica, now),
            Event::Polls => {
                self.reported = self.replicas.iter().map(Replica::load).collect();
                self.at(now + self.fleet.load_interval_s, Event::Polls);
            }
        }
        Vec::new()
    }

    /// Which replica a request goes to.
    fn route(&mut self, user: usize) -> usize {
        let count = self.replicas.len();
        if self.fleet.policy == Policy::RoundRobin {
            self.next = (self.next + 1) % count;
            return self.next;
        }
        if self.fleet.load_interval_s == 0.0 {
            self.reported = self.replicas.iter().map(Replica::load).collect();
        }
        let mean = self.reported.iter().sum::<usize>() as f64 / count as f64;
        let far = |load: usize| load as f64 > (SPILL_TIMES * mean).max(mean + SPILL_MORE);
        match self.users[user].replica {
            Some(known) if !far(self.reported[known]) => known,
            _ => {
                // Of those with the least to do, another one each time.
                let first = self.chance.next_u32() as usize % count;
                let turned = |at: usize| (first + at) % count;
                let least = (0..count).min_by_key(|at| self.reported[turned(*at)]);
                turned(least.unwrap_or(0))
            }
        }
    }

    /// A user's next request.
    fn ask(&mut self, user: usize) -> Text {
        let (prompt, output) = self.work.lengths[self.asked % self.work.lengths.len()];
        self.asked += 1;
        let known = &mut self.users[user];
        let prompt = if known.turn == 0 { prompt } else { known.said + prompt - self.work.shared };
        known.said = prompt + output;
        Text::new(user, known.asked, prompt, output)
    }

    fn begin(&mut self, replica: usize, now: f64) {
        if self.rounds[replica].is_some() {
            return;
        }
        let shared = self.work.shared;
        let plan = self.replicas[replica].begin(self.pair, self.fleet.drafting, shared);
        self.rounds[replica] = plan;
        if let Some(plan) = plan {
            // A round that begins before the count or ends after it is counted in part.
            let (from, to) = self.counted;
            self.busy_s += ((now + plan.seconds).min(to) - now.max(from)).max(0.0);
            self.at(now + plan.seconds, Event::Round(replica));
        }
    }

    fn round(&mut self, replica: usize, now: f64) -> Vec<Text> {
        let Some(plan) = self.rounds[replica].take() else { return Vec::new() };
        let ended = self.replicas[replica].end(&plan, self.pair, now, &mut self.chance);
        for text in &ended {
            self.answered(text.user, now);
        }
        self.begin(replica, now);
        ended
    }

    /// A user has an answer: asks on, or begins anew.
    fn answered(&mut self, user: usize, now: f64) {
        let (Arrivals::Users(_, think) | Arrivals::Rate(_, think)) = self.work.arrivals;
        let known = &mut self.users[user];
        known.turn += 1;
        let over = known.turn >= self.work.turns;
        let wait = if think > 0.0 { self.wait(think) } else { 0.0 };
        match (over, self.work.arrivals) {
            (false, _) => self.at(now + wait, Event::Asks(user)),
            (true, Arrivals::Users(..)) => {
                self.users.push(User::default());
                let next = self.users.len() - 1;
                self.at(now + wait, Event::Asks(next));
            }
            (true, Arrivals::Rate(..)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use forerun_decode::CostCurve;

    use super::*;

    fn pair() -> Pair {
        Pair {
            target: CostCurve::new([(1, 0.1), (2, 0.1), (64, 0.1)]),
            drafter: None,
            accepted: Vec::new(),
            beside_s: 0.0,
        }
    }

    fn fleet(replicas: usize) -> Fleet {
        Fleet {
            replicas,
            slots: 4,
            policy: Policy::CacheAware,
            drafting: Drafting::Off,
            router_s: 0.0,
            load_interval_s: 0.0,
        }
    }

    fn work(arrivals: Arrivals, turns: usize) -> Workload {
        Workload { lengths: vec![(10, 20)], shared: 0, turns, arrivals }
    }

    fn run(fleet: &Fleet, work: &Workload) -> Outcome {
        super::run(fleet, work, &pair(), (20.0, 200.0), 1)
    }

    #[test]
    fn users_that_have_a_slot_each_get_a_token_every_pass() {
        let outcome = run(&fleet(2), &work(Arrivals::Users(8, 0.0), 1));
        // Eight users, ten tokens a second each.
        assert!((outcome.tokens as f64 / 200.0 / 80.0 - 1.0).abs() < 0.05, "{outcome:?}");
        assert!((outcome.busy - 1.0).abs() < 0.01 && outcome.waiting == 0);
        assert!(outcome.first_s.iter().all(|first| *first < 0.21), "{:?}", outcome.first_s);
    }

    #[test]
    fn no_replica_works_longer_than_there_is_time() {
        // A prompt takes longer to read than is simulated: the only round begins before it is counted
        // and ends after that.
        let slow = Pair { target: CostCurve::new([(1, 50.0), (64, 50.0)]), ..pair() };
        let work = work(Arrivals::Users(8, 0.0), 1);
        for time in [(1.0, 5.0), (20.0, 60.0), (0.2, 1.0)] {
            let outcome = super::run(&fleet(1), &work, &slow, time, 1);
            assert!((outcome.busy - 1.0).abs() < 1e-9, "{time:?}: {outcome:?}");
        }
        let idle = super::run(&fleet(4), &work_of_one(), &slow, (1.0, 5.0), 1);
        assert!((idle.busy - 0.25).abs() < 1e-9, "{idle:?}");
    }

    fn work_of_one() -> Workload {
        work(Arrivals::Users(1, 0.0), 1)
    }

    #[test]
    fn a_fleet_that_is_asked_for_less_than_it_can_makes_what_is_asked_for() {
        // Two conversations a second of twenty tokens, where forty could be made by one slot alone.
        let outcome = run(&fleet(4), &work(Arrivals::Rate(2.0, 1.0), 1));
        assert!((outcome.tokens as f64 / 200.0 / 40.0 - 1.0).abs() < 0.15, "{}", outcome.tokens);
        assert!(outcome.busy < 0.9);
    }

    #[test]
    fn conversations_find_their_text_where_they_are_sent_back() {
        // Nine, as eight in turn would come back to the same of four replicas by chance.
        let work = work(Arrivals::Users(9, 0.0), 4);
        let sticky = run(&fleet(4), &work).hit_rate;
        let spread = run(&Fleet { policy: Policy::RoundRobin, ..fleet(4) }, &work).hit_rate;
        assert!(sticky > 0.6 && spread < 0.5 * sticky, "{sticky} and {spread}");
    }

    #[test]
    fn a_router_that_knows_late_sends_users_after_each_other() {
        // Both see the replica idle that they have just left the other for.
        let work = work(Arrivals::Users(2, 0.0), 1);
        let late = Fleet { load_interval_s: 1.0, ..fleet(2) };
        let apart = |outcome: &Outcome| outcome.busy;
        assert!(apart(&run(&fleet(2), &work)) > 0.99);
        assert!(apart(&run(&late, &work)) < 0.9, "{}", apart(&run(&late, &work)));
    }

    #[test]
    fn a_router_that_is_too_slow_holds_all_up() {
        let slow = Fleet { router_s: 1.0, ..fleet(4) };
        let outcome = run(&slow, &work(Arrivals::Users(16, 0.0), 1));
        // One request a second, twenty tokens each, whatever the replicas could do.
        assert!((outcome.tokens as f64 / 200.0 / 20.0 - 1.0).abs() < 0.1, "{}", outcome.tokens);
    }
}
