//! Facts about a mount, which its root reports as extended attributes.

use std::fmt;
use std::sync::Arc;

/// A fact about a mount, computed at each request.
#[derive(Clone)]
pub struct Fact(Arc<dyn Fn() -> String + Send + Sync>);

impl Fact {
    /// A fact that `tell` computes at each request, on a thread that serves requests.
    pub fn new(tell: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self) -> String {
        (self.0)()
    }
}

impl From<String> for Fact {
    /// A fact that does not change.
    fn from(text: String) -> Self {
        Self::new(move || text.clone())
    }
}

impl fmt::Debug for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fact")
    }
}

/// Facts about the mount: names and values of extended attributes of the root. They are
/// in no list, so that nothing copies them.
pub type Facts = Vec<(&'static str, Fact)>;
