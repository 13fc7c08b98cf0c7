//! Progress on the terminal, and the time limit: the planner's watch.

use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use remat_plan::{Progress, Watch};

/// Work that takes less shows nothing.
const QUIET: Duration = Duration::from_secs(1);
/// How often a terminal's line is redrawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is written where nobody redraws it, such as a log file.
const LOG: Duration = Duration::from_secs(5);

/// Shows progress on standard error, and stops the work at the time limit.
pub(crate) struct Meter {
    started: Instant,
    limit: Option<Duration>,
    next: Duration,
    terminal: bool,
    drawn: bool,
}

impl Meter {
    pub(crate) fn new(limit: Option<Duration>) -> Meter {
        Meter {
            started: Instant::now(),
            limit,
            next: QUIET,
            terminal: std::io::stderr().is_terminal(),
            drawn: false,
        }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn draw(&mut self, progress: &Progress) {
        let percent = 100.0 * progress.done as f64 / progress.total.max(1) as f64;
        let best = match progress.best {
            Some(time) => format!("best time {time}"),
            None => format!("lowest peak {}", progress.lowest),
        };
        let seconds = self.elapsed().as_secs_f64();
        let line = format!("planning: {percent:3.0} %, {best}, {seconds:.1} s");
        let mut stderr = std::io::stderr();
        // A closed standard error is no reason to stop planning.
        let _ = match self.terminal {
            true => write!(stderr, "\r{line:<70}"),
            false => writeln!(stderr, "{line}"),
        };
        self.drawn = true;
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if self.terminal && std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r{:<70}\r", "");
        }
    }
}

impl Watch for Meter {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        let elapsed = self.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + if self.terminal { REDRAW } else { LOG };
            self.draw(progress);
        }
        match self.limit {
            Some(limit) if elapsed >= limit => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}
