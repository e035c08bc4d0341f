//! The distinct failures.

use super::{Escaped, counted};
use crate::explore::{CallRef, Failure, Report};
use std::fmt::{self, Write};

/// Most lost calls of a failure that are listed.
pub(super) const LOST_MAX: usize = 100;

pub(super) fn write(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<section aria-labelledby=\"failures\">\n<h2 id=\"failures\">Failures</h2>\n");
    if report.failures.is_empty() {
        page.push_str("<p>The checker accepted every state that was visited.</p>\n");
    }
    for (n, failure) in report.failures.iter().enumerate() {
        one(page, n + 1, failure)?;
    }
    if report.more_failures > 0 {
        let more = counted(report.more_failures, "more distinct failure");
        writeln!(
            page,
            "<p>{more} {} not listed.</p>",
            is(report.more_failures)
        )?;
    }
    page.push_str("</section>\n");
    Ok(())
}

fn is(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

fn one(page: &mut String, number: usize, failure: &Failure) -> fmt::Result {
    let message = match failure.message.trim() {
        "" => "The checker failed without a message",
        message => message,
    };
    let more = match failure.states {
        0 | 1 => String::new(),
        states => format!(" {} failed in this way.", counted(states, "state")),
    };
    writeln!(
        page,
        "<article id=\"failure-{number}\" aria-labelledby=\"message-{number}\">\n\
         <h3 id=\"message-{number}\"><span class=\"nth\">Failure {number}</span> {}</h3>\n\
         <p>Model <code>{}</code>, state <code class=\"id\">{}</code>.{more}</p>",
        Escaped(message),
        Escaped(&failure.model),
        Escaped(&failure.id),
    )?;
    moment(page, failure)?;
    lost(page, &failure.lost)?;
    differences(page, failure)?;
    page.push_str("</article>\n");
    Ok(())
}

/// The place of the crash between calls.
fn moment(page: &mut String, failure: &Failure) -> fmt::Result {
    page.push_str("<dl>\n");
    for (term, call) in [
        ("Newest call that is there", &failure.after),
        ("First call that had not returned", &failure.before),
    ] {
        write!(page, "<dt>{term}</dt><dd>")?;
        match call {
            Some(call) => link(page, call)?,
            None => page.push_str("none"),
        }
        page.push_str("</dd>\n");
    }
    page.push_str("</dl>\n");
    Ok(())
}

/// A link to a call in the timeline.
fn link(page: &mut String, call: &CallRef) -> fmt::Result {
    write!(
        page,
        "<a href=\"#call-{0}\"><span class=\"nth\">{0}</span> <code>{1}</code></a>",
        call.number,
        Escaped(&call.text)
    )?;
    match &*call.by {
        "" => Ok(()),
        by => write!(page, " <span class=\"by\">by {}</span>", Escaped(by)),
    }
}

fn lost(page: &mut String, calls: &[CallRef]) -> fmt::Result {
    if calls.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h4>Lost calls, in whole or in part, before the newest one</h4>\n<ul class=\"calls\">\n",
    );
    for call in calls.iter().take(LOST_MAX) {
        page.push_str("<li>");
        link(page, call)?;
        page.push_str("</li>\n");
    }
    page.push_str("</ul>\n");
    more(page, calls.len().saturating_sub(LOST_MAX), "more call")
}

fn differences(page: &mut String, failure: &Failure) -> fmt::Result {
    if failure.differences.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h4>Differences from the tree that the program saw</h4>\n\
         <table class=\"differences\"><thead><tr><th scope=\"col\">Path</th>\
         <th scope=\"col\">After the crash</th></tr></thead>\n<tbody>\n",
    );
    for difference in &failure.differences {
        writeln!(
            page,
            "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td></tr>",
            Escaped(&difference.path.to_string()),
            Escaped(&difference.what)
        )?;
    }
    page.push_str("</tbody></table>\n");
    more(page, failure.more_differences, "more difference")
}

fn more(page: &mut String, number: usize, thing: &str) -> fmt::Result {
    match number {
        0 => Ok(()),
        number => writeln!(page, "<p>and {}</p>", counted(number, thing)),
    }
}
