//! Clients beside each other: slots, preemption, the prefix cache, drafts and prefill.

use super::*;

const HOSTILE: Client = Client::Key(0);
const POLITE: Client = Client::Key(1);

/// Slots that a client holds.
fn held(worker: &Worker, client: Client) -> usize {
    worker.active.iter().filter(|text| text.client == client).count()
}

#[test]
fn a_client_that_waits_gets_its_share_of_slots_at_once() {
    let (mut worker, _jobs, metrics) = worker(false, 8);
    let mut hostile = Vec::new();
    for _ in 0..16 {
        let (mut job, events) = job("abc", 60, vec![]);
        job.client = HOSTILE;
        metrics.queued();
        worker.wait(vec![job]);
        hostile.push(events);
    }
    (0..5).for_each(|_| step(&mut worker));
    assert_eq!(held(&worker, HOSTILE), 3, "alone, a client has all slots");
    let (mut polite, mut events) = job("cab", 20, vec![]);
    polite.client = POLITE;
    metrics.queued();
    worker.wait(vec![polite]);
    let mut rounds = 0;
    while rounds == 0 || held(&worker, POLITE) > 0 {
        step(&mut worker);
        rounds += 1;
        assert!(held(&worker, HOSTILE) <= 2, "in round {rounds}");
    }
    assert_eq!(rounds, 20, "a token in each round from the first on");
    assert!(matches!(events.blocking_recv(), Some(Event::Round(_))));
    // The one that made way comes back before those that have not begun, and says what it would have.
    while !worker.active.is_empty() || !worker.waiting.is_empty() {
        step(&mut worker);
    }
    drop(worker);
    let alone = Running::start(false);
    let expected = alone.text("abc", 60, vec![]).text;
    alone.stop();
    for events in hostile {
        assert_eq!(done(events).text, expected);
    }
    let shown = metrics.text();
    assert!(shown.contains("vllm:num_preemptions_total{model_name=\"toy\"} 1"), "{shown}");
    assert!(shown.contains("vllm:num_requests_waiting{model_name=\"toy\"} 0"), "{shown}");
}

#[test]
fn a_suspended_text_says_what_it_would_have_whatever_judges_its_drafts() {
    // Prompts that share nothing, so that what is suspended is prefilled again, in several rounds.
    let prompts = ["abcde", "cabed", "edabc"].map(|letters| letters.repeat(16));
    let sent = |rule: RuleChoice, prompt: &str| {
        let (mut job, events) = job(prompt, 60, vec![0]);
        job.client = HOSTILE;
        job.drafting.rule = rule;
        job.drafting.plan.verification = rule.verification(7);
        job.drafting.adaptive = false;
        (job, events)
    };
    for rule in [RuleChoice::Block, RuleChoice::Coupled] {
        let alone = Running::start(false);
        let expected = prompts.each_ref().map(|prompt| {
            let (job, events) = sent(rule, prompt);
            alone.send(job);
            done(events).text
        });
        alone.stop();
        for before in [1, 4, 8, 12] {
            let (mut worker, _jobs, _) = worker(false, 8);
            let mut texts = Vec::new();
            for prompt in &prompts {
                let (job, events) = sent(rule, prompt);
                worker.wait(vec![job]);
                texts.push(events);
            }
            (0..before).for_each(|_| step(&mut worker));
            let (mut polite, _events) = job("cab", 3, vec![]);
            polite.client = POLITE;
            worker.wait(vec![polite]);
            while !worker.active.is_empty() || !worker.waiting.is_empty() {
                step(&mut worker);
            }
            drop(worker);
            for (events, expected) in texts.into_iter().zip(&expected) {
                assert_eq!(done(events).text, *expected, "{rule:?}, after {before} rounds");
            }
        }
    }
}

#[test]
fn clients_within_their_share_are_left_alone_and_take_turns() {
    let (mut worker, _jobs, metrics) = worker(false, 8);
    let mut events = Vec::new();
    // Five clients with two texts each, three slots.
    for client in [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] {
        let (mut job, receiver) = job("abc", 4, vec![]);
        job.client = Client::Key(client);
        worker.wait(vec![job]);
        events.push(receiver);
    }
    let mut order = Vec::new();
    while !worker.waiting.is_empty() {
        step(&mut worker);
        for text in &worker.active {
            if !order.contains(&text.client) {
                order.push(text.client);
            }
        }
        if order.len() == 5 {
            break;
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4].map(Client::Key));
    // The first three had their texts before, and none a second one.
    assert!(worker.active.iter().all(|text| matches!(text.client, Client::Key(0 | 3 | 4))));
    assert!(metrics.text().contains("vllm:num_preemptions_total{model_name=\"toy\"} 0"));
}

#[test]
fn a_suspended_text_that_nobody_waits_for_is_dropped() {
    let (mut worker, _jobs, metrics) = worker(false, 8);
    let mut hostile = Vec::new();
    for client in [HOSTILE, HOSTILE, HOSTILE, POLITE] {
        let (mut job, events) = job("abc", 50, vec![]);
        job.client = client;
        metrics.queued();
        worker.wait(vec![job]);
        step(&mut worker);
        hostile.push(events);
    }
    assert!(!worker.waiting.is_empty());
    drop(hostile);
    step(&mut worker);
    assert!(worker.waiting.is_empty() && worker.active.is_empty());
    assert!(metrics.text().contains("vllm:num_requests_waiting{model_name=\"toy\"} 0"));
}

#[test]
fn cached_prefixes_are_shared_by_key_and_salt_alone() {
    let server = Running::start(false);
    let prompt = "abcde".repeat(20);
    let (plain, fresh) = (server.text(&prompt, 5, vec![]).text, 0);
    let sent = |client: Client, salt: Option<&str>, cache_prompt: bool| {
        let (mut job, events) = job(&prompt, 5, vec![0]);
        job.client = client;
        job.cache = Cache { prompt: cache_prompt, salt: salt.map(Arc::from) };
        server.send(job);
        let done = done(events);
        assert_eq!(done.text, plain);
        done.tally.cached
    };
    // Another scope finds nothing, also in the very slot that holds it; then it finds its own.
    for (client, salt) in [
        (Client::Key(0), None),
        (Client::Key(1), None),
        (Client::Key(1), Some("salt")),
        (Client::Host, Some("salt")),
    ] {
        assert_eq!(sent(client, salt, true), fresh, "{client:?} {salt:?}");
        assert_eq!(sent(client, salt, false), fresh, "{client:?} {salt:?}, cache_prompt: false");
        assert_eq!(sent(client, salt, true), 99, "{client:?} {salt:?}");
    }
    server.stop();
}

#[test]
fn nobody_waits_for_a_prompt_of_another_scope() {
    let (mut worker, _jobs, _) = worker(false, 8);
    let mut receivers = Vec::new();
    let mut held = |worker: &mut Worker, client: Client| {
        let (mut job, events) = job(&"abcde".repeat(80), 5, vec![]);
        job.client = client;
        worker.wait(vec![job]);
        worker.admit();
        receivers.push(events);
        worker.active.len()
    };
    assert_eq!(held(&mut worker, Client::Key(0)), 1);
    assert_eq!(held(&mut worker, Client::Key(0)), 1, "it waits for what the other reads");
    assert_eq!(held(&mut worker, Client::Key(1)), 2);
}

#[test]
fn drafts_of_a_fixed_length_are_short_beside_a_client_that_asked_for_none() {
    let (mut worker, _jobs, _) = worker(true, 8);
    // A pass of either model takes a tenth of a second, and each token in it as much again.
    let slow = CostCurve::new([(1, 0.1), (65, 6.5)]);
    let costs = Costs { target: slow.clone(), drafters: vec![Some(slow), None] };
    worker.controller = Some(Controller::new(costs, Vec::new(), 4));
    let mut receivers = Vec::new();
    let mut send = |worker: &mut Worker, client: Client, drafters: Vec<usize>| {
        let (mut job, events) = job("abc", 400, drafters);
        (job.client, job.drafting.adaptive) = (client, false);
        worker.wait(vec![job]);
        worker.admit();
        receivers.push(events);
    };
    let asked = |worker: &mut Worker| {
        let load = worker.share_out();
        worker.choose(load);
        worker.active[0].generation.sequence().plan.draft_len
    };
    send(&mut worker, HOSTILE, vec![0]);
    send(&mut worker, HOSTILE, vec![]);
    assert_eq!(asked(&mut worker), 3, "as asked for, beside its own");
    send(&mut worker, POLITE, vec![]);
    assert_eq!(
        asked(&mut worker),
        0,
        "one token more takes the round more than half as long again"
    );
    let polite = worker.active.iter().position(|text| text.client == POLITE).unwrap();
    worker.leave(polite);
    assert_eq!(asked(&mut worker), 0, "it may come again at any moment");
    worker.served.clear();
    assert_eq!(asked(&mut worker), 3);
    send(&mut worker, POLITE, vec![0]);
    assert_eq!(asked(&mut worker), 3, "nobody is held up by what all asked for");
}

#[test]
fn the_slot_of_a_client_that_was_just_served_is_kept_for_a_moment() {
    let (mut worker, _jobs, _) = worker(false, 8);
    let mut receivers = Vec::new();
    let mut send = |worker: &mut Worker, client: Client| {
        let (mut job, events) = job("abc", 400, vec![]);
        job.client = client;
        worker.wait(vec![job]);
        worker.admit();
        receivers.push(events);
    };
    (0..4).for_each(|_| send(&mut worker, HOSTILE));
    send(&mut worker, POLITE);
    assert_eq!((held(&worker, HOSTILE), held(&worker, POLITE)), (2, 1));
    let polite = worker.active.iter().position(|text| text.client == POLITE).unwrap();
    worker.leave(polite);
    worker.admit();
    assert_eq!(held(&worker, HOSTILE), 2, "others wait");
    send(&mut worker, POLITE);
    assert_eq!(held(&worker, POLITE), 1, "it is free for the next request");
    let polite = worker.active.iter().position(|text| text.client == POLITE).unwrap();
    worker.leave(polite);
    worker.served.clear();
    worker.admit();
    assert_eq!(held(&worker, HOSTILE), 3, "it is given away afterwards");
}

#[test]
fn a_short_prompt_is_prefilled_beside_a_long_one() {
    let (mut worker, _jobs, _) = worker(false, 8);
    let mut receivers = Vec::new();
    for prompt in ["abc", &"abcde".repeat(60), &"edcba".repeat(6)] {
        let (job, events) = job(prompt, 10, vec![]);
        worker.wait(vec![job]);
        receivers.push(events);
    }
    worker.admit();
    worker.share_out();
    let parts: Vec<Part> = worker.active.iter().map(|text| text.part).collect();
    assert_eq!(parts, [Part::Speaks, Part::Reads(16), Part::Reads(16)]);
}
