//! The state of the greedy choice: every activation's attributes, and how a choice changes them.
//!
//! Attributes, by μ-TWO's names: `recomp_srcs` ([`Row::sources`]), `recomp_time`
//! ([`Row::recompute_time`]), `recomp_cnt` (what [`Table::update_recomputations`] returns) and
//! `total_recomp_time` ([`Row::total_time`]).

use std::collections::BTreeSet;

use rekindle_graph::{Bytes, Micros};

/// What the table starts from, for one activation.
pub(super) struct Entry {
    pub(super) bytes: Bytes,
    /// The rank of its first backward use.
    pub(super) first_backward: usize,
    /// The rank of its last use.
    pub(super) last_backward: usize,
    /// Activations that its sub-graph reads, as positions in the table.
    pub(super) sources: BTreeSet<usize>,
    /// The time of its sub-graph.
    pub(super) recompute_time: Micros,
    /// Whether its sub-graph may run again.
    pub(super) rebuildable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Candidate,
    Recomputed,
    /// Kept or swapped for good.
    Settled,
}

#[derive(Debug)]
struct Row {
    bytes: Bytes,
    first_backward: usize,
    last_backward: usize,
    sources: BTreeSet<usize>,
    recompute_time: f64,
    total_time: f64,
    state: State,
}

/// All activations.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(entries: Vec<Entry>) -> Table {
        let row = |entry: Entry| Row {
            bytes: entry.bytes,
            first_backward: entry.first_backward,
            last_backward: entry.last_backward,
            sources: entry.sources,
            recompute_time: entry.recompute_time.get(),
            total_time: entry.recompute_time.get(),
            // Nothing is won by dropping nothing.
            state: match entry.rebuildable && entry.bytes > Bytes::ZERO {
                true => State::Candidate,
                false => State::Settled,
            },
        };
        Table { rows: entries.into_iter().map(row).collect() }
    }

    /// The candidate with the highest `recompute_ratio`; the lower id where two are equal.
    pub(super) fn recompute_candidate(&self) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (i, row) in self.rows.iter().enumerate() {
            // A recomputation that costs nothing has an infinite ratio, and comes first.
            let ratio = row.bytes.get() as f64 / row.total_time;
            if row.state == State::Candidate && best.is_none_or(|(_, highest)| ratio > highest) {
                best = Some((i, ratio));
            }
        }
        best.map(|(i, _)| i)
    }

    /// Whether it may still be chosen.
    pub(super) fn is_candidate(&self, i: usize) -> bool {
        self.rows[i].state == State::Candidate
    }

    /// What recomputing it costs, for itself and for the recomputations that need it.
    pub(super) fn total_time(&self, i: usize) -> Micros {
        Micros(self.rows[i].total_time)
    }

    /// Takes a candidate out of the choice without recomputing it.
    pub(super) fn keep(&mut self, i: usize) {
        self.rows[i].state = State::Settled;
    }

    /// Recomputes candidate `t`, and accounts for the side effects.
    pub(super) fn recompute(&mut self, t: usize) {
        let count = self.update_recomputations(t);
        self.rows[t].state = State::Recomputed;
        self.update_candidates(t, count);
    }

    /// Each recomputation that has `t` among its sources loses `t`, gains `t`'s sources, and takes
    /// `t`'s time longer. Returns `recomp_cnt` of `t`: these, plus one for itself.
    fn update_recomputations(&mut self, t: usize) -> usize {
        let mut count = 1;
        for i in 0..self.rows.len() {
            if self.rows[i].state == State::Recomputed && self.rows[i].sources.contains(&t) {
                self.take_over(i, t);
                count += 1;
            }
        }
        count
    }

    /// Brings the remaining candidates up to date after `t` was chosen.
    fn update_candidates(&mut self, t: usize, count: usize) {
        for i in 0..self.rows.len() {
            if self.rows[i].state != State::Candidate {
                continue;
            }
            // While `t` is live again for its own backward uses, it serves as a source as before.
            let active = self.rows[t].first_backward..=self.rows[t].last_backward;
            if self.rows[i].sources.contains(&t) && !active.contains(&self.rows[i].first_backward) {
                self.take_over(i, t);
                let needing = self.recomputations_that_need(i);
                self.rows[i].total_time = (1 + needing) as f64 * self.rows[i].recompute_time;
            }
            if self.rows[t].sources.contains(&i) {
                self.rows[i].total_time = count as f64 * self.rows[i].recompute_time;
            }
        }
    }

    /// `i` no longer starts from `t` but from `t`'s sources.
    fn take_over(&mut self, i: usize, t: usize) {
        let sources = self.rows[t].sources.clone();
        let time = self.rows[t].recompute_time;
        let row = &mut self.rows[i];
        row.sources.remove(&t);
        row.sources.extend(sources);
        row.recompute_time += time;
    }

    fn recomputations_that_need(&self, i: usize) -> usize {
        let needs = |row: &&Row| row.state == State::Recomputed && row.sources.contains(&i);
        self.rows.iter().filter(needs).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain a → b → c → d; the backward pass uses d first, at position 10, then c at 11, b at
    /// 12, a at 13. Each has its left neighbour as source; `a` starts from an input.
    fn chain(bytes: [u64; 4], times: [f64; 4]) -> Table {
        let entry = |i: usize| Entry {
            bytes: Bytes(bytes[i]),
            first_backward: 13 - i,
            last_backward: 13 - i,
            sources: i.checked_sub(1).into_iter().collect(),
            recompute_time: Micros(times[i]),
            rebuildable: true,
        };
        Table::new((0..4).map(entry).collect())
    }

    const A: usize = 0;
    const B: usize = 1;
    const C: usize = 2;
    const D: usize = 3;

    #[track_caller]
    fn check(table: &Table, row: usize, sources: &[usize], time: f64, total: f64) {
        let row = &table.rows[row];
        assert_eq!(row.sources.iter().copied().collect::<Vec<_>>(), sources);
        assert_eq!((row.recompute_time, row.total_time), (time, total));
    }

    #[test]
    fn the_highest_ratio_is_chosen_and_ties_go_to_the_lower_id() {
        // Ratios 4/2 = 2, 6/2 = 3, 9/3 = 3, 2/1 = 2.
        let mut table = chain([4, 6, 9, 2], [2.0, 2.0, 3.0, 1.0]);
        assert_eq!(table.recompute_candidate(), Some(B));
        table.keep(B);
        assert_eq!(table.recompute_candidate(), Some(C));
    }

    #[test]
    fn what_costs_nothing_comes_first_and_what_frees_nothing_never() {
        let table = chain([4, 6, 9, 1], [2.0, 2.0, 3.0, 0.0]);
        assert_eq!(table.recompute_candidate(), Some(D));
        let table = chain([0, 0, 0, 0], [2.0, 2.0, 3.0, 0.0]);
        assert_eq!(table.recompute_candidate(), None);
    }

    #[test]
    fn a_candidate_takes_over_the_sources_of_its_dropped_source() {
        let mut table = chain([1; 4], [2.0, 3.0, 5.0, 7.0]);
        table.recompute(B);
        // c used to start from b; now it starts from a and takes 5 + 3. Nobody else needs c.
        check(&table, C, &[A], 8.0, 8.0);
        // a is the source of b, which is the only recomputation: recomp_cnt of b is 1, so 1 × 2.
        check(&table, A, &[], 2.0, 2.0);
        // d starts from c, which is kept.
        check(&table, D, &[C], 7.0, 7.0);
    }

    #[test]
    fn existing_recomputations_take_over_too_and_are_counted() {
        let mut table = chain([1; 4], [2.0, 3.0, 5.0, 7.0]);
        table.recompute(D);
        // c is d's source: dropping it would cost 5 for itself (recomp_cnt of d is 1).
        check(&table, C, &[B], 5.0, 5.0);
        table.recompute(C);
        // The recomputation of d now starts from b and takes 7 + 5.
        check(&table, D, &[B], 12.0, 7.0);
        // recomp_cnt of c is 2 (d and itself), so b, its source, would be made twice: 2 × 3.
        check(&table, B, &[A], 3.0, 6.0);
        table.recompute(B);
        // d and c both start from a now: 12 + 3 and 5 + 3; recomp_cnt of b is 3, so a costs 3 × 2.
        check(&table, D, &[A], 15.0, 7.0);
        check(&table, C, &[A], 8.0, 5.0);
        check(&table, A, &[], 2.0, 6.0);
    }

    #[test]
    fn a_candidate_that_gains_time_counts_the_recomputations_that_need_it() {
        let mut table = chain([1; 4], [2.0, 3.0, 5.0, 7.0]);
        table.recompute(D);
        table.recompute(B);
        // c takes over b's source and time, 5 + 3 = 8: once for itself and once for d.
        check(&table, C, &[A], 8.0, 16.0);
    }

    #[test]
    fn a_source_that_is_live_again_still_serves() {
        let mut table = chain([1; 4], [2.0, 3.0, 5.0, 7.0]);
        // b is used by the backward pass from 9 to 12, which covers c's first use at 11.
        table.rows[B].first_backward = 9;
        table.recompute(B);
        check(&table, C, &[B], 5.0, 5.0);
    }
}
