//! Turns panics of the explored system into failures.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `what`. A panic in it becomes an error.
pub(crate) fn caught<T>(what: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = catch_unwind(AssertUnwindSafe(what));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of unknown type")))
    })
}
