//! What is done ahead of its need: fetches of what is used next, offloads of what will have to go.

use super::{IN, Idle, OUT, Walk};

impl Walk<'_> {
    /// Fetches ahead while the channel would stand still during the run at hand.
    pub(super) fn fetch_early(&mut self) {
        let Some(&id) = self.lives.order.get(self.at) else {
            return;
        };
        let until = self.compute + self.graph.node(id).time.get() + self.slack;
        while self.channel[IN] < until {
            let Some(&(next, s)) = self.out.first() else {
                return;
            };
            self.work += 1;
            let bytes = self.lives.bytes[s as usize];
            let short = |walk: &Self| {
                walk.full.highest_of(walk.at, next as usize - 1) + bytes - walk.budget
            };
            while short(self) > 0
                && let Some(&(ends, gone)) = self.leaving.front()
                && ends <= self.compute
            {
                self.leaving.pop_front();
                self.leave(gone as usize);
            }
            let short = short(self);
            if short > 0 && !(self.habits.swaps && self.swap(short, next)) {
                return;
            }
            self.fetch(s as usize);
        }
    }

    /// Frees `short` bytes of what has a complete copy and is used after position `next`; nothing
    /// if there are not that many.
    fn swap(&mut self, mut short: i64, next: u32) -> bool {
        let mut chosen: Vec<Idle> = Vec::new();
        while short > 0 {
            self.work += 1;
            let Some(s) = self.top_copied() else {
                break;
            };
            let place = &self.places[s];
            let is_later = self.next_use(s) > next as usize;
            if !is_later || place.leaves.max(place.arrives) > self.compute {
                break;
            }
            let entry = self.copied.pop().expect("the top");
            if !chosen.contains(&entry) {
                short -= self.lives.bytes[s];
                chosen.push(entry);
            }
        }
        if short > 0 {
            self.copied.extend(chosen);
            return false;
        }
        chosen.iter().all(|entry| self.free(entry.2.0 as usize).is_some())
    }

    /// Copies what will have to go, while the channel would stand still during the next run.
    pub(super) fn offload_early(&mut self) {
        self.at += 1;
        let ahead = self.lives.order.get(self.at).map_or(0.0, |&id| self.graph.node(id).time.get());
        let until = self.compute + ahead;
        while self.channel[OUT] < until {
            let Some(over) = self.least.first_above(self.at, self.budget) else {
                break;
            };
            let Some(entry) = self.bare_at(over, self.habits.in_time) else {
                break;
            };
            let s = entry.2.0 as usize;
            if self.may_start_outside(s) {
                // Nothing has to be copied.
                if self.free(s).is_none() {
                    break;
                }
                continue;
            }
            self.offload(s);
            self.could_be_out(s, self.at);
            self.copied.push(self.idle(s));
        }
        self.at -= 1;
    }
}
