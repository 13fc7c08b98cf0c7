//! Runs the `rekindle` binary in a folder of its own.

#![allow(dead_code)] // Each file of tests uses some of it.

#[cfg(target_os = "linux")]
pub(crate) mod limit;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus");

/// The text of a graph of the corpus.
pub(crate) fn corpus(name: &str) -> String {
    std::fs::read_to_string(format!("{CORPUS}/{name}.json")).expect("it is there")
}

/// What a run gave.
pub(crate) struct Ran {
    /// The exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// Text that is JSON and nothing else.
#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}, in:\n{text}"))
}

/// The text holds every word.
#[track_caller]
pub(crate) fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

/// A folder that disappears with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// A new, empty folder; `name` keeps tests of one process apart.
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("rekindle-cli-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a writable temporary folder");
        Folder(path)
    }

    /// Runs `rekindle` with `arguments`, separated by blanks. `@name` stands for a file of the
    /// corpus.
    pub(crate) fn rekindle(&self, arguments: &str) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// As [`Folder::rekindle`], with code 0; gives what was printed.
    #[track_caller]
    pub(crate) fn works(&self, arguments: &str) -> String {
        self.rekindle(arguments).works()
    }

    /// As [`Folder::works`], for what prints JSON and nothing else.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &str) -> Value {
        json(&self.works(arguments))
    }

    /// As [`Folder::rekindle`], with this code and these words on standard error.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &str, code: i32, words: &[&str]) {
        self.rekindle(arguments).fails(code, words);
    }

    /// The command that [`Folder::rekindle`] runs.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let expand = |word: &str| match word.strip_prefix('@') {
            Some(name) => format!("{CORPUS}/{name}.json"),
            None => word.into(),
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
        command.args(arguments.split_whitespace().map(expand)).current_dir(&self.0);
        command
    }

    /// The files in the folder, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        self.files_in(".")
    }

    /// The files in a folder of it, sorted.
    pub(crate) fn files_in(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(folder)).expect("readable");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            e.expect("readable").file_name().into_string().expect("text")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// A file's text.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect("the file is there")
    }

    /// Makes a pipe, which nobody writes to.
    pub(crate) fn make_fifo(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.0.join(name)).status();
        assert!(made.expect("mkfifo is there").success());
    }

    /// Puts a file there.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), text).expect("writable");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Ran {
    /// Runs a command to its end.
    pub(crate) fn of(command: &mut Command) -> Ran {
        let output = command.output().expect("the binary runs");
        Ran {
            code: output.status.code().expect("it was not killed"),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// The code is `code`, and standard error holds every word.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}", self.err);
        has(&self.err, words);
    }

    /// The code is 0; gives what was printed.
    #[track_caller]
    pub(crate) fn works(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }
}
