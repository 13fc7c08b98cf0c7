//! Progress on standard error: a bar with an estimate of the time that is left, and the planner's
//! watch.
//!
//! On a terminal one line is redrawn and removed at the end; elsewhere, such as in a log file, a
//! line is written now and then. Work that is soon over shows nothing, and `--quiet` shows nothing
//! ever.

use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rekindle::Preparing;
use rekindle_plan::{Progress, Watch};

/// Work that takes less shows nothing.
const SOON: Duration = Duration::from_millis(500);
/// How often a terminal's line is redrawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is written where nobody redraws it, such as a log file.
const LOG: Duration = Duration::from_secs(5);
/// From this share on, an estimate of what is left means something.
const KNOWN: f64 = 0.02;
/// Characters of the bar.
const BAR: usize = 24;

/// One piece of work on its way.
pub(crate) struct Bar {
    what: String,
    terminal: bool,
    started: Instant,
    /// When it is drawn next, since the start.
    next: Duration,
    /// How wide the line on the terminal is.
    drawn: usize,
}

impl Bar {
    pub(crate) fn new(what: impl Into<String>) -> Bar {
        Bar {
            what: what.into(),
            terminal: std::io::stderr().is_terminal(),
            started: Instant::now(),
            next: SOON,
            drawn: 0,
        }
    }

    /// Shows that `done` of `total` is over, with a remark.
    pub(crate) fn show(&mut self, done: u64, total: u64, remark: &str) {
        let elapsed = self.started.elapsed();
        if elapsed < self.next || crate::output::is_quiet() {
            return;
        }
        self.next = elapsed + if self.terminal { REDRAW } else { LOG };
        let share = done as f64 / total.max(1) as f64;
        let line = line(&self.what, share.min(1.0), elapsed, remark);
        let line = crate::output::visible(&line);
        let mut stderr = std::io::stderr();
        // A closed standard error is no reason to stop.
        let _ = match self.terminal {
            true => write!(stderr, "\r{line:<width$}", width = self.drawn),
            false => stderr.write_all(format!("{line}\n").as_bytes()),
        };
        self.drawn = line.chars().count();
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if self.terminal && self.drawn > 0 {
            let _ = write!(std::io::stderr(), "\r{:<width$}\r", "", width = self.drawn);
            self.drawn = 0;
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// `profiling mlp, batch 4  [####----]  50 %, 3 s left`
fn line(what: &str, share: f64, elapsed: Duration, remark: &str) -> String {
    let filled = ((share * BAR as f64) as usize).min(BAR);
    let bar = "#".repeat(filled) + &"-".repeat(BAR - filled);
    let left = match share >= KNOWN {
        true => elapsed.as_secs_f64() * (1.0 - share) / share,
        false => f64::NAN,
    };
    let comma = if remark.is_empty() { "" } else { ", " };
    format!("{what}  [{bar}] {:3.0} %, {}{comma}{remark}", 100.0 * share, remaining(left))
}

fn remaining(seconds: f64) -> String {
    match seconds {
        s if s.is_nan() => "estimating".into(),
        s if s < 100.0 => format!("{s:.0} s left"),
        s if s < 6000.0 => format!("{:.0} min left", s / 60.0),
        s => format!("{:.1} h left", s / 3600.0),
    }
}

/// The planner's watch: shows its progress and what takes time before it, and stops it at the time
/// limit.
pub(crate) struct Meter {
    bar: Bar,
    limit: Option<Duration>,
}

impl Meter {
    pub(crate) fn new(limit: Option<Duration>) -> Meter {
        Meter { bar: Bar::new("planning"), limit }
    }

    /// Begins another piece of work; the time limit counts from here.
    pub(crate) fn restart(&mut self, what: String) {
        self.bar = Bar::new(what);
    }

    /// Shows what takes time before a step can run; `of` says more about which step it is.
    pub(crate) fn prepare(&mut self, preparing: Preparing, of: &str) {
        let (what, done, total) = match preparing {
            Preparing::Memory { ready, arena } => ("reserving memory", ready.get(), arena.get()),
            Preparing::Profile(p) => ("profiling", p.done as u64, p.total as u64),
        };
        let what = format!("{what}{of}");
        if self.bar.what != what {
            self.restart(what);
        }
        self.bar.show(done, total, "");
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.bar.started.elapsed()
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        self.bar.clear();
    }
}

impl Watch for Meter {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        let best = match progress.best {
            Some(time) => format!("best time {time}"),
            None => format!("lowest peak {}", progress.lowest),
        };
        self.bar.show(progress.done, progress.total, &best);
        match self.limit {
            Some(limit) if self.elapsed() >= limit => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_long_it_takes() {
        let at = |share, seconds, remark| line("it", share, Duration::from_secs(seconds), remark);
        assert_eq!(at(0.25, 5, ""), "it  [######------------------]  25 %, 15 s left");
        assert_eq!(
            at(0.5, 600, "best so far"),
            "it  [############------------]  50 %, 10 min left, best so far"
        );
        assert_eq!(at(0.0, 9, ""), "it  [------------------------]   0 %, estimating");
        assert_eq!(at(1.0, 9, ""), "it  [########################] 100 %, 0 s left");
    }
}
