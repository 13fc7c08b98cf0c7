//! The clock of a replay: when each run and each transfer begins and ends.
//!
//! There are three queues: compute, and a channel for each direction (one for both where the store
//! is not duplex). A run begins when the run before it has ended and nothing makes it wait. A
//! transfer is put on its channel at the moment at which compute reaches it, and takes latency +
//! bytes / rate there, one after another; compute does not wait for it.
//!
//! Times are sums in the order of the steps. Without transfers nothing waits, and the time is the
//! sum of the times of the runs.

use crate::{Bytes, Micros, Store};

/// Which way a storage is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    In,
}

/// From when to when something took place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// When it began.
    pub began: Micros,
    /// When it ended.
    pub ended: Micros,
}

pub(crate) struct Clock {
    store: Option<Store>,
    /// When compute is free.
    compute: f64,
    /// When each channel is free: out, in.
    channel: [f64; 2],
    /// Spent in runs.
    busy: f64,
    /// Spent by compute on waiting.
    waited: f64,
    /// Bytes moved out and in.
    moved: [u64; 2],
}

/// The sums of a clock at the end.
pub(crate) struct Times {
    pub(crate) whole: Micros,
    pub(crate) busy: Micros,
    pub(crate) waited: Micros,
    pub(crate) moved_out: Bytes,
    pub(crate) moved_in: Bytes,
}

impl Clock {
    pub(crate) fn new(store: Option<Store>) -> Clock {
        Clock { store, compute: 0.0, channel: [0.0; 2], busy: 0.0, waited: 0.0, moved: [0; 2] }
    }

    /// Compute stands still until then. Gives for how long.
    pub(crate) fn wait(&mut self, until: f64) -> Micros {
        let wait = (until - self.compute).max(0.0);
        if wait > 0.0 {
            self.waited += wait;
            self.compute = until;
        }
        Micros(wait)
    }

    pub(crate) fn run(&mut self, time: Micros) -> Span {
        let began = Micros(self.compute);
        self.compute += time.get();
        self.busy += time.get();
        Span { began, ended: Micros(self.compute) }
    }

    /// A moment of compute that takes no time.
    pub(crate) fn now(&self) -> Span {
        Span { began: Micros(self.compute), ended: Micros(self.compute) }
    }

    /// Puts a transfer on its channel; `None` if there is none.
    pub(crate) fn transfer(
        &mut self,
        direction: Direction,
        bytes: Bytes,
        not_before: f64,
    ) -> Option<Span> {
        let store = self.store?;
        let (channel, rate) = match direction {
            Direction::Out => (0, store.out_rate),
            Direction::In => (1, store.in_rate),
        };
        if rate.get() <= 0.0 {
            return None;
        }
        let began = self.compute.max(self.channel[channel]).max(not_before);
        let ended = began + store.latency.get() + bytes.get() as f64 / rate.get();
        match store.duplex {
            true => self.channel[channel] = ended,
            false => self.channel = [ended; 2],
        }
        self.moved[channel] += bytes.get();
        Some(Span { began: Micros(began), ended: Micros(ended) })
    }

    /// A training step ends when compute and all channels have ended.
    pub(crate) fn end(&self) -> Times {
        let whole = self.compute.max(self.channel[0]).max(self.channel[1]);
        Times {
            whole: Micros(whole),
            busy: Micros(self.busy),
            waited: Micros(self.waited + (whole - self.compute)),
            moved_out: Bytes(self.moved[0]),
            moved_in: Bytes(self.moved[1]),
        }
    }
}
