//! What swapping costs: the part of a transfer that no computation hides.
//!
//! Model. A swapped activation comes back before its first backward use, while the nodes before
//! that use run. Each position of the backward pass offers its run time (and that of the
//! recomputation in front of it) to one transfer at a time; a transfer that meets another in flight
//! waits for it, that is, takes what the other left. Where memory is over the budget nothing can
//! come back yet, so those positions and all before them offer nothing. What does not fit is
//! overhead.

use rekindle_graph::Micros;

/// The transfer channel along the backward pass.
pub(super) struct Channel {
    /// Time that each position still offers.
    free: Vec<f64>,
    /// The first position of the backward pass.
    backward: usize,
}

/// What bringing an activation back would cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transfer {
    /// Time that nothing hides.
    pub(super) overhead: Micros,
    /// The position at which the transfer starts, so from which the bytes are taken.
    pub(super) starts: usize,
}

impl Channel {
    pub(super) fn new(run_time: &[Micros], backward: usize) -> Channel {
        Channel { free: run_time.iter().map(|t| t.get()).collect(), backward }
    }

    /// A recomputation runs before position `at`, and hides transfers too.
    pub(super) fn add_recomputation(&mut self, at: usize, time: Micros) {
        self.free[at] += time.get();
    }

    /// The cost of a transfer of `time` that must end before position `first_use`, starting after
    /// position `over_budget` (the last one at which memory is over the budget).
    pub(super) fn cost(
        &self,
        time: Micros,
        first_use: usize,
        over_budget: Option<usize>,
    ) -> Transfer {
        let earliest = over_budget.map_or(self.backward, |at| self.backward.max(at + 1));
        let mut left = time.get();
        let mut starts = first_use;
        while left > 0.0 && starts > earliest {
            starts -= 1;
            left -= self.free[starts].min(left);
        }
        Transfer { overhead: Micros(left), starts }
    }

    /// Takes the channel for that transfer.
    pub(super) fn take(&mut self, time: Micros, first_use: usize, transfer: Transfer) {
        let mut left = time.get();
        for at in (transfer.starts..first_use).rev() {
            let used = self.free[at].min(left);
            self.free[at] -= used;
            left -= used;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six positions; the backward pass starts at 2 with run times 4, 3, 2, 1.
    fn channel() -> Channel {
        Channel::new(&[9.0, 9.0, 4.0, 3.0, 2.0, 1.0].map(Micros), 2)
    }

    #[track_caller]
    fn check(transfer: Transfer, overhead: f64, starts: usize) {
        let overhead = Micros(overhead);
        assert_eq!(transfer, Transfer { overhead, starts });
    }

    #[test]
    fn a_transfer_hides_behind_the_nodes_before_its_use() {
        // Before position 5 there are 2 + 3 + 4 of backward time.
        check(channel().cost(Micros(4.0), 5, None), 0.0, 3);
        check(channel().cost(Micros(9.0), 5, None), 0.0, 2);
        // The forward pass hides nothing: 12 − 9 is left over.
        check(channel().cost(Micros(12.0), 5, None), 3.0, 2);
    }

    #[test]
    fn nothing_comes_back_while_memory_is_over_the_budget() {
        // Positions up to 3 are over the budget: only position 4 hides, with 2.
        check(channel().cost(Micros(5.0), 5, Some(3)), 3.0, 4);
        check(channel().cost(Micros(5.0), 5, Some(4)), 5.0, 5);
    }

    #[test]
    fn a_transfer_waits_for_the_one_in_flight() {
        let mut channel = channel();
        let first = channel.cost(Micros(4.0), 5, None); // all of position 4, 2 of position 3
        channel.take(Micros(4.0), 5, first);
        // Position 3 has 1 left, position 2 has 4: 6 − 5 is left over.
        check(channel.cost(Micros(6.0), 4, None), 1.0, 2);
    }

    #[test]
    fn a_recomputation_hides_transfers_too() {
        let mut channel = channel();
        channel.add_recomputation(4, Micros(10.0));
        check(channel.cost(Micros(12.0), 5, None), 0.0, 4);
    }
}
