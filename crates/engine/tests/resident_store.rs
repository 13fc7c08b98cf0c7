//! What the process really takes when most of a step is in a store: the arena and little else. The
//! bytes of the store are not memory in disguise, and a step allocates nothing.
//!
//! A file of its own, so that no other test shares the process.
#![allow(unsafe_code)] // A counting allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rekindle_engine::{Engine, FileStore, Iteration, Layout, Store, lower, resident_peak};
use rekindle_graph::{Bytes, Micros, Rate};
use rekindle_models::{ModelOptions, build};
use rekindle_program::Optimizer;
use rekindle_rewrite::rewrite;
use rekindle_soak::moves_within;

/// Counts every allocation of the process.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Allocation) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const THREADS: usize = 2;
/// A layer's weight, gradient and state, twice.
const BUDGET: Bytes = Bytes(36 << 20);

#[test]
fn a_store_is_not_memory_and_a_step_that_moves_allocates_nothing() {
    let optimizer = Some(Optimizer::adam(1e-3));
    let options = ModelOptions { batch: 4, optimizer, ..ModelOptions::default() };
    let model = build("mlp", &options).expect("the model builds");
    let graph = lower(&model.program, THREADS);
    let rate = Rate(1000.0);
    let store = rekindle_graph::Store {
        out_rate: rate,
        in_rate: rate,
        latency: Micros(10.0),
        duplex: true,
        limit: None,
    };
    let plan = moves_within(&graph, BUDGET, store).expect("a layer fits");
    let rewritten = rewrite(&graph, &plan).expect("a valid plan");
    let origins = rewritten.origins();
    let layout = Layout::new(&model.program, rewritten.graph.clone(), origins, THREADS);
    let layout = layout.expect("it is the same");
    let slack = Bytes(48 << 20);
    assert!(layout.store_bytes() > BUDGET + slack, "{}", layout.store_bytes());
    let file = FileStore::new(&std::env::temp_dir(), layout.store_bytes()).expect("room");
    let store = Store { backing: Box::new(file), duplex: true, depth: 1 };
    let mut engine =
        Engine::with_store(layout, 0, Some(store), &mut |_, _| {}).expect("it can be set up");
    for number in 1..=2 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let measured = engine.run(Iteration { seed: 1, number }).expect("the data is good");
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "allocations");
        assert_eq!(measured, engine.predicted());
        assert!(engine.moved().out > BUDGET && engine.moved().back > BUDGET);
        match resident_peak() {
            Some(peak) => {
                let limit = measured.arena + slack;
                assert!(peak <= limit, "{peak} resident for an arena of {}", measured.arena);
            }
            None => println!("this system does not tell the resident peak"),
        }
    }
}
