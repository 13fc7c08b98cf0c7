//! The progress bar of the profiler, with an estimate of the time that is left.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use remat_profile::Progress;

/// How often a terminal's line is redrawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is written where nobody redraws it, such as a log file.
const LOG: Duration = Duration::from_secs(10);
/// Characters of the bar.
const BAR: usize = 24;

/// Draws on standard error.
pub(crate) struct Meter {
    what: String,
    quiet: bool,
    terminal: bool,
    started: Instant,
    next: Duration,
    /// How wide the line on the terminal is.
    drawn: usize,
}

impl Meter {
    pub(crate) fn new(what: String, quiet: bool) -> Meter {
        let terminal = std::io::stderr().is_terminal();
        Meter {
            what,
            quiet,
            terminal,
            started: Instant::now(),
            next: if terminal { REDRAW } else { LOG },
            drawn: 0,
        }
    }

    /// Shows how far it has come.
    pub(crate) fn show(&mut self, progress: Progress) {
        let elapsed = self.started.elapsed();
        if self.quiet || elapsed < self.next {
            return;
        }
        self.next = elapsed + if self.terminal { REDRAW } else { LOG };
        let line = line(&self.what, progress, elapsed);
        let mut stderr = std::io::stderr();
        // A closed standard error is no reason to stop.
        let _ = match self.terminal {
            true => write!(stderr, "\r{line:<width$}", width = self.drawn),
            false => writeln!(stderr, "{line}"),
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

/// `profiling mlp, batch 4  [####----]  50 %, 3 s left`
fn line(what: &str, progress: Progress, elapsed: Duration) -> String {
    let share = progress.done as f64 / progress.total.max(1) as f64;
    let filled = ((share * BAR as f64) as usize).min(BAR);
    let bar = "#".repeat(filled) + &"-".repeat(BAR - filled);
    let left = match share > 0.0 {
        true => elapsed.as_secs_f64() * (1.0 - share) / share,
        false => f64::NAN,
    };
    format!(
        "{what}  [{bar}] {:3.0} %, {}",
        100.0 * share,
        remaining(left)
    )
}

fn remaining(seconds: f64) -> String {
    match seconds {
        s if s.is_nan() => "estimating".into(),
        s if s < 100.0 => format!("{s:.0} s left"),
        s if s < 6000.0 => format!("{:.0} min left", s / 60.0),
        s => format!("{:.1} h left", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_long_it_takes() {
        let at = |done, total, seconds| {
            line("it", Progress { done, total }, Duration::from_secs(seconds))
        };
        assert_eq!(
            at(1, 4, 5),
            "it  [######------------------]  25 %, 15 s left"
        );
        assert_eq!(
            at(1, 2, 600),
            "it  [############------------]  50 %, 10 min left"
        );
        assert_eq!(
            at(0, 2, 9),
            "it  [------------------------]   0 %, estimating"
        );
        assert_eq!(
            at(2, 2, 9),
            "it  [########################] 100 %, 0 s left"
        );
    }
}
