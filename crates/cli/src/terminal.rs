//! Signs of life for people who wait. Nothing is shown unless standard error is a
//! terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A spinner for work of unknown length.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// A bar for `total` steps. The message is the caller's.
pub(crate) fn bar(total: u64) -> ProgressBar {
    let style = "{elapsed_precise} [{bar:30}] {pos}/{len} {msg}";
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(style) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
