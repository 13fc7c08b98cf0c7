//! What a Markdown document names: its code (inline spans and the lines of fenced blocks) and its
//! links.
//!
//! Takes the text, gives each piece with the number of its first line. A span lies within one
//! paragraph. Limit: a link lies within one line.

use anyhow::Result;

use crate::repo::Repo;

/// A piece of a document.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The documents that must stay true: those in the root, under `docs`, and of the benchmarks.
pub(crate) fn documents(repo: &Repo) -> Result<Vec<String>> {
    let root = ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "bench/README"];
    let root = root.map(|name| format!("{name}.md"));
    let docs = repo.files("docs", "md")?;
    let docs = docs.iter().map(|path| path.to_string_lossy().into_owned());
    Ok(root.into_iter().chain(docs).collect())
}

/// Every inline code span and every line of a fenced block, without comments and prompts.
pub(crate) fn code(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut fenced = false;
    let mut span: Option<Piece> = None;
    for (index, content) in text.lines().enumerate() {
        let line = index + 1;
        if content.trim().is_empty() {
            span = None;
        } else if content.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let command = content.split(" #").next().unwrap_or_default();
            let text = command.trim().trim_start_matches("$ ").trim().to_string();
            pieces.push(Piece { line, text });
        } else {
            for (part, text) in content.trim().split('`').enumerate() {
                span = match (span.take(), part) {
                    (Some(Piece { line, text: begun }), 0) => {
                        Some(Piece { line, text: format!("{begun} {text}") })
                    }
                    (Some(whole), _) => {
                        pieces.push(whole);
                        None
                    }
                    (None, 0) => None,
                    (None, _) => Some(Piece { line, text: text.into() }),
                };
            }
        }
    }
    pieces
}

/// The targets of `[text](target)`, and of `src="target"` and `href="target"` in inline HTML.
pub(crate) fn links(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, content) in text.lines().enumerate() {
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            for (at, _) in content.match_indices(open) {
                let tail = &content[at + open.len()..];
                if let Some(end) = tail.find(close) {
                    pieces.push(Piece { line: index + 1, text: tail[..end].to_string() });
                }
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pieces: Vec<Piece>) -> Vec<(usize, String)> {
        pieces.into_iter().map(|piece| (piece.line, piece.text)).collect()
    }

    #[test]
    fn code_is_spans_and_fenced_lines() {
        let text = "Run `a b`, `c\nf` and `g`.\n```\n$ d e # why\n```\na ` alone\n\n`h`\n";
        let expected = [(1, "a b"), (1, "c f"), (2, "g"), (4, "d e"), (8, "h")];
        let expected = expected.map(|(n, t)| (n, t.to_string()));
        assert_eq!(texts(code(text)), expected);
    }

    #[test]
    fn links_are_markdown_and_html() {
        let text = "[a](b.md)\n<img src=\"c.svg\"> <a href=\"d\">x</a>\n";
        let expected = [(1, "b.md"), (2, "c.svg"), (2, "d")].map(|(n, t)| (n, t.to_string()));
        assert_eq!(texts(links(text)), expected);
    }
}
