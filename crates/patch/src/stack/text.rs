//! The notation: words, terms and their tree, each with its place in the text.
//!
//! The parser panics on no text.

use super::StackError;
use std::fmt::{self, Write};

/// A parsed value, and the offset of its first byte in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct At<T> {
    pub value: T,
    pub at: usize,
}

/// Layers from the top down, and the trees in brackets below the last one.
#[derive(Debug)]
pub(super) struct Tree {
    pub terms: Vec<Term>,
    /// The trees in brackets, and the place of the brackets.
    pub below: Option<At<Vec<Tree>>>,
    /// Offset of the tree's end in the text.
    pub end: usize,
}

/// `name(value, key=value, ...)`, arguments optional.
#[derive(Debug)]
pub(super) struct Term {
    pub name: At<String>,
    pub args: Vec<Arg>,
}

/// `value` or `key=value`.
#[derive(Debug)]
pub(super) struct Arg {
    pub key: Option<At<String>>,
    pub value: At<String>,
}

impl Arg {
    /// Offset of the argument in the text.
    pub(super) fn at(&self) -> usize {
        self.key.as_ref().map_or(self.value.at, |key| key.at)
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}={}", key.value, Quoted(&self.value.value)),
            None => Quoted(&self.value.value).fmt(f),
        }
    }
}

/// Characters that end a word outside of quotes. Between parentheses, `[` and `]` do not.
const MARKS: &[char] = &['>', '(', ')', ',', '=', '"', '\\'];
const BRACKETS: &[char] = &['[', ']'];

/// A word, formatted in quotes if it needs them, with `\` before `"` and `\`.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c: char| c.is_whitespace() || MARKS.contains(&c) || BRACKETS.contains(&c);
        if !self.0.is_empty() && !self.0.contains(special) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Mark(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "'{word}'"),
            Self::Mark(mark) => write!(f, "'{mark}'"),
        }
    }
}

/// Most levels of brackets.
const MAX_DEPTH: usize = 16;

/// Parses a whole text.
pub(super) fn parse(text: &str) -> Result<Tree, StackError> {
    let mut reader = Reader {
        text,
        tokens: tokens(text)?,
        next: 0,
    };
    let tree = reader.tree(0)?;
    match reader.peek() {
        None => Ok(tree),
        Some(_) => Err(reader.expected("'>' or the end")),
    }
}

fn tokens(text: &str) -> Result<Vec<At<Token>>, StackError> {
    let mut tokens = Vec::new();
    let mut in_options = false;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let is_mark = |c: char| MARKS.contains(&c) || (!in_options && BRACKETS.contains(&c));
        let len = match c {
            c if c.is_whitespace() => c.len_utf8(),
            '"' => {
                let (value, len) = quoted_word(text, at)?;
                tokens.push(At { value, at });
                len
            }
            '\\' => return Err(StackError::new(text, at, "'\\' may stand only in quotes")),
            c if is_mark(c) => {
                in_options = c == '(' || (in_options && c != ')');
                let value = Token::Mark(c);
                tokens.push(At { value, at });
                c.len_utf8()
            }
            _ => {
                let rest = &text[at..];
                let ends = |c: char| c.is_whitespace() || is_mark(c);
                let len = rest.find(ends).unwrap_or(rest.len());
                let value = Token::Word(rest[..len].into());
                tokens.push(At { value, at });
                len
            }
        };
        at += len;
    }
    Ok(tokens)
}

/// The word in the quotes that open at `open`, and its length with the quotes.
fn quoted_word(text: &str, open: usize) -> Result<(Token, usize), StackError> {
    let mut word = String::new();
    let mut letters = text[open..].char_indices().skip(1);
    while let Some((at, c)) = letters.next() {
        match c {
            '"' => return Ok((Token::Word(word), at + 1)),
            '\\' => word.extend(letters.next().map(|(_, c)| c)),
            c => word.push(c),
        }
    }
    Err(StackError::new(text, open, "this quote is not closed"))
}

struct Reader<'a> {
    text: &'a str,
    tokens: Vec<At<Token>>,
    next: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|token| &token.value)
    }

    /// Offset of the next token.
    fn here(&self) -> usize {
        let next = self.tokens.get(self.next);
        next.map_or(self.text.trim_end().len(), |token| token.at)
    }

    fn skip(&mut self, mark: char) -> bool {
        let is_next = self.peek() == Some(&Token::Mark(mark));
        self.next += usize::from(is_next);
        is_next
    }

    fn expected(&self, what: &str) -> StackError {
        let what = match self.peek() {
            Some(found) => format!("expected {what}, found {found}"),
            None => format!("expected {what}"),
        };
        StackError::new(self.text, self.here(), what)
    }

    fn word(&mut self, what: &str) -> Result<At<String>, StackError> {
        let at = self.here();
        let Some(Token::Word(word)) = self.peek() else {
            return Err(self.expected(what));
        };
        let value = word.clone();
        self.next += 1;
        Ok(At { value, at })
    }

    fn tree(&mut self, depth: usize) -> Result<Tree, StackError> {
        let mut tree = Tree {
            terms: vec![self.term()?],
            below: None,
            end: 0,
        };
        while self.skip('>') {
            if self.peek() == Some(&Token::Mark('[')) {
                tree.below = Some(self.brackets(depth + 1)?);
                break;
            }
            tree.terms.push(self.term()?);
        }
        tree.end = self.here();
        Ok(tree)
    }

    fn brackets(&mut self, depth: usize) -> Result<At<Vec<Tree>>, StackError> {
        let at = self.here();
        if depth > MAX_DEPTH {
            return Err(StackError::new(
                self.text,
                at,
                "too many brackets inside each other",
            ));
        }
        self.next += 1;
        let mut value = vec![self.tree(depth)?];
        while self.skip(',') {
            value.push(self.tree(depth)?);
        }
        match self.skip(']') {
            true => Ok(At { value, at }),
            false => Err(self.expected("'>', ',' or ']'")),
        }
    }

    fn term(&mut self) -> Result<Term, StackError> {
        let name = self.word("the name of a layer")?;
        let mut args = Vec::new();
        if self.skip('(') {
            while !self.skip(')') {
                args.push(self.arg()?);
                if !self.skip(',') && self.peek() != Some(&Token::Mark(')')) {
                    return Err(self.expected("',' or ')'"));
                }
            }
        }
        Ok(Term { name, args })
    }

    fn arg(&mut self) -> Result<Arg, StackError> {
        let first = self.word("an option or ')'")?;
        if !self.skip('=') {
            return Ok(Arg {
                key: None,
                value: first,
            });
        }
        let value = self.word(&format!("the value of {}", first.value))?;
        Ok(Arg {
            key: Some(first),
            value,
        })
    }
}
