//! Plans with a store: on tiny graphs the best of all schedules with transfers, on the corpus never
//! slower than without a store, the same again, and down to the floor.
//!
//! The brute force here shares nothing with the planner: it tries every step of the format from
//! every reachable state, with a clock as the format describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Micros, Node, NodeId, Phase, Rate, Role, Step, Storage,
    StorageId, Store, Timeline, read_graph,
};
use rekindle_plan::{
    Choice, Effort, NoWatch, Options, PlanError, Strategy, floor, floor_with_store, frontier, plan,
    smallest,
};
use rekindle_verify::verify;

fn store(rate: f64, duplex: bool) -> Store {
    let (out_rate, in_rate) = (Rate(rate), Rate(rate));
    Store { out_rate, in_rate, latency: Micros(0.0), duplex, limit: None, activations_only: false }
}

fn options(effort: Effort, store: Option<Store>) -> Options {
    Options { strategy: Strategy::SEARCH, effort, store }
}

/// A graph of three or four nodes that run, with a parameter and an input or a state of the
/// optimizer.
fn tiny(seed: u64) -> Graph {
    let mut dice = fastrand::Rng::with_seed(seed);
    let size = |dice: &mut fastrand::Rng, role| Storage { bytes: Bytes(1 + dice.u64(..6)), role };
    let other = if seed % 4 == 3 { Role::OptimizerState } else { Role::Input };
    let mut storages = vec![size(&mut dice, Role::Parameter), size(&mut dice, other)];
    let input = |name: &str, s: u32| Node::new(name, Phase::Input, 0.0, &[], &[s]);
    let mut nodes = vec![input("w", 0), input("x", 1)];
    let count = 3 + dice.u32(..2);
    for i in 0..count {
        let made = storages.len() as u32;
        let mut reads = vec![made - 1];
        if dice.bool() {
            reads.push(dice.u32(..made));
        }
        storages.push(size(&mut dice, Role::Activation));
        let time = f64::from(1 + dice.u32(..6));
        let mut node = Node::new(&format!("n{i}"), Phase::Forward, time, &reads, &[made]);
        if dice.u32(..4) == 0 {
            node.effect = Effect::Once;
        }
        node.workspace = Bytes(if dice.u32(..4) == 0 { dice.u64(..3) } else { 0 });
        nodes.push(node);
    }
    // The last node reads something old, and sometimes overwrites the parameter.
    let last = nodes.last_mut().expect("a node");
    last.reads.push(StorageId(2));
    if dice.u32(..3) == 0 {
        last.effect = Effect::Once;
        last.reads.push(StorageId(0));
        last.updates = vec![StorageId(0)];
    }
    Graph::new(GraphParts {
        name: format!("tiny{seed}"),
        origin: "random".into(),
        outputs: vec![StorageId(storages.len() as u32 - 1)],
        targets: vec![NodeId(nodes.len() as u32 - 1)],
        storages,
        nodes,
    })
    .expect("a graph")
}

/// Times are whole, or halves: in units of half a microsecond they are exact.
type Ticks = u64;

/// What a brute force knows of a moment: for each storage whether it is in memory, when that is
/// complete, when its offload ends, and when its copy is complete; what has run; the clocks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    live: Vec<bool>,
    arrives: Vec<Ticks>,
    leaves: Vec<Ticks>,
    copied: Vec<Option<Ticks>>,
    /// What is never fetched from now on.
    never: Vec<bool>,
    ran: Vec<bool>,
    compute: Ticks,
    channel: [Ticks; 2],
}

struct Brute<'g> {
    graph: &'g Graph,
    budget: u64,
    channel: Channel,
    at_start: Vec<bool>,
}

/// What a transfer takes, in ticks: for each byte out and in, and before the first byte.
#[derive(Clone, Copy, Debug)]
struct Channel {
    each: [Ticks; 2],
    latency: Ticks,
    duplex: bool,
    /// The most bytes that the store holds.
    limit: u64,
    activations_only: bool,
}

impl Channel {
    fn store(&self, all: u64) -> Store {
        let rate = |ticks: Ticks| Rate(2.0 / ticks as f64);
        Store {
            out_rate: rate(self.each[0]),
            in_rate: rate(self.each[1]),
            latency: Micros(self.latency as f64 / 2.0),
            duplex: self.duplex,
            limit: (self.limit < all).then_some(Bytes(self.limit)),
            activations_only: self.activations_only,
        }
    }
}

impl Brute<'_> {
    fn size(&self, s: usize) -> u64 {
        self.graph.storages()[s].bytes.get()
    }

    fn bytes(&self, live: &[bool]) -> u64 {
        (0..live.len()).filter(|&s| live[s]).map(|s| self.size(s)).sum()
    }

    /// Bytes in the store.
    fn held(&self, m: &Moment) -> u64 {
        let is_held = |s: &usize| m.copied[*s].is_some() || self.at_start[*s];
        (0..m.live.len()).filter(is_held).map(|s| self.size(s)).sum()
    }

    fn start(&self) -> Moment {
        let count = self.at_start.len();
        let mut live = vec![false; count];
        for s in self.graph.sources() {
            live[s.index()] = !self.at_start[s.index()];
        }
        Moment {
            live,
            arrives: vec![0; count],
            leaves: vec![0; count],
            copied: self.at_start.iter().map(|&stored| stored.then_some(0)).collect(),
            never: vec![false; count],
            ran: vec![false; self.graph.nodes().len()],
            compute: 0,
            channel: [0; 2],
        }
    }

    fn end(&self, m: &Moment) -> Option<Ticks> {
        let graph = self.graph;
        let persists = |s: &StorageId| graph.storage(*s).role.is_persistent();
        let must = graph.sources().filter(persists).chain(graph.outputs().iter().copied());
        let must_ran = |n: &NodeId| m.ran[n.index()];
        let updates = graph.node_ids().filter(|n| !graph.node(*n).updates.is_empty());
        let mut must = must;
        let is_right = must.all(|s| m.live[s.index()] != self.at_start[s.index()])
            && (0..m.live.len()).all(|s| !self.at_start[s] || m.copied[s].is_some())
            && graph.targets().iter().all(must_ran)
            && updates.into_iter().all(|n| must_ran(&n));
        is_right.then(|| m.compute.max(m.channel[0]).max(m.channel[1]))
    }

    /// Everything that one step leads to.
    fn next(&self, m: &Moment) -> Vec<Moment> {
        let mut all = Vec::new();
        for s in 0..m.live.len() {
            let is_persistent = self.graph.storages()[s].role.is_persistent();
            if m.live[s] && (!is_persistent || m.copied[s].is_some()) {
                let mut next = m.clone();
                next.compute = next.compute.max(m.leaves[s]).max(m.arrives[s]);
                next.live[s] = false;
                // If it is never fetched again, the store has its room back.
                let matters = self.channel.limit < u64::MAX && m.copied[s].is_some();
                if matters && !self.at_start[s] && !is_persistent {
                    let mut last = next.clone();
                    (last.copied[s], last.never[s]) = (None, true);
                    all.push(last);
                }
                all.push(next);
            }
            let stays = is_persistent && self.channel.activations_only;
            if m.live[s] && m.copied[s].is_none() && !stays {
                let mut next = m.clone();
                let end = self.transfer(&mut next, 0, s, m.arrives[s]);
                (next.leaves[s], next.copied[s]) = (end, Some(end));
                all.extend((self.held(&next) <= self.channel.limit).then_some(next));
            }
            if let (false, false, Some(copied)) = (m.live[s], m.never[s], m.copied[s]) {
                let mut next = m.clone();
                next.arrives[s] = self.transfer(&mut next, 1, s, copied);
                (next.leaves[s], next.live[s]) = (0, true);
                all.extend((self.bytes(&next.live) <= self.budget).then_some(next));
            }
        }
        all.extend(self.graph.node_ids().filter_map(|id| self.run(m, id)));
        all.into_iter().map(settled).collect()
    }

    fn run(&self, m: &Moment, id: NodeId) -> Option<Moment> {
        let node = self.graph.node(id);
        let again = m.ran[id.index()] && node.effect == Effect::Once;
        let readable = |s: &StorageId| {
            let updater = self.graph.updater(*s);
            m.live[s.index()] && !updater.is_some_and(|u| m.ran[u.index()])
        };
        if node.phase == Phase::Input || again || !node.reads.iter().all(readable) {
            return None;
        }
        let mut next = m.clone();
        for r in &node.reads {
            next.compute = next.compute.max(m.arrives[r.index()]);
        }
        for u in &node.updates {
            next.compute = next.compute.max(m.leaves[u.index()]);
            next.copied[u.index()] = None;
        }
        let mut scratch = node.workspace.get();
        for w in node.writes.iter().map(|w| w.index()) {
            match std::mem::replace(&mut next.live[w], true) {
                true => scratch += self.size(w),
                false => (next.arrives[w], next.leaves[w]) = (0, 0),
            }
        }
        next.ran[id.index()] = true;
        next.compute += 2 * node.time.get() as Ticks;
        (self.bytes(&next.live) + scratch <= self.budget).then_some(next)
    }

    fn transfer(&self, m: &mut Moment, way: usize, s: usize, not_before: Ticks) -> Ticks {
        let begin = m.compute.max(m.channel[way]).max(not_before);
        let end = begin + self.channel.latency + self.channel.each[way] * self.size(s);
        match self.channel.duplex {
            true => m.channel[way] = end,
            false => m.channel = [end; 2],
        }
        end
    }

    /// The least time, by every reachable moment that is not later than `limit`, earliest first.
    fn least(&self, limit: Ticks) -> Option<Ticks> {
        let start = self.start();
        if self.bytes(&start.live) > self.budget || self.held(&start) > self.channel.limit {
            return None;
        }
        let mut best = limit + 1;
        let mut seen = BTreeSet::from([start.clone()]);
        let mut open = BTreeMap::from([(0, vec![start])]);
        while let Some((compute, moments)) = open.pop_first() {
            if compute >= best {
                break;
            }
            for m in moments {
                best = self.end(&m).map_or(best, |end| best.min(end));
                for next in self.next(&m) {
                    let latest = next.compute.max(next.channel[0]).max(next.channel[1]);
                    if latest < best && seen.insert(next.clone()) {
                        open.entry(next.compute).or_default().push(next);
                    }
                }
            }
        }
        (best <= limit).then_some(best)
    }
}

/// What is over is as good as over now.
fn settled(mut m: Moment) -> Moment {
    let now = m.compute;
    for s in 0..m.live.len() {
        let in_memory = |time: Ticks| if m.live[s] { time.max(now) } else { now };
        (m.arrives[s], m.leaves[s]) = (in_memory(m.arrives[s]), in_memory(m.leaves[s]));
        m.copied[s] = m.copied[s].map(|time| time.max(now));
    }
    m.channel = m.channel.map(|time| time.max(now));
    m
}

/// The least time of all schedules, whatever lives in the store: of the first two storages none,
/// one or both, as far as they may.
fn least_time(graph: &Graph, budget: u64, channel: Channel, limit: Ticks) -> Option<Ticks> {
    let choices = (0..4).filter_map(|choice: usize| {
        let mut at_start = vec![false; graph.storages().len()];
        (at_start[0], at_start[1]) = (choice % 2 == 1, choice / 2 == 1);
        let may_live = |s: usize| graph.storages()[s].role.may_be_stored();
        let may = |s: usize| !at_start[s] || may_live(s) && !channel.activations_only;
        let may = (0..2).all(may);
        may.then(|| Brute { graph, budget, channel, at_start }.least(limit))
    });
    choices.flatten().min()
}

#[track_caller]
fn check(graph: &Graph, budget: u64, channel: Channel) {
    let store = channel.store(graph.storages().iter().map(|s| s.bytes.get()).sum());
    let found = plan(graph, Bytes(budget), &options(Effort::DEFAULT, Some(store)), &mut NoWatch);
    let name = graph.name();
    match found {
        Ok(planned) => {
            let ticks_of = |time: Micros| (2.0 * time.get()).round() as Ticks;
            let time = ticks_of(planned.plan.time);
            let least = least_time(graph, budget, channel, time);
            assert_eq!(Some(time), least, "{name} at {budget}, {store:?}");
            assert!(planned.lower_bound <= planned.plan.time, "{name} at {budget}");
        }
        Err(PlanError::Infeasible(_)) => {
            // Everything moves one after another in less than this.
            let least = least_time(graph, budget, channel, 200);
            assert_eq!(least, None, "{name} at {budget}, {store:?}");
        }
        Err(other) => panic!("{name} at {budget}: {other}"),
    }
}

#[test]
fn the_search_equals_brute_force_over_all_schedules_with_transfers() {
    for seed in 0..10 {
        let graph = tiny(seed);
        let (floor, peak) = (floor_with_store(&graph).bytes, Timeline::natural(&graph).peak);
        let budgets: BTreeSet<u64> =
            [floor, Bytes((floor + peak).get() / 2), Bytes(peak.get() - 1)].map(Bytes::get).into();
        // From as fast as compute to slower, and every third store holds only a little.
        let channel = Channel {
            each: [1 + seed % 3, 1 + seed / 2 % 3],
            latency: seed / 4 % 3,
            duplex: seed % 2 == 0,
            limit: if seed % 3 == 2 { 3 + seed / 3 } else { u64::MAX },
            activations_only: false,
        };
        for budget in budgets {
            check(&graph, budget, channel);
        }
    }
}

/// What is there at the start and nothing reads is in nobody's way.
#[test]
fn so_it_does_where_a_storage_has_no_use() {
    for seed in 0..6 {
        let mut parts = tiny(seed).into_parts();
        let idle = StorageId(parts.storages.len() as u32);
        parts.storages.push(Storage { bytes: Bytes(9), role: Role::Other });
        parts.nodes.push(Node::new("idle", Phase::Input, 0.0, &[], &[idle.0]));
        let graph = Graph::new(parts).expect("a graph");
        let peak = Timeline::natural(&graph).peak;
        let channel = Channel {
            each: [2, 1],
            latency: 0,
            duplex: true,
            limit: u64::MAX,
            activations_only: false,
        };
        check(&graph, peak.get() - 1, channel);
    }
}

#[test]
fn so_it_does_where_only_activations_move() {
    for seed in 0..8 {
        let graph = tiny(seed);
        let (floor, peak) = (floor(&graph).bytes, Timeline::natural(&graph).peak);
        for budget in BTreeSet::from([floor.get(), (floor + peak).get() / 2]) {
            let each = [1 + seed % 3; 2];
            let (duplex, limit) = (seed % 2 == 0, u64::MAX);
            let channel = Channel { each, latency: 0, duplex, limit, activations_only: true };
            check(&graph, budget, channel);
        }
    }
}

/// Parameters and what else outlives the step stay where they are, at any budget.
#[test]
fn a_store_for_activations_moves_nothing_else() {
    let for_activations = Store { activations_only: true, ..store(25_000.0, true) };
    for name in ["bert-base-b16-s128", "resnet50-b32"] {
        let graph = corpus(name);
        let options = options(Effort::FIRST, Some(for_activations));
        let lowest = smallest(&graph, &options, &mut NoWatch).expect("a plan").plan;
        let alone = Options { store: None, ..options.clone() };
        let alone = smallest(&graph, &alone, &mut NoWatch).expect("a plan").plan;
        assert!(lowest.peak < alone.peak, "{name}");
        let refused = plan(
            &graph,
            Bytes(floor(&graph).bytes.get() - 1),
            &Options { store: None, ..options.clone() },
            &mut NoWatch,
        );
        let Err(PlanError::Infeasible(why)) = refused else {
            panic!("{name} cannot fit");
        };
        assert_eq!(why.smallest_moving_activations, Some(lowest.peak), "{name}");
        for budget in [lowest.peak, share(&graph, 60.0)] {
            let planned = plan(&graph, budget, &options, &mut NoWatch).expect("a plan").plan;
            verify(&graph, &planned).expect("every plan passes the checker");
            let schedule = planned.schedule;
            assert!(schedule.has_transfers() && schedule.stored_at_start.is_empty(), "{name}");
            let moved = schedule.steps.iter().filter_map(|step| match step {
                Step::Offload(s) | Step::Fetch(s) => Some(*s),
                Step::Run(_) | Step::Free(_) => None,
            });
            let mut roles = moved.map(|s| graph.storage(s).role);
            assert!(roles.all(|role| !role.is_persistent()), "{name}");
        }
    }
}

fn corpus(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    read_graph(&folder.join(format!("{name}.json"))).expect("the corpus loads")
}

fn share(graph: &Graph, percent: f64) -> Bytes {
    Bytes((Timeline::natural(graph).peak.get() as f64 * percent / 100.0) as u64)
}

/// The overhead in percent with a store.
#[track_caller]
fn overhead(graph: &Graph, budget: Bytes, options: &Options) -> f64 {
    let planned = plan(graph, budget, options, &mut NoWatch).expect("a plan");
    let audit = verify(graph, &planned.plan).expect("every plan passes the checker");
    assert!(audit.peak <= budget);
    assert!(planned.lower_bound.get() <= planned.plan.time.get() * (1.0 + 1e-9));
    assert_eq!(Ok(&planned), plan(graph, budget, options, &mut NoWatch).as_ref());
    100.0 * planned.overhead()
}

const GRAPHS: [&str; 6] = [
    "bert-base-b16-s128",
    "densenet121-b32",
    "gpt2-b8-s512",
    "resnet152-b32",
    "resnet50-b32",
    "unet-b8",
];

/// A training step of layers in a row: forward from the first to the last, backward from the last
/// to the first, and an update of each layer's parameter (100 bytes) and state (200 bytes).
fn layers(count: u32) -> Graph {
    let mut storages = Vec::new();
    let mut nodes = Vec::new();
    let mut add = |bytes, role| {
        storages.push(Storage { bytes: Bytes(bytes), role });
        storages.len() as u32 - 1
    };
    let states: Vec<[u32; 2]> =
        (0..count).map(|_| [add(100, Role::Parameter), add(200, Role::OptimizerState)]).collect();
    let mut last = add(1, Role::Input);
    for s in states.iter().flatten().chain([&last]) {
        nodes.push(Node::new(&format!("s{s}"), Phase::Input, 0.0, &[], &[*s]));
    }
    for (i, [p, _]) in states.iter().enumerate() {
        let made = add(1, Role::Activation);
        let name = format!("forward{i}");
        nodes.push(Node::new(&name, Phase::Forward, 20.0, &[*p, last], &[made]));
        last = made;
    }
    for (i, [p, m]) in states.iter().enumerate().rev() {
        let (made, gradient) = (add(1, Role::Gradient), add(100, Role::Gradient));
        let name = format!("backward{i}");
        nodes.push(Node::new(&name, Phase::Backward, 40.0, &[*p, last], &[made, gradient]));
        let name = format!("update{i}");
        let mut update = Node::new(&name, Phase::Optimizer, 2.0, &[*p, *m, gradient], &[]);
        update.effect = Effect::Once;
        update.updates = vec![StorageId(*p), StorageId(*m)];
        nodes.push(update);
        last = made;
    }
    let first = nodes.len() - 2 * count as usize;
    let targets = (first..nodes.len()).map(|n| NodeId(n as u32)).collect();
    let (name, origin) = ("layers".into(), "made by hand".into());
    Graph::new(GraphParts {
        name,
        origin,
        storages,
        nodes,
        outputs: vec![StorageId(last)],
        targets,
    })
    .expect("a graph")
}

/// The backward pass moves four fifths of the bytes, and the channel is wanted there all the time.
/// Little waits only if the forward pass moves what it can: state that stays in memory between
/// training steps leaves there, and parameters arrive ahead of their use. Without fetches that take
/// room the overhead is 15 %, without both 21.
#[test]
fn a_channel_is_busy_in_the_forward_pass_too() {
    let graph = layers(24);
    let options = options(Effort::FIRST, Some(store(14.0, false)));
    let overhead = overhead(&graph, share(&graph, 20.0), &options);
    assert!(overhead < 10.0, "{overhead} %");
}

/// At 25 GB/s each way, and on a disk of 3 GB/s for both.
#[test]
fn a_store_never_makes_a_plan_of_the_corpus_slower() {
    let fast = Store { latency: Micros(10.0), ..store(25_000.0, true) };
    let disk = Store { latency: Micros(100.0), ..store(3_000.0, false) };
    for name in GRAPHS {
        let graph = corpus(name);
        for percent in [70.0, 50.0] {
            let budget = share(&graph, percent);
            let alone = options(Effort::FIRST, None);
            let alone = plan(&graph, budget, &alone, &mut NoWatch).expect("a plan").overhead();
            let at = |store| overhead(&graph, budget, &options(Effort::FIRST, Some(store)));
            assert!(at(disk) <= 100.0 * alone + 1e-9, "{name} at {percent} %");
            assert!(at(fast) <= 90.0 * alone, "{name} at {percent} %");
        }
    }
}

/// What a naive greedy with fetches just in time reaches costs next to nothing.
#[test]
fn transfers_hide_behind_compute_where_there_is_time() {
    let fast = Store { latency: Micros(10.0), ..store(25_000.0, true) };
    let percents = [76.7, 91.5, 82.1, 81.1, 87.5, 65.7];
    for (name, percent) in GRAPHS.iter().zip(percents) {
        let graph = corpus(name);
        let found = overhead(&graph, share(&graph, percent), &options(Effort::FIRST, Some(fast)));
        assert!(found <= 0.2, "{name}: {found} %");
    }
}

#[test]
fn the_smallest_budget_with_a_store_is_the_floor() {
    let fast = store(25_000.0, true);
    for name in ["mlp-b256", "resnet50-b32", "bert-base-b16-s128"] {
        let graph = corpus(name);
        let floor_bytes = floor_with_store(&graph).bytes;
        for strategy in [Strategy::SEARCH, Strategy::from_name("move").expect("a strategy")] {
            let options = Options { strategy, effort: Effort::FIRST, store: Some(fast) };
            let least = smallest(&graph, &options, &mut NoWatch).expect("a plan");
            assert_eq!(least.plan.peak, floor_bytes, "{name}");
            let below = Bytes(floor_bytes.get() - 1);
            let refused = plan(&graph, below, &options, &mut NoWatch);
            let Err(PlanError::Infeasible(why)) = refused else {
                panic!("{name} cannot fit");
            };
            assert!(why.is_proven() && why.smallest_known == floor_bytes);
        }
        // Without a store, the refusal says what one would do.
        let below = Bytes(floor(&graph).bytes.get() - 1);
        let refused = plan(&graph, below, &options(Effort::FIRST, None), &mut NoWatch);
        let Err(PlanError::Infeasible(why)) = refused else {
            panic!("{name} cannot fit");
        };
        assert_eq!(why.smallest_with_store, Some(floor_bytes));
        let message = why.to_string();
        assert!(message.contains("with a store to move storages to"), "{message}");
    }
}

#[test]
fn moving_needs_a_store() {
    let graph = corpus("mlp-b256");
    let strategy = Strategy::from_name("move").expect("a strategy");
    let options = Options { strategy, ..Options::default() };
    let refused = plan(&graph, share(&graph, 70.0), &options, &mut NoWatch);
    assert_eq!(refused, Err(PlanError::NeedsStore { strategy: "move" }));
    assert!(smallest(&graph, &options, &mut NoWatch).is_err());
    let plain = plan(&graph, share(&graph, 100.0), &options, &mut NoWatch);
    assert!(plain.is_ok_and(|planned| !planned.plan.schedule.has_transfers()));
}

/// μ-TWO swaps for real: its plan moves activations, passes the checker, and takes less time than
/// without a store.
#[test]
fn mutwo_executes_its_swaps() {
    let fast = Store { latency: Micros(10.0), ..store(25_000.0, true) };
    for name in ["resnet50-b32", "unet-b8"] {
        let graph = corpus(name);
        let with = |store| Options { strategy: Strategy::MUTWO, effort: Effort::FIRST, store };
        let budget = share(&graph, 80.0);
        let planned = plan(&graph, budget, &with(Some(fast)), &mut NoWatch).expect("a plan");
        assert!(planned.plan.schedule.has_transfers(), "{name}");
        let alone = plan(&graph, budget, &with(None), &mut NoWatch).expect("a plan");
        assert!(planned.plan.time < alone.plan.time, "{name}");
    }
}

#[test]
fn what_is_moved_is_decided_so_with_a_reason() {
    let graph = corpus("resnet50-b32");
    let fast = store(25_000.0, true);
    let options = options(Effort::FIRST, Some(fast));
    let planned = plan(&graph, share(&graph, 87.5), &options, &mut NoWatch).expect("a plan");
    let moved = planned.decisions.iter().filter(|d| matches!(d.choice, Choice::Move { .. }));
    assert!(moved.clone().count() > 0);
    for decision in moved {
        assert_eq!(decision.reason, rekindle_plan::Reason::HiddenByCompute);
    }
}

#[test]
fn a_frontier_with_a_store_reaches_the_floor_and_is_monotone() {
    let graph = corpus("unet-b8");
    let options = options(Effort::FIRST, Some(store(25_000.0, true)));
    let points = frontier(&graph, 6, &options, &mut NoWatch).expect("a frontier").points;
    assert_eq!(points[points.len() - 1].plan.peak, floor_with_store(&graph).bytes);
    for pair in points.windows(2) {
        let (larger, smaller) = (&pair[0].plan, &pair[1].plan);
        assert!(smaller.budget < larger.budget);
        assert!(smaller.peak <= larger.peak && smaller.time >= larger.time);
    }
}
