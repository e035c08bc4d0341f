//! The calls of a run, in order.

use super::failures::LOST_MAX;
use super::{Escaped, counted};
use crate::explore::Failure;
use crate::{Bytes, Call, Entry, Kind, Node, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::iter::once;

/// Most calls of a timeline that is not cut.
const CALLS_MAX: usize = 2000;

/// Calls that are shown on each side of one that a failure names: the most that fit.
const AROUND: [usize; 10] = [1000, 500, 200, 100, 50, 20, 10, 5, 2, 1];

/// Most bytes of an output that are shown.
const OUTPUT_MAX: usize = 60;

/// The calls of a run as lines of text: first the setup, then each call with its number and process.
pub fn timeline(run: &Run) -> impl Iterator<Item = String> + '_ {
    let calls = &run.entries[run.header.setup..];
    let digits = run.entries.len().saturating_sub(1).to_string().len();
    let by = |entry: &Entry| Bytes::from(entry.by.as_bytes()).to_string();
    let width = calls.iter().map(|entry| by(entry).chars().count()).max();
    let width = width.unwrap_or(0);
    let lines = calls.iter().enumerate().map(move |(n, entry)| {
        let number = n + run.header.setup;
        let text = Bytes::from(text(run, entry).as_bytes());
        match width {
            0 => format!("{number:>digits$}  {text}"),
            _ => format!("{number:>digits$}  {:width$}  {text}", by(entry)),
        }
    });
    once(format!("setup: {}", setup(run))).chain(lines)
}

/// The tree in which the program started, in a line.
fn setup(run: &Run) -> String {
    let tree = match (run.header.setup, run.start()) {
        (0, _) => return "an empty directory".into(),
        (_, Err(why)) => return why,
        (_, Ok(tree)) => tree,
    };
    let nodes: BTreeSet<Node> = tree.paths().into_iter().map(|(_, node)| node).collect();
    let (mut directories, mut files, mut others) = (0u64, 0u64, 0u64);
    for inode in nodes.iter().filter_map(|node| tree.get(*node)) {
        match inode.kind {
            Kind::Directory => directories += 1,
            Kind::File => files += 1,
            _ => others += 1,
        }
    }
    let parts: Vec<String> = [
        (files, "file"),
        (directories, "directory"),
        (others, "other inode"),
    ]
    .into_iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, thing)| match (number, thing) {
        (2.., "directory") => format!("{} directories", super::count(number)),
        _ => counted(number, thing),
    })
    .collect();
    match parts.is_empty() {
        true => "an empty directory".into(),
        false => parts.join(", "),
    }
}

/// The text of a call, with the begin of an output.
fn text(run: &Run, entry: &Entry) -> String {
    let mut text = entry.text.clone();
    if let Call::Output { data } = entry.call {
        let bytes = run.bytes(data);
        let shown = Bytes::from(&bytes[..bytes.len().min(OUTPUT_MAX)]);
        let more = if bytes.len() > OUTPUT_MAX { " ..." } else { "" };
        let _ = write!(text, ": {shown:?}{more}");
    }
    if entry.is_write_back {
        text.push_str(" (write-back of a shared mapping)");
    }
    text
}

/// Class and word for the kind of a call.
fn kind(entry: &Entry) -> (&'static str, &'static str) {
    match entry.call {
        _ if entry.is_write_back => ("change", "write-back"),
        Call::Sync { .. } | Call::SyncAll => ("sync", "sync"),
        Call::Barrier => ("sync", "barrier"),
        Call::Output { .. } => ("output", "output"),
        Call::Close { .. } => ("change", "close"),
        _ => ("change", "change"),
    }
}

/// The timeline of a page.
pub(super) struct Timeline<'a> {
    run: &'a Run,
    /// By number of a call: the number of a failure, and the part of the call in it.
    marks: BTreeMap<usize, Vec<(usize, Mark)>>,
}

/// The part of a call in a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Lost,
    Newest,
    NotReturned,
}

impl Mark {
    fn words(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Newest => "newest",
            Self::NotReturned => "not returned",
        }
    }
}

impl<'a> Timeline<'a> {
    pub(super) fn new(run: &'a Run, failures: &[Failure]) -> Self {
        let mut marks: BTreeMap<usize, Vec<(usize, Mark)>> = BTreeMap::new();
        for (n, failure) in failures.iter().enumerate() {
            let lost = failure.lost.iter().take(LOST_MAX);
            let lost = lost.map(|call| (call, Mark::Lost));
            let newest = failure.after.iter().map(|call| (call, Mark::Newest));
            let next = failure.before.iter().map(|call| (call, Mark::NotReturned));
            for (call, mark) in lost.chain(newest).chain(next) {
                let of_call = marks.entry(call.number).or_default();
                of_call.push((n + 1, mark));
            }
        }
        Self { run, marks }
    }

    /// The calls that are shown, as ranges.
    fn shown(&self) -> Vec<std::ops::Range<usize>> {
        let (first, end) = (self.run.header.setup, self.run.entries.len());
        if end - first <= CALLS_MAX {
            return once(first..end).collect();
        }
        let named: BTreeSet<usize> = self.marks.keys().copied().chain([first, end - 1]).collect();
        let mut shown = Vec::new();
        for around in AROUND.into_iter().chain([0]) {
            shown = ranges(&named, around, first..end);
            if shown.iter().map(ExactSizeIterator::len).sum::<usize>() <= CALLS_MAX {
                break;
            }
        }
        shown
    }

    pub(super) fn write(&self, page: &mut String) -> fmt::Result {
        let (first, end) = (self.run.header.setup, self.run.entries.len());
        let shown = self.shown();
        let visible: usize = shown.iter().map(ExactSizeIterator::len).sum();
        writeln!(
            page,
            "<section aria-labelledby=\"timeline\">\n<h2 id=\"timeline\">Timeline</h2>\n\
             <p>Before the first call: {}.</p>",
            Escaped(&setup(self.run))
        )?;
        if visible < end - first {
            writeln!(
                page,
                "<p>The timeline is cut: it shows {} of {}, around those that failures name.</p>",
                super::count(visible as u64),
                counted(end - first, "call")
            )?;
        }
        page.push_str(
            "<details open>\n<summary>Calls</summary>\n\
             <table class=\"timeline\" role=\"table\">\n<thead role=\"rowgroup\"><tr role=\"row\">\
             <th scope=\"col\" role=\"columnheader\" class=\"number\">Number</th>\
             <th scope=\"col\" role=\"columnheader\">Kind</th>\
             <th scope=\"col\" role=\"columnheader\">Call</th>\
             <th scope=\"col\" role=\"columnheader\">Process</th>\
             <th scope=\"col\" role=\"columnheader\">In failures</th></tr></thead>\n\
             <tbody role=\"rowgroup\">\n",
        );
        let mut next = first;
        for range in shown {
            self.gap(page, range.start - next)?;
            next = range.end;
            for number in range {
                self.row(page, number)?;
            }
        }
        self.gap(page, end - next)?;
        page.push_str("</tbody>\n</table>\n</details>\n</section>\n");
        Ok(())
    }

    fn gap(&self, page: &mut String, calls: usize) -> fmt::Result {
        match calls {
            0 => Ok(()),
            _ => writeln!(
                page,
                "<tr role=\"row\" class=\"gap\"><td role=\"cell\" colspan=\"5\">{} left out</td></tr>",
                counted(calls, "call")
            ),
        }
    }

    fn row(&self, page: &mut String, number: usize) -> fmt::Result {
        let entry = &self.run.entries[number];
        let (class, word) = kind(entry);
        let marks = self.marks.get(&number).map_or(&[][..], Vec::as_slice);
        let is = |mark| marks.iter().any(|(_, of)| *of == mark);
        let mark = match () {
            () if is(Mark::Lost) => " lost",
            () if is(Mark::Newest) => " newest",
            () => "",
        };
        write!(
            page,
            "<tr role=\"row\" id=\"call-{number}\" class=\"{class}{mark}\">\
             <th scope=\"row\" role=\"rowheader\" class=\"number\">{number}</th>\
             <td role=\"cell\" class=\"kind\"><span>{word}</span></td>\
             <td role=\"cell\" class=\"call\"><code>{}</code></td>\
             <td role=\"cell\" class=\"by\">{}</td><td role=\"cell\" class=\"marks\">",
            Escaped(&text(self.run, entry)),
            Escaped(&entry.by)
        )?;
        for (failure, mark) in marks {
            let words = mark.words();
            write!(
                page,
                "<a href=\"#failure-{failure}\">{failure}: {words}</a> "
            )?;
        }
        page.push_str("</td></tr>\n");
        Ok(())
    }
}

/// The calls around those that are named, within the run.
fn ranges(
    named: &BTreeSet<usize>,
    around: usize,
    within: std::ops::Range<usize>,
) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for &call in named {
        let from = call.saturating_sub(around).max(within.start);
        let to = (call + around + 1).min(within.end);
        match ranges.last_mut() {
            Some(last) if from <= last.end => last.end = last.end.max(to),
            _ => ranges.push(from..to),
        }
    }
    ranges
}
