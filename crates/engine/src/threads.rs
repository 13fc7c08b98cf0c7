//! The threads of an engine: parked workers that share out the tasks of one kernel at a time.
//!
//! A kernel splits its work into tasks by shape alone, never by the number of threads, and each
//! task's result does not depend on who runs it. So results are the same bits at any thread count.
//! Nothing allocates here after construction.
//!
//! The workers serve one run at a time. A run that comes while they are busy, from another thread
//! or from within a task, waits for nobody: its caller does all of its tasks, in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use crate::EngineError;

/// Spins of a waiting thread before it parks: about 20 µs, longer than the gaps between kernels of
/// a step and shorter than what a person's other programs would notice.
const SPINS: usize = 4096;

/// What the workers are asked to do. The pointer is valid until `running` is back at zero, and no
/// worker uses it after that.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

// SAFETY: the closure behind the pointer is `Sync`, and `Threads::share_out` keeps it alive until
// every worker has left it.
unsafe impl Send for Job {}

/// All but `busy` belongs to the run that holds `busy`.
struct Shared {
    /// A run is shared out. Whoever turned it to true may set a job.
    busy: AtomicBool,
    /// The current job, and its number.
    job: Mutex<(Option<Job>, usize)>,
    wake: Condvar,
    /// The number of the newest job; lets a spinning worker see it without the lock.
    number: AtomicUsize,
    /// The next task to take.
    next: AtomicUsize,
    /// Workers that have not finished the current job.
    running: AtomicUsize,
    stop: AtomicBool,
    /// A worker's task panicked in the current job.
    failed: AtomicBool,
}

/// A fixed number of threads, the caller's included.
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// `count` threads, at least one: the caller and `count - 1` workers.
    ///
    /// # Panics
    /// If the system does not start them; [`Threads::start`] says why instead.
    pub fn new(count: usize) -> Threads {
        Threads::start(count).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `count` threads, at least one: the caller and `count - 1` workers.
    ///
    /// # Errors
    /// If the system does not start so many. Those that were started are gone again.
    pub fn start(count: usize) -> Result<Threads, EngineError> {
        let shared = Arc::new(Shared {
            busy: AtomicBool::new(false),
            job: Mutex::new((None, 0)),
            wake: Condvar::new(),
            number: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let mut threads = Threads { shared, workers: Vec::new() };
        for index in 1..count.max(1) {
            let shared = Arc::clone(&threads.shared);
            let worker = std::thread::Builder::new()
                .name(format!("rekindle-{index}"))
                .spawn(move || shared.serve(index))
                .map_err(|error| EngineError::Threads {
                    wanted: count,
                    started: index,
                    reason: error.to_string(),
                })?;
            threads.workers.push(worker);
        }
        Ok(threads)
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, task)` once for each task below `tasks`, and returns when all are done.
    /// `thread` is below [`Threads::count`]; no two calls of one run with the same `thread`
    /// overlap.
    ///
    /// May be called from several threads at once and from within a task: the workers help one run
    /// at a time, and the caller of any other does it alone.
    ///
    /// # Panics
    /// If a task panics. The threads can be used again after that.
    pub fn run(&self, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let alone = self.workers.is_empty() || tasks <= 1;
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(|task| work(0, task));
            return;
        }
        let own = self.share_out(tasks, work);
        let failed = self.shared.failed.swap(false, Ordering::Relaxed);
        self.shared.busy.store(false, Ordering::Release);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!failed, "a kernel panicked on a worker thread");
    }

    /// Does the tasks together with the workers. The caller holds `busy`. An error is the panic of
    /// a task of its own; those of the workers are in `failed`.
    fn share_out(
        &self,
        tasks: usize,
        work: &(dyn Fn(usize, usize) + Sync),
    ) -> std::thread::Result<()> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. This function does not return (nor unwind) between
        // the moment when the workers see the pointer and the one when all of them have left the
        // closure: `running` counts them, and while `busy` is held nobody else sets `job` or
        // `running`.
        let erased: *const (dyn Fn(usize, usize) + Sync) = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize, usize) + Sync + '_),
                *const (dyn Fn(usize, usize) + Sync + 'static),
            >(work)
        };
        shared.next.store(0, Ordering::Relaxed);
        shared.running.store(self.workers.len(), Ordering::Relaxed);
        {
            let mut job = shared.job.lock().expect("no panic while the job is set");
            *job = (Some(Job { work: erased, tasks }), job.1.wrapping_add(1));
            shared.number.store(job.1, Ordering::Release);
        }
        shared.wake.notify_all();
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            shared.take_tasks(0, tasks, work);
        }));
        while shared.running.load(Ordering::Acquire) != 0 {
            std::hint::spin_loop();
        }
        own
    }

    /// Splits `data` into chunks of `chunk` elements (the last may be shorter) and calls
    /// `work(index, chunk)` for each, shared out among the threads.
    pub fn chunks_mut<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        work: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let len = data.len();
        let shared = SharedMut::new(data);
        self.run(len.div_ceil(chunk), &|_, task| {
            let range = task * chunk..len.min((task + 1) * chunk);
            // SAFETY: the chunks of different tasks do not overlap.
            work(task, unsafe { shared.slice(range) });
        });
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        {
            let mut job = self.shared.job.lock().unwrap_or_else(|e| e.into_inner());
            self.shared.stop.store(true, Ordering::Release);
            job.1 = job.1.wrapping_add(1);
            self.shared.number.store(job.1, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker never panics outside a task, and a task's panic has been reported.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn take_tasks(&self, thread: usize, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(thread, task);
        }
    }

    fn serve(&self, thread: usize) {
        let mut seen = 0;
        loop {
            let Some(job) = self.wait_for_job(&mut seen) else {
                return;
            };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: `Threads::share_out` keeps the closure alive until `running` is zero, and
                // this worker counts in `running` until the end of this round.
                self.take_tasks(thread, job.tasks, unsafe { &*job.work });
            }));
            if result.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// The next job after number `seen`; `None` when the threads are to stop.
    fn wait_for_job(&self, seen: &mut usize) -> Option<Job> {
        for _ in 0..SPINS {
            if self.number.load(Ordering::Acquire) != *seen {
                break;
            }
            std::hint::spin_loop();
        }
        let mut job = self.job.lock().expect("no panic while the job is set");
        while job.1 == *seen {
            job = self.wake.wait(job).expect("no panic while the job is set");
        }
        *seen = job.1;
        if self.stop.load(Ordering::Acquire) { None } else { job.0 }
    }
}

/// A mutable slice that the tasks of one kernel write to in disjoint ranges.
pub struct SharedMut<'a, T> {
    data: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose caller guarantees disjoint ranges.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Borrows `data` for the length of a kernel.
    pub fn new(data: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { data: data.as_mut_ptr(), len: data.len(), life: std::marker::PhantomData }
    }

    /// One range of it.
    ///
    /// # Safety
    /// No other range handed out and still in use may overlap this one.
    #[allow(clippy::mut_from_ref)] // That is the purpose; the caller keeps the ranges apart.
    pub unsafe fn slice(&self, range: std::ops::Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the slice");
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_at_any_thread_count() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count);
            for tasks in [0, 1, 2, 7, 1000] {
                let mut hits = vec![0u32; tasks];
                threads.chunks_mut(&mut hits, 1, &|_, hit| hit[0] += 1);
                assert_eq!(hits, vec![1; tasks], "{count} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn a_run_within_a_task_is_done_by_its_caller_in_order() {
        let threads = Threads::new(3);
        let mut seen = vec![Vec::new(); 40];
        threads.chunks_mut(&mut seen, 1, &|_, row| {
            let caller = std::thread::current().id();
            let order = Mutex::new(Vec::new());
            threads.run(7, &|thread, task| {
                assert_eq!((thread, std::thread::current().id()), (0, caller));
                order.lock().expect("no panic").push(task);
            });
            row[0] = order.into_inner().expect("no panic");
        });
        assert_eq!(seen, vec![(0..7).collect::<Vec<_>>(); 40]);
    }

    #[test]
    fn several_callers_at_once_each_get_all_of_their_tasks_once() {
        let threads = Threads::new(3);
        let caller = |tasks: usize| {
            for _ in 0..500 {
                let mut hits = vec![0u32; tasks];
                threads.chunks_mut(&mut hits, 1, &|_, hit| hit[0] += 1);
                assert_eq!(hits, vec![1; tasks]);
            }
        };
        std::thread::scope(|scope| {
            for tasks in [2, 5, 17, 64] {
                scope.spawn(move || caller(tasks));
            }
        });
    }

    /// Runs what `work` says until it panics, as it must.
    #[track_caller]
    fn check_panics(threads: &Threads, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            threads.run(tasks, work);
        }));
        assert!(result.is_err());
    }

    /// The workers help: the task on the caller's thread waits for one on another.
    fn check_shared_out(threads: &Threads) {
        let helped = AtomicBool::new(false);
        threads.run(2, &|thread, _| match thread {
            0 => wait_for(&helped),
            _ => helped.store(true, Ordering::Release),
        });
        assert!(helped.into_inner());
    }

    fn wait_for(flag: &AtomicBool) {
        while !flag.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller() {
        check_panics(&Threads::new(2), 64, &|_, task| assert_ne!(task, 40));
    }

    #[test]
    fn after_a_panic_the_threads_work_as_before() {
        let threads = Threads::new(2);
        for unlucky in [1, 0] {
            let came = AtomicBool::new(false);
            check_panics(&threads, 2, &|thread, _| {
                if thread == unlucky {
                    came.store(true, Ordering::Release);
                    panic!("on thread {thread}");
                }
                wait_for(&came);
            });
            check_shared_out(&threads);
        }
        check_panics(&threads, 64, &|_, _| panic!("on all"));
        check_shared_out(&threads);
    }
}
