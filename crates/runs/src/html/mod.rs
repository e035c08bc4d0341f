//! Runs and reports for people: a page for a browser, and lines for a terminal.
//!
//! The page is one file. It loads nothing, and shows everything without its script, which opens
//! folded parts and filters the timeline.

mod escape;
mod failures;
mod models;
mod timeline;

pub use timeline::timeline;

use crate::Run;
use crate::explore::Report;
use crate::run::Source;
use escape::{Escaped, count, counted};
use std::fmt::{self, Write};
use timeline::Timeline;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A report as one HTML file without external resources.
pub fn html(run: &Run, report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut page, run, report);
    page
}

fn write(page: &mut String, run: &Run, report: &Report) -> fmt::Result {
    let command = Escaped(&report.command);
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Crash states of {command}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    )?;
    header(page, run, report)?;
    page.push_str("<main>\n");
    models::write(page, &report.models)?;
    unseen(page, &report.unseen)?;
    failures::write(page, report)?;
    Timeline::new(run, &report.failures).write(page)?;
    write!(
        page,
        "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

fn header(page: &mut String, run: &Run, report: &Report) -> fmt::Result {
    let source = match run.header.source {
        Source::Mount => "on a mount",
        Source::Strace => "by strace",
    };
    let on = match &run.header.recorded_on {
        Some(on) => format!(" of {}", Escaped(on)),
        None => String::new(),
    };
    write!(
        page,
        "<header>\n<p class=\"over\">Crash states of</p>\n<h1><code>{}</code></h1>\n\
         <p>{}, recorded {source}{on}. {}.</p>\n</header>\n",
        Escaped(&report.command),
        counted(report.calls, "call"),
        summary(report)
    )
}

/// The result in one sentence.
fn summary(report: &Report) -> String {
    let judged: u64 = report.models.iter().map(|model| model.judged).sum();
    let failed: Vec<&str> = report
        .models
        .iter()
        .filter(|model| model.failed > 0)
        .map(|model| &*model.model)
        .collect();
    let failed = match failed.as_slice() {
        [] => "The checker accepted all of them".to_owned(),
        models => format!(
            "The checker failed states of {}",
            Escaped(&models.join(", "))
        ),
    };
    format!("{} judged. {failed}", counted(judged, "state"))
}

fn unseen(page: &mut String, unseen: &[String]) -> fmt::Result {
    if unseen.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<section aria-labelledby=\"unseen\">\n<h2 id=\"unseen\">Outside of the exploration</h2>\n<ul>\n",
    );
    for line in unseen {
        writeln!(page, "<li>{}</li>", Escaped(line))?;
    }
    page.push_str("</ul>\n</section>\n");
    Ok(())
}

#[cfg(test)]
mod tests;
