//! The arena: one block of memory that holds every tensor of a step.

use memmap2::MmapMut;
use rekindle_graph::Bytes;

use crate::EngineError;

/// A range of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Span {
    pub(crate) fn end(self) -> usize {
        self.offset + self.bytes
    }
}

/// One block of zeroed memory, aligned to a page.
pub(crate) struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Reserves `size` bytes and touches every page, so that no step pays for page faults. That
    /// takes seconds for a large arena; `ready` is told now and then how many bytes are touched.
    pub(crate) fn new(size: Bytes, ready: &mut dyn FnMut(Bytes)) -> Result<Arena, EngineError> {
        if let Some(available) = available_memory()
            && size > available
        {
            return Err(EngineError::OutOfMemory {
                needed: size,
                available,
            });
        }
        let reserve = |reason: String| EngineError::Reserve {
            needed: size,
            reason,
        };
        let len = usize::try_from(size.get().max(1)).map_err(|e| reserve(e.to_string()))?;
        let mut map = MmapMut::map_anon(len).map_err(|e| reserve(e.to_string()))?;
        // Huge pages are a matter of speed alone, so a kernel without them is no error.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        const PAGE: usize = 4096;
        // Often enough for a progress bar, and seldom enough to cost nothing.
        const TOLD: usize = 64 << 20;
        for (index, piece) in map.chunks_mut(TOLD).enumerate() {
            for at in (0..piece.len()).step_by(PAGE) {
                piece[at] = 0;
            }
            ready(Bytes((index * TOLD + piece.len()) as u64));
        }
        Ok(Arena { map })
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub(crate) fn bytes(&self, span: Span) -> &[u8] {
        &self.map[span.offset..span.end()]
    }

    pub(crate) fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.map[span.offset..span.end()]
    }
}

/// What the system says it can give without swapping; `None` where it does not say.
fn available_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes(kib * 1024))
}
