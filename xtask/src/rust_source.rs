//! Rust source with its comments and literals blanked, so that a search finds code and only code.
//!
//! Takes the text of a file and gives text of the same lines. Handles line and nested block
//! comments, string and character literals, and raw strings. Limit: it does not expand macros.

/// `source` with every comment, string and character literal replaced by blanks; line breaks stay.
pub(crate) fn code_only(source: &str) -> String {
    let mut rest = source;
    let mut code = String::with_capacity(source.len());
    let mut last = ' ';
    while let Some(next) = rest.chars().next() {
        let skipped = match next {
            '/' => comment_length(rest),
            '"' => Some(string_length(rest)),
            '\'' => character_length(rest),
            'r' if !is_word(last) => raw_string_length(rest),
            _ => None,
        };
        let length = skipped.unwrap_or(next.len_utf8());
        let (token, tail) = rest.split_at(length);
        if skipped.is_some() {
            code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push(next);
        }
        last = next;
        rest = tail;
    }
    code
}

/// Whether `c` can be part of an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn comment_length(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    Some(rest.len())
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// A character literal, told from a lifetime by its closing quote.
fn character_length(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        let after_escaped = 3;
        return rest.get(after_escaped..)?.find('\'').map(|end| after_escaped + end + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 1)
}

fn raw_string_length(rest: &str) -> Option<usize> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let open = 1 + hashes;
    if !rest[open..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let end = rest[open + 1..].find(&close).map(|end| open + 1 + end + close.len());
    Some(end.unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, code: &str) {
        let blanked = code_only(source);
        assert_eq!(blanked.split_whitespace().collect::<Vec<_>>().join(" "), code);
    }

    #[test]
    fn comments_and_literals_go_and_all_else_stays() {
        check("a // unsafe\nb /* x /* unsafe */ y */ c", "a b c");
        check(r##"f("un\"safe", r#"a " b"#, '"', '\'', '\u{1f}')"##, "f( , , , , )");
        check("fn f<'a>(r: &'a str, char: u8)", "fn f<'a>(r: &'a str, char: u8)");
        assert_eq!(code_only("/* a\nb */\n\"c\nd\"\n").matches('\n').count(), 4);
    }
}
