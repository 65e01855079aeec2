//! Clients beside each other: slots, preemption, the prefix cache, drafts and prefill.

use super::*;

const HOSTILE: Client = Client::Tenant(0);
const POLITE: Client = Client::Tenant(1);

/// Slots that a client holds.
fn held(worker: &Worker, client: Client) -> usize {
    worker.active.iter().filter(|text| text.client == client).count()
}

#[test]
fn a_client_that_waits_gets_its_share_of_slots_at_once() {
    let (mut worker, _requests, metrics) = worker(false, 8);
    let mut hostile = Vec::new();
    for _ in 0..16 {
        let (mut request, events) = request("abc", 60, &[]);
        request.client = HOSTILE;
        metrics.queued();
        worker.wait(vec![request]);
        hostile.push(events);
    }
    (0..5).for_each(|_| step(&mut worker));
    assert_eq!(held(&worker, HOSTILE), 3, "alone, a client has all slots");
    let (mut polite, mut events) = request("cab", 20, &[]);
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
    assert!(matches!(events.blocking_recv(), Some(Event::Progress(_))));
    // The preempted one comes back before those that have not begun, with the output it would have
    // had.
    while !worker.active.is_empty() || !worker.waiting.is_empty() {
        step(&mut worker);
    }
    drop(worker);
    let alone = Running::start(false);
    let expected = alone.text("abc", 60, &[]).text;
    alone.stop();
    for events in hostile {
        assert_eq!(done(events).text, expected);
    }
    let shown = metrics.text();
    assert!(shown.contains("vllm:num_preemptions_total{model_name=\"toy\"} 1"), "{shown}");
    assert!(shown.contains("vllm:num_requests_waiting{model_name=\"toy\"} 0"), "{shown}");
}

#[test]
fn a_suspended_sequence_has_the_output_it_would_have_had_with_any_rule() {
    // Prompts that share nothing, so that what is suspended is prefilled again, in several rounds.
    let prompts = ["abcde", "cabed", "edabc"].map(|letters| letters.repeat(16));
    let sent = |rule: RuleChoice, prompt: &str| {
        let (mut request, events) = request(prompt, 60, &[0]);
        request.client = HOSTILE;
        request.drafting.rule = rule;
        request.drafting.policy.rule = rule.with_seed(7);
        request.drafting.adaptive = false;
        (request, events)
    };
    for rule in [RuleChoice::Block, RuleChoice::Coupled] {
        let alone = Running::start(false);
        let expected = prompts.each_ref().map(|prompt| {
            let (request, events) = sent(rule, prompt);
            alone.send(request);
            done(events).text
        });
        alone.stop();
        for before in [1, 4, 8, 12] {
            let (mut worker, _requests, _) = worker(false, 8);
            let mut texts = Vec::new();
            for prompt in &prompts {
                let (request, events) = sent(rule, prompt);
                worker.wait(vec![request]);
                texts.push(events);
            }
            (0..before).for_each(|_| step(&mut worker));
            let (mut polite, _events) = request("cab", 3, &[]);
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
    let (mut worker, _requests, metrics) = worker(false, 8);
    let mut events = Vec::new();
    // Five clients with two sequences each, three slots.
    for client in [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] {
        let (mut request, receiver) = request("abc", 4, &[]);
        request.client = Client::Tenant(client);
        worker.wait(vec![request]);
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
    assert_eq!(order, [0, 1, 2, 3, 4].map(Client::Tenant));
    // The first three had a sequence before, and none a second one.
    assert!(worker.active.iter().all(|text| matches!(text.client, Client::Tenant(0 | 3 | 4))));
    assert!(metrics.text().contains("vllm:num_preemptions_total{model_name=\"toy\"} 0"));
}

#[test]
fn a_suspended_sequence_that_nobody_waits_for_is_dropped() {
    let (mut worker, _requests, metrics) = worker(false, 8);
    let mut hostile = Vec::new();
    for client in [HOSTILE, HOSTILE, HOSTILE, POLITE] {
        let (mut request, events) = request("abc", 50, &[]);
        request.client = client;
        metrics.queued();
        worker.wait(vec![request]);
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
    let (plain, fresh) = (server.text(&prompt, 5, &[]).text, 0);
    let sent = |client: Client, salt: Option<&str>, cache_prompt: bool| {
        let (mut request, events) = request(&prompt, 5, &[0]);
        request.client = client;
        request.cache = CachePolicy { shared: cache_prompt, salt: salt.map(Arc::from) };
        server.send(request);
        let done = done(events);
        assert_eq!(done.text, plain);
        done.stats.cached
    };
    // Another scope finds nothing, also in the very slot that holds it; then it finds its own.
    for (client, salt) in [
        (Client::Tenant(0), None),
        (Client::Tenant(1), None),
        (Client::Tenant(1), Some("salt")),
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
    let (mut worker, _requests, _) = worker(false, 8);
    let mut receivers = Vec::new();
    let mut held = |worker: &mut Worker, client: Client| {
        let (mut request, events) = request(&"abcde".repeat(80), 5, &[]);
        request.client = client;
        worker.wait(vec![request]);
        worker.admit();
        receivers.push(events);
        worker.active.len()
    };
    assert_eq!(held(&mut worker, Client::Tenant(0)), 1);
    assert_eq!(held(&mut worker, Client::Tenant(0)), 1, "it waits for what the other reads");
    assert_eq!(held(&mut worker, Client::Tenant(1)), 2);
}

#[test]
fn drafts_of_a_fixed_length_are_short_beside_a_client_that_asked_for_none() {
    let (mut worker, _requests, _) = worker(true, 8);
    // A pass of either model takes a tenth of a second, and each token in it as much again.
    let slow = CostCurve::new([(1, 0.1), (65, 6.5)]);
    let costs = Costs { target: slow.clone(), drafters: [(DrafterId(0), slow)].into() };
    worker.controller = Some(Controller::new(costs, Vec::new(), 4));
    let mut receivers = Vec::new();
    let mut send = |worker: &mut Worker, client: Client, drafters: &[usize]| {
        let (mut request, events) = request("abc", 400, drafters);
        (request.client, request.drafting.adaptive) = (client, false);
        worker.wait(vec![request]);
        worker.admit();
        receivers.push(events);
    };
    let asked = |worker: &mut Worker| {
        let load = worker.assign_phases();
        worker.plan_drafts(load);
        worker.active[0].drafts.plan().draft_len
    };
    send(&mut worker, HOSTILE, &[0]);
    send(&mut worker, HOSTILE, &[]);
    assert_eq!(asked(&mut worker), 3, "as asked for, beside its own");
    send(&mut worker, POLITE, &[]);
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
    send(&mut worker, POLITE, &[0]);
    assert_eq!(asked(&mut worker), 3, "nobody is held up by what all asked for");
}

#[test]
fn no_drafter_reads_what_it_missed_while_another_client_waits_for_its_first_token() {
    let (mut worker, _requests, _) = worker(true, 8);
    let mut receivers = Vec::new();
    let mut send = |worker: &mut Worker, client: Client, prompt: &str| {
        let (mut request, events) = request(&prompt.repeat(8), 400, &[0]);
        request.client = client;
        worker.wait(vec![request]);
        worker.admit();
        receivers.push(events);
    };
    let drafts = |worker: &mut Worker| {
        let load = worker.assign_phases();
        worker.plan_drafts(load);
        worker.active[0].drafts.plan().draft_len
    };
    send(&mut worker, HOSTILE, "abcde");
    // The target has read the prompt, its drafter nothing.
    worker.round();
    assert!(drafts(&mut worker) > 0);
    send(&mut worker, HOSTILE, "edcba");
    assert!(
        drafts(&mut worker) > 0,
        "what a client has to wait for on its own account is its own matter"
    );
    send(&mut worker, POLITE, "aebdc");
    assert_eq!(drafts(&mut worker), 0);
    worker.round();
    assert!(drafts(&mut worker) > 0, "as before");
}

#[test]
fn the_slot_of_a_client_that_was_just_served_is_kept_for_a_moment() {
    let (mut worker, _requests, _) = worker(false, 8);
    let mut receivers = Vec::new();
    let mut send = |worker: &mut Worker, client: Client| {
        let (mut request, events) = request("abc", 400, &[]);
        request.client = client;
        worker.wait(vec![request]);
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
    let (mut worker, _requests, _) = worker(false, 8);
    let mut receivers = Vec::new();
    for prompt in ["abc", &"abcde".repeat(60), &"edcba".repeat(15)] {
        let (request, events) = request(prompt, 10, &[]);
        worker.wait(vec![request]);
        receivers.push(events);
    }
    worker.admit();
    worker.assign_phases();
    let parts: Vec<Phase> = worker.active.iter().map(|text| text.phase).collect();
    assert_eq!(parts, [Phase::Decode, Phase::Prefill(64), Phase::Prefill(64)]);
}
