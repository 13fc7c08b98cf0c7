//! Ctrl-C: the tool ends at once, and leaves no half-written file.

use crate::{exit, output};

/// From here on, Ctrl-C and the system's wish to end are heard.
pub(crate) fn watch() {
    let heard = ctrlc::set_handler(|| {
        output::error("interrupted; no half-written file is left");
        exit::now(exit::INTERRUPTED)
    });
    if let Err(error) = heard {
        output::note(&format!("Ctrl-C may leave a half-written file: {error}"));
    }
}
