//! What the process really takes: the arena and little else, and nothing more during a step.
//!
//! A file of its own, so that no other test shares the process.
#![allow(unsafe_code)] // A counting allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rekindle_engine::{Engine, Iteration, resident_peak};
use rekindle_graph::Bytes;
use rekindle_models::{ModelOptions, build};
use rekindle_program::Optimizer;

/// Counts every allocation of the process.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_step_allocates_nothing_and_the_process_holds_the_arena_and_little_else() {
    for (name, optimizer) in
        [("resnet50", Optimizer::sgd(0.01)), ("bert-tiny", Optimizer::adam(1e-3))]
    {
        let optimizer = Some(optimizer);
        let options =
            ModelOptions { batch: 4, image_size: 64, optimizer, ..ModelOptions::default() };
        let model = build(name, &options).expect("the model builds");
        let mut engine = Engine::new(&model.program, 2).expect("the step can be set up");
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let measured = engine.run(Iteration { seed: 1, number: 1 }).expect("the data is good");
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{name}: allocations");
        assert_eq!(measured, engine.predicted());
        match resident_peak() {
            Some(peak) => {
                let limit = measured.arena + Bytes(64 << 20);
                assert!(
                    peak <= limit,
                    "{name}: {peak} resident for an arena of {}",
                    measured.arena
                );
            }
            None => println!("this system does not tell the resident peak"),
        }
    }
}
