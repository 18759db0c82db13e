//! Rust tokens with their lines, so that a rule about code is not misled by comments or strings.
//!
//! The lexer is the one of `proc-macro2`, the groups laid flat. Comments are gone; doc comments
//! are `#[doc = "…"]` attributes, so their text is a literal.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree::{SourceFile, Violation};

/// What a token is. Brackets come as their opening and closing halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Sign,
    Literal,
}

/// One token. `::` is two signs, as in a macro's input.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The tokens of a Rust file.
/// A file that cannot be lexed gives one violation: the compiler says what is wrong with it.
pub(crate) fn lex(file: &SourceFile) -> Result<Vec<Token>, Violation> {
    let stream: TokenStream = file
        .text
        .parse()
        .map_err(|e: proc_macro2::LexError| file.violation(e.span().start().line, "not Rust"))?;
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    Ok(tokens)
}

/// The tokens of a Rust file without its `#[cfg(test)]` items.
pub(crate) fn lex_shipped(file: &SourceFile) -> Result<Vec<Token>, Violation> {
    if file.is_test_code() {
        Ok(Vec::new())
    } else {
        lex(file).map(|tokens| without_test_items(&tokens))
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(word) => {
                tokens.push(Token { kind: Kind::Word, text: word.to_string(), line });
            }
            TokenTree::Punct(sign) => {
                tokens.push(Token { kind: Kind::Sign, text: sign.to_string(), line });
            }
            TokenTree::Literal(literal) => {
                tokens.push(Token { kind: Kind::Literal, text: literal.to_string(), line });
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { kind: Kind::Sign, text: open.to_owned(), line });
                flatten(group.stream(), tokens);
                let line = group.span_close().end().line;
                tokens.push(Token { kind: Kind::Sign, text: close.to_owned(), line });
            }
        }
    }
}

/// Whether the tokens from `at` on read exactly as `texts`.
pub(crate) fn reads(tokens: &[Token], at: usize, texts: &[&str]) -> bool {
    tokens.len() >= at + texts.len() && tokens[at..].iter().zip(texts).all(|(t, s)| t.text == *s)
}

/// The index past the bracket that closes the one at `open`.
fn past_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" if token.kind == Kind::Sign => depth += 1,
            ")" | "]" | "}" if token.kind == Kind::Sign => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

fn without_test_items(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut i = 0;
    while i < tokens.len() {
        if reads(tokens, i, &["#", "[", "cfg", "("]) {
            let end = past_group(tokens, i + 1);
            let condition = &tokens[i + 3..end];
            let names = |word: &str| condition.iter().any(|t| t.text == word);
            if names("test") && !names("not") {
                i = past_item(tokens, end);
                continue;
            }
        }
        kept.push(tokens[i].clone());
        i += 1;
    }
    kept
}

/// The index past the item that starts at `at`: behind its `;` or its body.
fn past_item(tokens: &[Token], at: usize) -> usize {
    let mut i = at;
    while i < tokens.len() {
        match tokens[i].text.as_str() {
            ";" => return i + 1,
            "{" => {
                let end = past_group(tokens, i);
                return if reads(tokens, end, &[";"]) { end + 1 } else { end };
            }
            "(" | "[" => i = past_group(tokens, i),
            _ => i += 1,
        }
    }
    i
}

/// The places where the code names the crate `name`: a path that starts with it, or its import.
/// A module, field or variable of the same name is not the crate.
pub(crate) fn crate_mentions(tokens: &[Token], name: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Word || token.text != name {
            continue;
        }
        let inside_a_path = i >= 3
            && reads(tokens, i - 2, &[":", ":"])
            && (tokens[i - 3].kind == Kind::Word || tokens[i - 3].text == ">")
            && !["use", "as", "return"].contains(&tokens[i - 3].text.as_str());
        let starts_a_path = reads(tokens, i + 1, &[":", ":"]) && !inside_a_path;
        let is_imported = i >= 1 && ["use", "crate"].contains(&tokens[i - 1].text.as_str());
        if starts_a_path || is_imported {
            lines.push(token.line);
        }
    }
    lines
}

/// The modules of `std` (or `core`, `alloc`) the code names: `std::fs::read` and
/// `use std::{fs, io::Read}` name `fs` and `io`.
pub(crate) fn std_modules(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for i in 0..tokens.len() {
        let is_std = ["std", "core", "alloc"].contains(&tokens[i].text.as_str());
        if !is_std || !reads(tokens, i + 1, &[":", ":"]) {
            continue;
        }
        let Some(next) = tokens.get(i + 3) else { continue };
        if next.text != "{" {
            found.push((next.text.clone(), next.line));
            continue;
        }
        let end = past_group(tokens, i + 3);
        let mut j = i + 4;
        let mut starts = true;
        while j < end {
            let token = &tokens[j];
            if starts && token.kind == Kind::Word {
                found.push((token.text.clone(), token.line));
            }
            starts = token.text == ",";
            j = if token.text == "{" { past_group(tokens, j) } else { j + 1 };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{crate_mentions, lex_shipped, std_modules};
    use crate::tree::SourceFile;

    fn shipped(text: &str) -> Vec<super::Token> {
        lex_shipped(&SourceFile::planted("x/src/lib.rs", text)).expect("the planted text is Rust")
    }

    #[test]
    fn test_items_are_left_out_and_what_follows_them_is_kept() {
        let tokens = shipped(
            "#[cfg(test)] use a::{b, c};\n#[cfg(test)]\n#[allow(x)] mod t { fn gone() {} }\n\
             #[cfg(not(test))] fn kept() {}\nfn also_kept() {}",
        );
        let words: Vec<_> = tokens.iter().map(|t| t.text.as_str()).collect();
        assert!(!words.contains(&"gone") && !words.contains(&"b"));
        assert!(words.contains(&"kept") && words.contains(&"also_kept"));
    }

    #[test]
    fn a_crate_is_told_from_a_module_or_field_of_its_name() {
        let yes = [
            "use sled::Db;",
            "fn f(d: &sled::Db) {}",
            "use ::sled::Db;",
            "use sled as s;",
            "extern crate sled;",
            "use {sled::Db, x::Y};",
        ];
        for text in yes {
            assert_eq!(crate_mentions(&shipped(text), "sled"), [1], "{text}");
        }
        let no = [
            "mod sled;",
            "use self::sled::Store;",
            "fn f() { let sled = s.sled; }",
            "/// sled::Db\nfn f() { g(\"sled::Db\"); } // sled::Db",
        ];
        for text in no {
            assert!(crate_mentions(&shipped(text), "sled").is_empty(), "{text}");
        }
    }

    #[test]
    fn modules_of_std_are_found_in_paths_and_groups() {
        let tokens = shipped("use std::{fs, collections::{BTreeMap}, io::Read};\nstd::env::var()");
        let names: Vec<_> = std_modules(&tokens).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["fs", "collections", "io", "env"]);
    }
}
