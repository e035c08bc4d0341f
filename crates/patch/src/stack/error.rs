//! Errors with a place in the stack's text.

use std::fmt::{self, Display, Write};

/// Why a text is not a stack. It prints as the defect, the text, and a caret below the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackError {
    what: String,
    text: String,
    /// Offset of the place in the text, in bytes.
    at: usize,
}

impl StackError {
    pub(super) fn new(text: &str, at: usize, what: impl Display) -> Self {
        Self {
            what: what.to_string(),
            text: text.into(),
            at,
        }
    }

    /// The defect, and the correct form.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Offset of the place in the text, in bytes.
    pub fn at(&self) -> usize {
        self.at
    }
}

impl Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  ", self.what)?;
        // On one line, with characters of equal width.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        self.text
            .chars()
            .map(plain)
            .try_for_each(|c| f.write_char(c))?;
        let before = self.text.char_indices().take_while(|(at, _)| *at < self.at);
        write!(f, "\n  {:width$}^", "", width = before.count())
    }
}

impl std::error::Error for StackError {}

/// Why a word is not a value of an option, with the correct form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl ValueError {
    pub(super) fn new(what: impl Display) -> Self {
        Self(what.to_string())
    }
}
