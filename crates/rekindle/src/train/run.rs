//! The loop of a training run: update, evaluate, keep the best and the last.

use std::path::PathBuf;

use rekindle_data::Skipped;

use super::evaluation::Metrics;
use super::session::{Session, UpdateReport};
use crate::Error;

/// What a run writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    /// The trained weights: of the best evaluation, or of the last update where nothing is
    /// evaluated.
    pub weights: Option<PathBuf>,
    /// The one entry of their file's metadata.
    pub note: Option<(&'static str, String)>,
    /// The checkpoint after the last update.
    pub last: Option<PathBuf>,
    /// The checkpoint of the best evaluation.
    pub best: Option<PathBuf>,
    /// Updates between two checkpoints; there is one after each evaluation and at the end anyway.
    pub checkpoint_every: Option<u64>,
}

/// Who wants to know how a run comes along.
pub trait Watch {
    /// An update is over.
    fn updated(&mut self, session: &Session<'_>, report: &UpdateReport);
    /// A part of an evaluation is over.
    fn evaluating(&mut self, done: u64, total: u64, skipped: &[Skipped]);
    /// The weights as they are now are the run's result so far.
    ///
    /// # Errors
    /// If they cannot be put where somebody wants them.
    fn weights(&mut self, _session: &Session<'_>) -> Result<(), Error> {
        Ok(())
    }
    /// An evaluation is over.
    fn evaluated(&mut self, session: &Session<'_>, metrics: &Metrics, is_best: bool);
}

/// Trains to the end, from wherever the session is.
///
/// A checkpoint is written when everything that it stands for has been: so a run that is killed at
/// any moment goes on from the last one, and does again what came after it.
///
/// # Errors
/// If data cannot be read, a file cannot be written, or a measured peak is not the predicted one.
pub fn run(session: &mut Session<'_>, files: &Files, watch: &mut dyn Watch) -> Result<(), Error> {
    let mut saved = session.updates_done();
    while !session.is_over() {
        let report = session.update()?;
        watch.updated(session, &report);
        let is_evaluated = session.evaluates_now();
        if is_evaluated {
            let mut told =
                |done, total, skipped: &[Skipped]| watch.evaluating(done, total, skipped);
            let (metrics, is_best) = session.evaluate(&mut told)?;
            watch.evaluated(session, &metrics, is_best);
            if is_best {
                save_weights(session, files, watch)?;
                if let Some(path) = &files.best {
                    session.save_checkpoint(path)?;
                }
            }
        }
        let every = files.checkpoint_every;
        let is_due = every.is_some_and(|every| session.updates_done().is_multiple_of(every));
        if let Some(path) = files.last.as_ref().filter(|_| is_due || is_evaluated) {
            session.save_checkpoint(path)?;
            saved = session.updates_done();
        }
    }
    if session.best().is_none() {
        save_weights(session, files, watch)?;
    }
    match files.last.as_ref().filter(|_| saved < session.updates_done()) {
        Some(path) => session.save_checkpoint(path),
        None => Ok(()),
    }
}

fn save_weights(session: &Session<'_>, files: &Files, watch: &mut dyn Watch) -> Result<(), Error> {
    if let Some(path) = &files.weights {
        session.save_weights(path, files.note.clone())?;
    }
    watch.weights(session)
}
