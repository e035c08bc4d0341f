use super::*;
use crate::explore::{CallRef, Explored, Failure};
use crate::model::tests::run;
use crate::{Bytes, Difference, Entry};
use std::io::Write as _;
use std::process::{Command, Stdio};

const HOSTILE: &str = "<script>alert(\"x\")</script> & ' \u{1b}[31m \u{202e} --> ]]> \u{0}";

fn model(name: &str, judged: u64, failed: u64, complete: bool) -> Explored {
    Explored {
        model: name.into(),
        states: judged * 2,
        judged,
        failed,
        complete,
        refused: None,
        seconds: 1.25,
    }
}

fn call(run: &Run, number: usize) -> CallRef {
    let entry = &run.entries[number];
    CallRef {
        number,
        text: entry.text.clone(),
        by: entry.by.clone(),
    }
}

fn failure(run: &Run, n: usize, lost: &[usize], after: usize, before: usize) -> Failure {
    Failure {
        id: format!("xfs/{before}/{n}-{after}"),
        model: "xfs".into(),
        message: format!("failure {n}"),
        states: 3,
        after: Some(call(run, after)),
        before: (before < run.entries.len()).then(|| call(run, before)),
        lost: lost.iter().map(|number| call(run, *number)).collect(),
        differences: vec![Difference {
            path: Bytes(format!("path {n}").into_bytes()),
            what: "is missing".into(),
        }],
        more_differences: 0,
    }
}

fn report(run: &Run, failures: Vec<Failure>) -> Report {
    Report {
        command: run.header.command.clone(),
        calls: run.entries.len() - run.header.setup,
        models: vec![model("xfs", 1234, failures.len() as u64, true)],
        failures,
        more_failures: 0,
        unseen: Vec::new(),
    }
}

/// A run of `calls` writes with a synchronisation after each tenth.
fn long(calls: usize) -> Run {
    let mut script = "create f\n=\n".to_owned();
    for n in 0..calls {
        script.push_str(if n % 10 == 9 {
            "fsync f\n"
        } else {
            "at f 0 x\n"
        });
    }
    run(&script)
}

/// Elements that have no end.
const EMPTY: [&str; 1] = ["meta"];

/// The tags and the text of a page. Panics if elements overlap or are open at the end.
fn parsed(page: &str) -> (Vec<&str>, String) {
    let (mut tags, mut open, mut text) = (Vec::new(), Vec::new(), String::new());
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = after.split_once('>').unwrap();
        assert!(!tag.contains('<'), "{tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if EMPTY.contains(&name) => {}
            None => open.push(name),
        }
        tags.push(tag);
        // The contents of these are not HTML.
        rest = match name {
            "style" | "script" => &after[after.find("</").unwrap()..],
            _ => after,
        };
    }
    assert_eq!(open, Vec::<&str>::new());
    (tags, text + rest)
}

/// The ids of a page. Each link leads to one of them.
fn checked_links(tags: &[&str]) -> Vec<String> {
    let values = |name: &str| -> Vec<String> {
        let attribute = format!(" {name}=\"");
        let values = tags.iter().filter_map(|tag| tag.split_once(&attribute));
        values
            .map(|(_, value)| value.split('"').next().unwrap().to_owned())
            .collect()
    };
    let ids = values("id");
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len());
    for link in values("href") {
        let target = link.strip_prefix('#').unwrap();
        assert!(ids.iter().any(|id| id == target), "{link}");
    }
    ids
}

fn hostile() -> (Run, Report) {
    let mut run = run("create f\nwrite f one\n=\ncreate t\nwrite t <b>two</b>\nsay <i>\nfsync t\n");
    run.header.command = HOSTILE.into();
    run.header.recorded_on = Some(HOSTILE.into());
    for entry in &mut run.entries {
        entry.by = HOSTILE.into();
        entry.text = format!("write('{HOSTILE}', 3)");
    }
    let mut failure = failure(&run, 1, &[2], 3, 4);
    failure.message = HOSTILE.into();
    failure.differences[0].path = Bytes([HOSTILE.as_bytes(), &[0xff]].concat());
    failure.differences[0].what = HOSTILE.into();
    let mut report = report(&run, vec![failure]);
    report.models[0].model = HOSTILE.into();
    report.models[0].refused = Some(HOSTILE.into());
    report.unseen = vec![HOSTILE.into()];
    (run, report)
}

#[test]
fn text_of_a_run_is_escaped() {
    let (run, report) = hostile();
    let page = html(&run, &report);
    let (tags, text) = parsed(&page);
    let scripts = tags.iter().filter(|tag| tag.starts_with("script"));
    assert_eq!(scripts.count(), 1);
    assert!(
        !tags
            .iter()
            .any(|tag| tag.starts_with(['b', 'i']) && tag.len() == 1)
    );
    let is_hidden = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert_eq!(page.find(is_hidden), None);
    assert!(text.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; &#39;"));
    assert!(text.contains("\\u{1b}[31m \\u{202e}"));
    assert!(text.contains("\\xff"));
    checked_links(&tags);
}

#[test]
fn a_browser_reads_the_elements_that_were_written() {
    const COUNT: &str = "
import sys
from html.parser import HTMLParser
class Count(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open = 0, []
    def handle_starttag(self, tag, attributes):
        self.tags += 1
        if tag != 'meta': self.open.append(tag)
    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())
count = Count()
count.feed(sys.stdin.read())
assert not count.open
print(count.tags)
";
    let (run, report) = hostile();
    let page = html(&run, &report);
    let python = Command::new("python3")
        .args(["-c", COUNT])
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = python else {
        return skip::test("python3 is not installed");
    };
    let mut input = python.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let count: usize = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let (tags, _) = parsed(&page);
    assert_eq!(
        count,
        tags.iter().filter(|tag| !tag.starts_with('/')).count()
    );
}

#[test]
fn the_page_has_no_external_resources() {
    let (run, report) = hostile();
    let page = html(&run, &report);
    for word in [
        "http", "url(", "@import", " src=", "<link", "fetch(", "//cdn",
    ] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn every_failure_is_listed_and_linked_with_its_calls() {
    let run = long(40);
    let failures: Vec<Failure> = (0..7)
        .map(|n| failure(&run, n, &[n + 1, n + 2], n + 4, n + 5))
        .collect();
    let page = html(&run, &report(&run, failures.clone()));
    let (tags, text) = parsed(&page);
    let ids = checked_links(&tags);
    for (n, failure) in failures.iter().enumerate() {
        assert!(text.contains(&failure.id) && text.contains(&failure.message));
        assert!(text.contains(&format!("path {n}")));
        assert!(ids.contains(&format!("failure-{}", n + 1)));
        assert!(page.contains(&format!(
            "<a href=\"#failure-{}\">{}: lost</a>",
            n + 1,
            n + 1
        )));
        assert!(page.contains(&format!(
            "<a href=\"#failure-{}\">{}: newest</a>",
            n + 1,
            n + 1
        )));
    }
    assert!(!text.contains("The timeline is cut"));
}

#[test]
fn a_verdict_is_in_words() {
    let run = long(4);
    let mut report = report(&run, Vec::new());
    report.models = vec![
        model("ext4-ordered", 10, 0, true),
        model("xfs", 10, 2, false),
        model("btrfs", 10, 0, false),
        Explored {
            refused: Some("its calls need extended attributes".into()),
            ..model("ext2", 0, 0, false)
        },
    ];
    let (_, text) = parsed(&html(&run, &report));
    let table = text.split_once("Seconds").unwrap().1;
    let mut rest = table.split_once("Failures").unwrap().0;
    for words in [
        "ext4-ordered",
        "safe",
        "xfs",
        "failed",
        "btrfs",
        "not all states visited",
    ]
    .into_iter()
    .chain(["ext2", "not explored", "its calls need extended attributes"])
    {
        let found = rest.find(words);
        rest = &rest[found.unwrap_or_else(|| panic!("{words}"))..];
    }
}

#[test]
fn a_long_timeline_is_cut_around_the_calls_of_failures() {
    let run = long(9000);
    let failures = vec![
        failure(&run, 0, &[3000, 3001], 3010, 3020),
        failure(&run, 1, &[7000], 7001, 9001),
    ];
    let page = html(&run, &report(&run, failures));
    let (tags, text) = parsed(&page);
    let ids = checked_links(&tags);
    let calls = ids.iter().filter(|id| id.starts_with("call-")).count();
    assert!((200..=2000).contains(&calls), "{calls}");
    for number in [1, 2999, 3000, 3001, 3010, 3020, 7000, 7001, 9000] {
        assert!(ids.contains(&format!("call-{number}")), "{number}");
    }
    assert!(!ids.contains(&"call-5000".to_owned()));
    assert!(text.contains(&format!("it shows {} of 9,000 calls", count(calls as u64))));
    assert!(text.contains("calls left out"));
}

#[test]
fn a_failure_of_many_lost_calls_does_not_show_the_whole_run() {
    let run = long(20_000);
    let lost: Vec<usize> = (1..20_000).collect();
    let page = html(
        &run,
        &report(&run, vec![failure(&run, 0, &lost, 20_000, 20_001)]),
    );
    let (tags, text) = parsed(&page);
    let ids = checked_links(&tags);
    assert!(ids.iter().filter(|id| id.starts_with("call-")).count() <= 2000);
    assert!(text.contains("and 19,899 more calls"), "{text}");
}

#[test]
fn lines_have_the_setup_and_number_process_and_text_of_each_call() {
    let mut run = run("mkdir d\ncreate f\nwrite f one\n=\ncreate t\nsay don\u{7}e\nfsync t\n");
    run.entries[3].by = "sh[12]".into();
    run.entries[5].by = "sync\u{1b}[7]".into();
    let mut mapped = Entry::new(run.entries[5].call.clone(), "write(f)");
    mapped.is_write_back = true;
    run.entries.push(mapped);
    let lines: Vec<String> = timeline(&run).collect();
    assert_eq!(
        lines,
        [
            "setup: 1 file, 1 directory",
            "3  sh[12]         create t",
            "4                 say don\\u{7}e: 'don\\u{7}e'",
            "5  sync\\u{1b}[7]  fsync t",
            "6                 write(f) (write-back of a shared mapping)",
        ]
    );
    let empty = Run::new(run.header.clone());
    let empty = Run {
        header: crate::Header {
            setup: 0,
            ..empty.header
        },
        ..empty
    };
    assert_eq!(
        timeline(&empty).collect::<Vec<_>>(),
        ["setup: an empty directory"]
    );
}
