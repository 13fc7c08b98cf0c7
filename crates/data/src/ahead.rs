//! Batches that are read while a step computes: one thread, and a queue as long as memory allows.
//!
//! The thread reads batch after batch in their order, so what comes out does not depend on when.
//! At any moment there are at most as many batches as [`Ahead::start`] found room for: those in the
//! queue, the one that is being made and the one that was handed out.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use rekindle_graph::Bytes;

use crate::{Batch, Batches, DataError};

/// Longer queues help nobody.
const LONGEST: u64 = 8;
/// The one in use and the one that is being made.
const BESIDE_THE_QUEUE: u64 = 2;

/// Batches on their way.
pub struct Ahead {
    /// Gone when the reader shall stop.
    batches: Option<Receiver<Result<Batch, DataError>>>,
    reader: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Begins to read the batches of these numbers, within `memory`.
    ///
    /// # Errors
    /// If not even the batch in use and the next one have room, or there is no thread.
    pub fn start(
        mut batches: Batches,
        numbers: impl Iterator<Item = u64> + Send + 'static,
        memory: Bytes,
    ) -> Result<Ahead, DataError> {
        let batch = batches.batch_bytes();
        let room = memory.get() / batch.get().max(1);
        if room < BESIDE_THE_QUEUE {
            let needed = Bytes(BESIDE_THE_QUEUE * batch.get());
            return Err(DataError::Memory { needed, given: memory, batch });
        }
        let depth = (room - BESIDE_THE_QUEUE).min(LONGEST);
        let (sender, receiver) = sync_channel(depth as usize);
        let read = move || {
            for number in numbers {
                let batch = batches.read(number);
                let is_last = batch.is_err();
                // Nobody listens any more: there is nothing left to do.
                if sender.send(batch).is_err() || is_last {
                    return;
                }
            }
        };
        let reader = std::thread::Builder::new().name("read ahead".into()).spawn(read);
        let reader = reader.map_err(DataError::Thread)?;
        Ok(Ahead { batches: Some(receiver), reader: Some(reader) })
    }

    /// The next batch.
    ///
    /// # Errors
    /// If it cannot be read, or there is none left.
    pub fn next_batch(&mut self) -> Result<Batch, DataError> {
        let batches = self.batches.as_ref().ok_or(DataError::Ended)?;
        batches.recv().map_err(|_| DataError::Ended)?
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has been heard of: there was no batch.
            let _ = reader.join();
        }
    }
}
