//! Signals: Ctrl-C ends the tool at once and leaves no half-written file; a file that may not grow
//! any more is an error like a full disk.

use crate::{exit, output};

/// From here on, Ctrl-C and the system's wish to end are heard, and a limit on the size of files
/// (`ulimit -f`) makes the write fail that exceeds it, instead of killing the tool.
pub(crate) fn watch() {
    let heard = ctrlc::set_handler(|| {
        output::error("interrupted; no half-written file is left");
        exit::now(exit::INTERRUPTED)
    });
    if let Err(error) = heard {
        output::note(&format!("Ctrl-C may leave a half-written file: {error}"));
    }
    #[cfg(unix)]
    survive_large_files();
}

/// Whoever hears the signal lives on. That it came is of no interest: the write says so, too.
#[cfg(unix)]
fn survive_large_files() {
    let came = std::sync::Arc::default();
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, came) {
        output::note(&format!("a limit on the size of files ends the tool: {error}"));
    }
}
