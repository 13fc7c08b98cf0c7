//! What the process really takes when most of a step is in a store: the arena and little else. The
//! bytes of the store are not memory in disguise: what is moved goes to the device and comes from
//! there. And a step allocates nothing.
//!
//! A file of its own, so that no other test shares the process.
#![allow(unsafe_code)] // A counting allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rekindle_engine::{Caching, Engine, FileStore, Iteration, Layout, Store, lower, resident_peak};
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

/// Bytes that the process has read from devices and written to them, where the system says so.
fn device_bytes() -> Option<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some([number("read_bytes:")?, number("write_bytes:")?])
}

/// A step of some layers that keeps to the budget by moving alone.
fn moving_step() -> Layout {
    let optimizer = Some(Optimizer::adam(1e-3));
    let options = ModelOptions { batch: 4, optimizer, ..ModelOptions::default() };
    let model = build("mlp", &options).expect("the model builds");
    let graph = lower(&model.program, THREADS);
    let (out_rate, in_rate, latency) = (Rate(1000.0), Rate(1000.0), Micros(10.0));
    let store = rekindle_graph::Store {
        out_rate,
        in_rate,
        latency,
        duplex: true,
        limit: None,
        activations_only: false,
    };
    let plan = moves_within(&graph, BUDGET, store).expect("a layer fits");
    let rewritten = rewrite(&graph, &plan).expect("a valid plan");
    let origins = rewritten.origins();
    let layout = Layout::new(&model.program, rewritten.graph.clone(), origins, THREADS);
    layout.expect("it is the same")
}

#[test]
fn a_store_is_not_memory_and_a_step_that_moves_allocates_nothing() {
    for caching in [Caching::Direct, Caching::Dropped] {
        let layout = moving_step();
        let slack = Bytes(48 << 20);
        assert!(layout.store_bytes() > BUDGET + slack, "{}", layout.store_bytes());
        // Among what is built, which is on a disk.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = FileStore::with_caching(folder, layout.store_bytes(), caching).expect("room");
        let store = Store { backing: Box::new(file), duplex: true, depth: 1 };
        let engine = Engine::with_store(layout, 0, Some(store), &mut |_, _| {});
        let mut engine = engine.expect("it can be set up");
        for number in 1..=2 {
            let devices = device_bytes();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            let measured = engine.run(Iteration { seed: 1, number }).expect("the data is good");
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "allocations");
            assert_eq!(measured, engine.predicted());
            let moved = engine.moved();
            assert!(moved.out > BUDGET && moved.back > BUDGET);
            if let (Some([read, written]), Some([read_after, written_after])) =
                (devices, device_bytes())
            {
                assert!(read_after - read >= moved.back.get(), "{caching:?}: read from memory");
                assert!(written_after - written >= moved.out.get(), "{caching:?}: kept in memory");
            }
            if let Some(peak) = resident_peak() {
                let limit = measured.arena + slack;
                assert!(peak <= limit, "{peak} resident for an arena of {}", measured.arena);
            }
        }
    }
}
