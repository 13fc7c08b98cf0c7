//! μ-TWO where only the profiler's files are known: activations without edges between nodes.
//!
//! In: run times and bytes by rank, and one row for each activation. Out: what happens to each
//! activation, and the peak and overhead to expect. There is no schedule: without edges nobody can
//! say which nodes rebuild an activation, so its recomputation time is taken as given.
//!
//! Memory simulation: at each rank, what the profile has there without the activations, and then
//! the activations that are live: a kept one from its creation to its last backward use, a
//! recomputed one without the time between its last forward and first backward use, a swapped one
//! likewise but back from where its transfer starts. A recomputation needs its own scratch at the
//! rank of its first backward use.

use rekindle_graph::{Bytes, Micros, one_line};

use super::swap::Channel;
use super::table::{Entry, Table};

/// An activation that may be recomputed or swapped: one row of the activation file.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The node that makes it.
    pub name: String,
    /// Its size.
    pub bytes: Bytes,
    /// Rank of the node that makes it.
    pub created: usize,
    /// Rank of its last forward use; its creation if there is none.
    pub last_forward: usize,
    /// Rank of its first backward use.
    pub first_backward: usize,
    /// Rank of its last backward use.
    pub last_backward: usize,
    /// From the end of its last forward to the start of its first backward use.
    pub inactive_time: Micros,
    /// Time to rebuild it.
    pub recompute_time: Micros,
    /// Highest bytes while it is rebuilt, its own included.
    pub recompute_memory: Bytes,
    /// Time to bring it back from the spill tier, where measured.
    pub swap_time: Option<Micros>,
    /// Activations that it is rebuilt from, as positions in the list; empty where not known.
    pub sources: Vec<usize>,
}

/// A profile without edges.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationLevel {
    /// Run time of each node, by rank.
    pub run_time: Vec<Micros>,
    /// Highest bytes while each node runs, by rank; as long as `run_time`.
    pub peak_bytes: Vec<Bytes>,
    /// The first rank of the backward pass.
    pub backward: usize,
    /// Every activation.
    pub activations: Vec<Candidate>,
}

/// What happens to an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// Kept from its creation to its last use.
    Keep,
    /// Dropped after the forward pass and rebuilt.
    Recompute,
    /// Moved out after the forward pass and back in from this rank on.
    Swap {
        /// Where its transfer back starts.
        starts: usize,
    },
}

/// What μ-TWO decided at the level of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationPlan {
    /// As long as the list of activations.
    pub choices: Vec<TableChoice>,
    /// The profile's own peak.
    pub peak_before: Bytes,
    /// The simulated peak.
    pub peak: Bytes,
    /// Time added by recomputations and by transfers that nothing hides.
    pub overhead: Micros,
}

/// Why there is no plan at the level of activations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ActivationPlanError {
    #[error(
        "no choice of activations fits in {budget}; the lowest peak that mutwo reaches is {lowest} \
         ({} bytes)", lowest.get()
    )]
    Infeasible { budget: Bytes, lowest: Bytes },
    #[error(
        "activation {name}: ranks must satisfy created <= last forward use < first backward use <= \
         last backward use < {ranks}, found {found:?}"
    )]
    Ranks { name: String, ranks: usize, found: [usize; 4] },
    #[error("activation {name}: source {source_row} is not in the list of {count}")]
    Source { name: String, source_row: usize, count: usize },
    #[error(
        "activation {name}: {bytes} bytes, and {recompute} to make it again; with the peak and \
         the activations before it that is more than fits in 64 bits; correct the sizes in its row",
        bytes = bytes.get(), recompute = recompute.get()
    )]
    SizeOverflow { name: String, bytes: Bytes, recompute: Bytes },
    #[error("{times} run times, but {peaks} peaks: there must be one of each for each rank")]
    Ragged { times: usize, peaks: usize },
}

/// Chooses what to recompute, and to swap if `swap` is on, until the simulated peak is under
/// `budget`.
///
/// # Errors
/// If no choice fits, or the profile contradicts itself.
pub fn plan_activations(
    profile: &ActivationLevel,
    budget: Bytes,
    swap: bool,
) -> Result<ActivationPlan, ActivationPlanError> {
    check(profile)?;
    let mut scheduler = Scheduler::new(profile, budget);
    while scheduler.peak() > budget {
        if !scheduler.choose(swap) {
            let lowest = scheduler.lowest;
            return Err(ActivationPlanError::Infeasible { budget, lowest });
        }
    }
    Ok(scheduler.finish())
}

fn check(profile: &ActivationLevel) -> Result<(), ActivationPlanError> {
    let (times, peaks) = (profile.run_time.len(), profile.peak_bytes.len());
    if times != peaks {
        return Err(ActivationPlanError::Ragged { times, peaks });
    }
    let count = profile.activations.len();
    for a in &profile.activations {
        let found = [a.created, a.last_forward, a.first_backward, a.last_backward];
        let ordered = found[0] <= found[1] && found[1] < found[2] && found[2] <= found[3];
        if !ordered || found[3] >= times {
            return Err(ActivationPlanError::Ranks {
                name: one_line(&a.name),
                ranks: times,
                found,
            });
        }
        if let Some(&source_row) = a.sources.iter().find(|&&s| s >= count) {
            return Err(ActivationPlanError::Source { name: one_line(&a.name), source_row, count });
        }
    }
    check_sizes(profile)
}

/// The peak and all activations, each with what making it again takes, fit in 64 bits together, so
/// that no sum in the simulation can overflow.
fn check_sizes(profile: &ActivationLevel) -> Result<(), ActivationPlanError> {
    let peak = profile.peak_bytes.iter().copied().max();
    let mut sum = peak.unwrap_or(Bytes::ZERO);
    for a in &profile.activations {
        let most = a.bytes.max(a.recompute_memory);
        sum = sum.checked_add(most).ok_or_else(|| ActivationPlanError::SizeOverflow {
            name: one_line(&a.name),
            bytes: a.bytes,
            recompute: a.recompute_memory,
        })?;
    }
    Ok(())
}

struct Scheduler<'p> {
    profile: &'p ActivationLevel,
    budget: Bytes,
    table: Table,
    channel: Channel,
    choices: Vec<TableChoice>,
    /// Bytes at each rank under the present choices.
    bytes: Vec<u64>,
    lowest: Bytes,
    overhead: Micros,
}

impl<'p> Scheduler<'p> {
    fn new(profile: &'p ActivationLevel, budget: Bytes) -> Self {
        let entry = |a: &Candidate| Entry {
            bytes: a.bytes,
            first_backward: a.first_backward,
            last_backward: a.last_backward,
            sources: a.sources.iter().copied().collect(),
            recompute_time: a.recompute_time,
            rebuildable: true,
        };
        let bytes: Vec<u64> = profile.peak_bytes.iter().map(|b| b.get()).collect();
        Scheduler {
            profile,
            budget,
            table: Table::new(profile.activations.iter().map(entry).collect()),
            channel: Channel::new(&profile.run_time, profile.backward),
            choices: vec![TableChoice::Keep; profile.activations.len()],
            lowest: Bytes(bytes.iter().copied().max().unwrap_or(0)),
            bytes,
            overhead: Micros::ZERO,
        }
    }

    fn peak(&self) -> Bytes {
        Bytes(self.bytes.iter().copied().max().unwrap_or(0))
    }

    /// One round: the cheaper of the two candidates. False if there is none left.
    fn choose(&mut self, swap: bool) -> bool {
        let recompute = self.table.recompute_candidate();
        let swapped = match swap {
            true => self.swap_candidate(),
            false => None,
        };
        match (swapped, recompute) {
            (None, None) => return false,
            (Some(s), None) => self.swap(s),
            (None, Some(r)) => self.recompute(r),
            (Some(s), Some(r)) if self.swap_cost(s).overhead < self.table.total_time(r) => {
                self.swap(s);
            }
            (Some(_), Some(r)) => self.recompute(r),
        }
        self.lowest = self.lowest.min(self.peak());
        true
    }

    /// The longest `inactive_time`; the lower id where two are equal.
    fn swap_candidate(&self) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (i, a) in self.profile.activations.iter().enumerate() {
            let time = a.inactive_time.get();
            let may_move = self.table.is_candidate(i) && a.swap_time.is_some();
            if may_move && best.is_none_or(|(_, longest)| time > longest) {
                best = Some((i, time));
            }
        }
        best.map(|(i, _)| i)
    }

    fn swap_cost(&self, i: usize) -> super::swap::Transfer {
        let a = &self.profile.activations[i];
        let time = a.swap_time.expect("a swap candidate has a swap time");
        // Memory without this activation decides where it may come back.
        let over = |&at: &usize| self.bytes[at] > self.budget.get();
        let over_budget = (self.profile.backward..a.first_backward).rev().find(over);
        self.channel.cost(time, a.first_backward, over_budget)
    }

    fn swap(&mut self, i: usize) {
        let transfer = self.swap_cost(i);
        let a = &self.profile.activations[i];
        let time = a.swap_time.expect("a swap candidate has a swap time");
        self.channel.take(time, a.first_backward, transfer);
        self.remove(a.bytes, a.last_forward + 1..transfer.starts);
        self.overhead += transfer.overhead;
        self.choices[i] = TableChoice::Swap { starts: transfer.starts };
        self.table.keep(i);
    }

    fn recompute(&mut self, i: usize) {
        let a = &self.profile.activations[i];
        let time = self.table.total_time(i);
        self.remove(a.bytes, a.last_forward + 1..a.first_backward);
        let scratch = a.recompute_memory.saturating_sub(a.bytes).get();
        self.bytes[a.first_backward] += scratch;
        self.channel.add_recomputation(a.first_backward, time);
        self.overhead += time;
        self.choices[i] = TableChoice::Recompute;
        self.table.recompute(i);
    }

    /// A profile may count less than its activations at some rank; there it cannot go below zero.
    fn remove(&mut self, bytes: Bytes, ranks: std::ops::Range<usize>) {
        for at in ranks {
            self.bytes[at] = self.bytes[at].saturating_sub(bytes.get());
        }
    }

    fn finish(self) -> ActivationPlan {
        let before = self.profile.peak_bytes.iter().copied().max();
        ActivationPlan {
            peak_before: before.unwrap_or(Bytes::ZERO),
            peak: self.peak(),
            choices: self.choices,
            overhead: self.overhead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forward ranks 0 to 2 make a (10), b (6) and c (4); backward ranks 3 to 5 use c, b and a.
    /// Each node takes 2. Live bytes: 10, 16, 20, 20, 16, 10 over a base of 100.
    fn profile() -> ActivationLevel {
        let activation = |name: &str, bytes, created: usize, time, memory| Candidate {
            name: name.into(),
            bytes: Bytes(bytes),
            created,
            last_forward: created,
            first_backward: 5 - created,
            last_backward: 5 - created,
            inactive_time: Micros(2.0 * (4 - 2 * created) as f64),
            recompute_time: Micros(time),
            recompute_memory: Bytes(memory),
            swap_time: Some(Micros(3.0)),
            sources: Vec::new(),
        };
        ActivationLevel {
            run_time: vec![Micros(2.0); 6],
            peak_bytes: [110, 116, 120, 120, 116, 110].map(Bytes).to_vec(),
            backward: 3,
            activations: vec![
                activation("a", 10, 0, 5.0, 10),
                activation("b", 6, 1, 2.0, 8),
                activation("c", 4, 2, 1.0, 4),
            ],
        }
    }

    #[test]
    fn it_stops_as_soon_as_the_peak_is_under_the_budget() {
        // Ratios: a 10/5 = 2, b 6/2 = 3, c 4/1 = 4. c is free between ranks 2 and 3 only, which is
        // nothing; b frees 6 at ranks 2 and 3. Then the peak is 118, at rank 4 with b's scratch of
        // 2.
        let plan = plan_activations(&profile(), Bytes(118), false).expect("fits");
        assert_eq!(
            plan.choices,
            [TableChoice::Keep, TableChoice::Recompute, TableChoice::Recompute]
        );
        assert_eq!((plan.peak_before, plan.peak), (Bytes(120), Bytes(118)));
        assert_eq!(plan.overhead, Micros(3.0));
    }

    #[test]
    fn what_cannot_fit_is_an_error_with_the_lowest_peak() {
        // All dropped: 110, 106, 104, 104, 108, 110.
        let lowest = Bytes(110);
        let budget = Bytes(109);
        let expected = Err(ActivationPlanError::Infeasible { budget, lowest });
        assert_eq!(plan_activations(&profile(), budget, false), expected);
        assert!(plan_activations(&profile(), lowest, false).is_ok());
    }

    #[test]
    fn the_cheaper_of_swap_and_recomputation_is_taken() {
        // The longest inactive is a, for 8. Memory is over 118 at rank 3, so its transfer of 3 may
        // run at rank 4 only, which hides 2: overhead 1. The best ratio is c's, with a time of 1.
        // Not less, so c is recomputed; it frees nothing. Then b's time is 2, so a is swapped: 110
        // at ranks 1 to 3, where 10 are gone; the peak is 116, at rank 4, where a is back.
        let plan = plan_activations(&profile(), Bytes(118), true).expect("fits");
        let expected = [TableChoice::Swap { starts: 4 }, TableChoice::Keep, TableChoice::Recompute];
        assert_eq!(plan.choices, expected);
        assert_eq!(plan.peak, Bytes(116));
        assert_eq!(plan.overhead, Micros(2.0));
    }

    #[test]
    fn profiles_that_contradict_themselves_are_refused() {
        let mut backwards = profile();
        backwards.activations[1].first_backward = 1;
        let mut dangling = profile();
        dangling.activations[0].sources = vec![7];
        let mut ragged = profile();
        ragged.run_time.pop();
        let mut endless = profile();
        endless.activations[2].recompute_memory = Bytes(u64::MAX);
        let mut huge = profile();
        huge.activations[0].bytes = Bytes(u64::MAX / 2);
        huge.activations[1].recompute_memory = Bytes(u64::MAX / 2);
        let cases = [
            (backwards, "b"),
            (dangling, "7"),
            (ragged, "5 run times"),
            (endless, "activation c: 4 bytes, and 18446744073709551615"),
            (huge, "activation b"),
        ];
        for (profile, word) in cases {
            let error = plan_activations(&profile, Bytes(1), false).expect_err("contradiction");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
