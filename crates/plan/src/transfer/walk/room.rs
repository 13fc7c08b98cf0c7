//! What leaves memory when there is no room: of the idle storages with a copy and of those without,
//! the one that is used last; of these two the one that costs less time.

use super::{IN, Idle, MOST_OTHERS, OUT, Walk};

impl Walk<'_> {
    /// Frees until the position at hand fits.
    pub(super) fn make_room(&mut self) -> Option<()> {
        if self.at < self.lives.end() {
            let node = self.graph.node(self.lives.order[self.at]);
            for s in node.reads.iter().chain(&node.writes) {
                self.touched[s.index()] = self.at as u32;
            }
        }
        while self.full.get(self.at) > self.budget {
            self.free_one()?;
        }
        Some(())
    }

    /// Frees what costs the least time.
    fn free_one(&mut self) -> Option<()> {
        self.work += 1;
        let copied = self.top_copied();
        let bare = self.bare_at(self.at, false).map(|entry| {
            self.bare.push(entry);
            entry.2.0 as usize
        });
        let cost_of = |s: usize| self.cost_of_freeing(s);
        let mut best: Option<(f64, usize)> = None;
        for s in [copied, bare].into_iter().flatten() {
            let cost = cost_of(s);
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, s));
            }
        }
        // What leaves anyway only has to be waited for.
        if let Some(&(ends, s)) = self.leaving.front()
            && best.is_none_or(|(least, _)| ends - self.compute <= least)
        {
            self.leaving.pop_front();
            self.leave(s as usize);
            return Some(());
        }
        let (_, s) = best?;
        if !self.is_copied(s) {
            self.offload(s);
            self.could_be_out(s, self.at);
        }
        self.free(s)
    }

    /// The one with a copy that is used last.
    pub(super) fn top_copied(&mut self) -> Option<usize> {
        loop {
            let &(_, next, std::cmp::Reverse(s), _) = self.copied.peek()?;
            let s = s as usize;
            let is_idle = self.places[s].inside
                && self.next_use(s) == next as usize
                && next as usize > self.at
                && self.touched[s] != self.at as u32;
            if is_idle && self.is_copied(s) {
                return Some(s);
            }
            self.copied.pop();
        }
    }

    /// The one without a copy that lies idle at position `over` and is used last then; `in_time`,
    /// one that has left by then if it leaves now, or otherwise the one that has left first. Its
    /// entry is taken out.
    pub(super) fn bare_at(&mut self, over: usize, in_time: bool) -> Option<Idle> {
        let needed = self.compute + self.lives.begins[over] - self.lives.begins[self.at];
        let mut others = Vec::new();
        let mut found = None;
        // What would be late: when it would have left, and where it is among the others.
        let mut late: Option<(f64, usize)> = None;
        while let Some(entry) = self.bare.pop() {
            self.work += 1;
            let (_, next, std::cmp::Reverse(s), from) = entry;
            let place = &self.places[s as usize];
            let is_over = next as usize <= self.at || place.gone || !place.inside;
            if is_over || place.copied.is_some() || !self.may_offload(s as usize) {
                continue;
            }
            if from as usize <= over && over < next as usize {
                let gone = match in_time && !self.may_start_outside(s as usize) {
                    true => self.would_end(OUT, s as usize, place.arrives),
                    false => needed,
                };
                if gone <= needed {
                    found = Some(entry);
                    break;
                }
                if late.is_none_or(|(first, _)| gone < first) {
                    late = Some((gone, others.len()));
                }
            }
            others.push(entry);
            if others.len() > MOST_OTHERS {
                break;
            }
        }
        if let (None, Some((_, at))) = (found, late) {
            found = Some(others.swap_remove(at));
        }
        self.bare.extend(others);
        found
    }

    /// Time that compute waits now and probably later if `s` is freed.
    fn cost_of_freeing(&self, s: usize) -> f64 {
        let place = &self.places[s];
        let gone = match place.copied {
            Some(_) => place.leaves.max(place.arrives),
            None if self.may_start_outside(s) => 0.0,
            None => self.would_end(OUT, s, place.arrives),
        };
        let now = (gone - self.compute).max(0.0);
        let next = self.next_use(s);
        if next > self.lives.end() {
            return now;
        }
        let takes = self.store.latency.get()
            + self.lives.bytes[s] as f64 / self.store.in_rate.get().max(f64::MIN_POSITIVE);
        let needed = self.compute + now + self.lives.begins[next] - self.lives.begins[self.at];
        let back = self.compute.max(self.channel[IN]).max(self.compute + now) + takes;
        now + (back - needed).max(0.0)
    }
}
