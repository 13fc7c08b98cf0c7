//! The arena: one block of memory that holds every tensor of a step.

use std::io;
use std::path::Path;

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
            return Err(EngineError::OutOfMemory { needed: size, available });
        }
        let reserve = |reason: String| EngineError::Reserve { needed: size, reason };
        let len = usize::try_from(size.get().max(1)).map_err(|e| reserve(e.to_string()))?;
        let mut map = mapped(len).map_err(|e| reserve(e.to_string()))?;
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

/// At least so many zeroed bytes, in huge pages where the system has them.
pub(crate) fn mapped(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes.max(1))?;
    // Huge pages are a matter of speed alone, so a kernel without them is no error.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// The most bytes that this process ever had in memory, as the system counts them (`VmHWM`); `None`
/// where it does not say.
pub fn resident_peak() -> Option<Bytes> {
    in_kib("/proc/self/status", "VmHWM:")
}

/// What the system says it can give without swapping and the process's control groups allow; `None`
/// where neither says.
fn available_memory() -> Option<Bytes> {
    let machine = in_kib("/proc/meminfo", "MemAvailable:");
    machine.into_iter().chain(room_in_groups()).min()
}

/// The number of KiB after `name` in a file of the system.
fn in_kib(path: &str, name: &str) -> Option<Bytes> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(Bytes(number_after(&text, name)? * 1024))
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|&word| word == name)?;
    words.next()?.parse().ok()
}

/// What the memory control groups (version 2) that hold this process leave it, if any does.
fn room_in_groups() -> Option<Bytes> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(own);
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(room_in_group).min()
}

/// What the limit of one group leaves. Cached files are no obstacle: the system drops them first.
fn room_in_group(folder: &Path) -> Option<Bytes> {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    // A group without a limit says `max`.
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let cached = number_after(&read("memory.stat")?, "file")?;
    Some(Bytes(limit.saturating_sub(used.saturating_sub(cached))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_leaves_what_its_limit_says_without_cached_files() {
        let folder = std::env::temp_dir().join(format!("rekindle-group.{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        let write = |file, text| std::fs::write(folder.join(file), text).expect("writable");
        assert_eq!(room_in_group(&folder), None, "no group at all");
        write("memory.current", "700\n");
        write("memory.stat", "anon 500\nfile_mapped 1\nfile 200\n");
        write("memory.max", "max\n");
        let unlimited = room_in_group(&folder);
        write("memory.max", "1000\n");
        let limited = room_in_group(&folder);
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!((unlimited, limited), (None, Some(Bytes(500))));
    }
}
