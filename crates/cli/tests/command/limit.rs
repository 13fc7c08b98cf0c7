//! A hard limit on the memory of a process, which the system enforces: a memory control group where
//! one can be made, the address space otherwise. The tests of `rekindle run` and
//! `cargo xtask bench limit` use it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a process may need beside its budget, in bytes: its code, the stacks and heaps of its
/// threads (most of this, and address space only), the model's graphs, the batch and the planner.
pub(crate) const BESIDE_THE_BUDGET: u64 = 192 << 20;

/// What holds a process to its limit.
pub(crate) enum Limit {
    /// A control group in this folder. It bounds what is resident.
    Group(PathBuf),
    /// `ulimit -v` with so many bytes. It bounds what is mapped, resident or not.
    AddressSpace(u64),
}

impl Limit {
    /// A limit of so many bytes, and loud words about what it is.
    pub(crate) fn new(bytes: u64) -> Limit {
        let limit = Limit::group(bytes).unwrap_or(Limit::AddressSpace(bytes));
        eprintln!("THE HARD LIMIT OF {bytes} BYTES IS {limit}");
        limit
    }

    /// A new control group below our own, if the system lets us make one and move into it.
    fn group(bytes: u64) -> Option<Limit> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let own = Path::new("/sys/fs/cgroup").join(own);
        // Where version 2 is mounted elsewhere, this folder is an ordinary one.
        let controllers = std::fs::read_to_string(own.join("cgroup.controllers")).ok()?;
        controllers.split_whitespace().find(|&c| c == "memory")?;
        let folder = own.join(format!("rekindle-limit.{}.{bytes}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let limit = Limit::Group(folder.clone());
        for (file, value) in [("memory.max", bytes), ("memory.swap.max", 0)] {
            let file = folder.join(file);
            file.exists().then_some(())?;
            std::fs::write(file, value.to_string()).ok()?;
        }
        let moved = limit.command("true").status().ok()?.success();
        moved.then_some(limit)
    }

    /// The command that runs `program` under the limit.
    pub(crate) fn command(&self, program: &str) -> Command {
        let enter = match self {
            Limit::Group(folder) => format!("echo $$ > '{}/cgroup.procs'", folder.display()),
            // Without the variable, glibc maps 64 MiB for each thread that allocates, and hardly
            // touches them: address space that is no memory.
            Limit::AddressSpace(bytes) => {
                format!("export MALLOC_ARENA_MAX=1 && ulimit -v {}", bytes / 1024)
            }
        };
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{enter} && exec \"$0\" \"$@\""), program]);
        command
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Group(_) => "a memory control group",
            Limit::AddressSpace(_) => "the address space (no control group can be made here)",
        })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Limit::Group(folder) = self {
            // Nobody is left to tell; an empty group costs nothing.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
