//! What e2fsck says of an image, in the terms of our own checker.
//!
//! For tests that have both look: `e2fsck -fn` finds a problem, and prints a line about it;
//! here is which lines soft updates may cause. One process for each image.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use vfs::check::{Report, Severity};

/// How bad an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// Nothing but what soft updates may leave.
    Leaks,
    /// Something that must never be.
    Corrupt,
}

impl Verdict {
    /// Of our own checker's report.
    pub fn of(report: &Report) -> Self {
        match report.worst() {
            None => Self::Clean,
            Some(Severity::Leak) => Self::Leaks,
            Some(Severity::Corrupt) => Self::Corrupt,
        }
    }
}

/// What e2fsck said.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// In short.
    pub verdict: Verdict,
    /// The first line that soft updates cannot cause.
    pub worst: Option<String>,
    /// All that it printed.
    pub output: String,
}

/// Most that is read of what e2fsck prints: on some images it starts over for ever.
const OUTPUT_MAX: u64 = 256 << 10;

/// Runs `e2fsck -fn` on an image. It syncs the image's file, so one in memory (`/dev/shm`)
/// is judged much faster.
///
/// # Errors
/// If e2fsck cannot be started, or its output not be read.
pub fn judge(image: &Path) -> io::Result<Judgement> {
    let mut command = Command::new("e2fsck");
    command.env("LC_ALL", "C").arg("-fn").arg(image);
    // At the end of time, so that no mount lies in the future of a test's clock.
    command.env("E2FSCK_TIME", u32::MAX.to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 == OUTPUT_MAX {
        child.kill()?;
    }
    let status = child.wait()?.code();
    let output = String::from_utf8_lossy(&bytes).into_owned();
    let (mut verdict, mut worst) = read(&output);
    // Exit status 4 is "errors left uncorrected"; 0 is none, or wrong free counts alone.
    let expected = match status {
        Some(0) => true,
        Some(4) => verdict != Verdict::Clean,
        _ => false,
    };
    if !expected && verdict != Verdict::Corrupt {
        verdict = Verdict::Corrupt;
        worst = Some(format!("exit status {status:?}"));
    }
    Ok(Judgement {
        verdict,
        worst,
        output,
    })
}

/// The verdict of `e2fsck -fn` on an image.
///
/// # Errors
/// As of [`judge`].
pub fn verdict(image: &Path) -> io::Result<Verdict> {
    Ok(judge(image)?.verdict)
}

/// When a message is about something that soft updates may leave.
#[derive(Clone, Copy)]
enum Rule {
    /// Not about a problem.
    Noise,
    /// Always.
    Leak,
    /// If the first of two numbers, what is stored, is larger than the second, what it
    /// should be.
    TooHigh,
    /// If it is smaller.
    TooLow,
    /// If the inode has no name: it is half made, or half removed.
    Nameless,
    /// The same of an inode whose `..` leads nowhere.
    NamelessDotDot,
    /// A name of a directory that has another one: if it is not below itself.
    SecondName,
    /// `..` is not where the first name is: if it is where another one is.
    DotDot,
    /// If nothing is in use that is marked as free: no `+` in the list.
    OnlyMinus,
    /// A link count; `..` of directories without a name need not be in it.
    Links,
}

/// Which messages of e2fsck mean what: all of the words must be there, in this order. The
/// first line that matches counts; a line without a match is corruption.
const MESSAGES: &[(&[&str], Rule)] = &[
    (&["Pass "], Rule::Noise),
    (&["WARNING: Filesystem still has errors"], Rule::Noise),
    (&[" files (", "% non-contiguous), "], Rule::Noise),
    (&["not cleanly unmounted, check forced"], Rule::Noise),
    (&["Connect to /lost+found? no"], Rule::Noise),
    (&["Unattached inode "], Rule::Leak),
    (&["Unattached zero-length inode "], Rule::Leak),
    (&["Unconnected directory inode "], Rule::Leak),
    (&["'..' in ", "should be <The NULL inode> (0)"], Rule::Leak),
    (&["'..' in ", ") is ", ", should be "], Rule::DotDot),
    (
        &["Entry '", "' in ", " is a link to directory "],
        Rule::SecondName,
    ),
    (
        &["Entry '..' in ", "has deleted/unused inode "],
        Rule::NamelessDotDot,
    ),
    (
        &["Entry '..' in ", "has an incorrect filetype"],
        Rule::NamelessDotDot,
    ),
    (&["Deleted inode ", " has zero dtime"], Rule::Leak),
    (&["was part of the orphaned inode list"], Rule::Leak),
    (
        &["part of a corrupted orphan linked list found"],
        Rule::Leak,
    ),
    (&["is in use, but has dtime set"], Rule::Leak),
    (&["Root inode has dtime set"], Rule::Leak),
    (&["Free blocks count wrong"], Rule::Leak),
    (&["Free inodes count wrong"], Rule::Leak),
    (&["Directories count wrong"], Rule::Leak),
    (&["Block bitmap differences: "], Rule::OnlyMinus),
    (&["Inode bitmap differences: "], Rule::OnlyMinus),
    (&["Inode ", "i_blocks is ", "should be "], Rule::Leak),
    (&["Inode ", "i_size is ", "should be "], Rule::TooLow),
    (
        &[
            "Extended attribute block ",
            "reference count ",
            "should be ",
        ],
        Rule::TooHigh,
    ),
    (&["Inode ", "ref count is ", "should be "], Rule::Links),
    (&["Inode ", " is a zero-length directory"], Rule::Nameless),
    (
        &["Directory inode ", "has an unallocated block"],
        Rule::Nameless,
    ),
    (&["Symlink ", "(inode #", ") is invalid"], Rule::Nameless),
];

fn rule(line: &str) -> Option<Rule> {
    let all = |words: &[&str]| {
        let mut rest = line;
        words.iter().all(|word| {
            let found = rest.find(word);
            rest = found.map_or("", |at| &rest[at + word.len()..]);
            found.is_some()
        })
    };
    let found = MESSAGES.iter().find(|(words, _)| all(words));
    found.map(|(_, rule)| *rule)
}

/// The numbers in a line, in order.
fn numbers(line: &str) -> Vec<u64> {
    let parts = line.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|n| n.parse().ok()).collect()
}

/// The inodes without a name, and for each directory how many nameless ones have it as `..`.
fn nameless(output: &str) -> (Vec<u64>, BTreeMap<u64, u64>) {
    let (mut inodes, mut parents) = (Vec::new(), BTreeMap::new());
    for line in output.lines() {
        let unattached = ["Unattached ", "Unconnected directory "];
        if unattached.iter().any(|start| line.starts_with(start)) {
            inodes.extend(numbers(line).first());
        } else if line.starts_with("'..' in ")
            && let Some((from, _)) = line.split_once(", should be <The NULL inode>")
            && let Some(parent) = numbers(from).last()
        {
            *parents.entry(*parent).or_default() += 1;
        }
    }
    (inodes, parents)
}

/// The last number before a phrase: the inode of the path that ends there.
fn inode_before(line: &str, phrase: &str) -> Option<u64> {
    let (path, _) = line.rsplit_once(phrase)?;
    numbers(path).last().copied()
}

/// Whether a name that e2fsck would remove is in the directory that it names, or below.
fn is_below_itself(line: &str) -> bool {
    let paths = line.rsplit_once(" is a link to directory ");
    let Some((from, to)) = paths.and_then(|(from, to)| {
        let (from, _) = from.rsplit_once(" (")?;
        Some((from.rsplit_once("' in ")?.1, to.rsplit_once(" (")?.0))
    }) else {
        return true;
    };
    let rest = from.strip_prefix(to);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Of directories with more than one name: where those are that e2fsck would remove.
fn second_names(output: &str) -> BTreeMap<u64, Vec<u64>> {
    let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in output.lines() {
        if let Some(Rule::SecondName) = rule(line)
            && let Some(parent) = inode_before(line, " is a link to directory ")
            && let Some(directory) = numbers(line).last()
        {
            all.entry(*directory).or_default().push(parent);
        }
    }
    all
}

/// Verdict and first bad line of an output.
fn read(output: &str) -> (Verdict, Option<String>) {
    let (nameless, dotdots) = nameless(output);
    let seconds = second_names(output);
    let mut verdict = Verdict::Clean;
    for line in output.lines() {
        // The answer to a question that a line before has put.
        let answer = line.ends_with("? no") && line.split_whitespace().count() <= 3;
        if line.trim().is_empty() || answer {
            continue;
        }
        let n = numbers(line);
        let benign = match rule(line) {
            Some(Rule::Noise) => continue,
            Some(Rule::Leak) => true,
            Some(Rule::OnlyMinus) => !line.contains('+'),
            Some(Rule::Nameless) => n.first().is_some_and(|ino| nameless.contains(ino)),
            Some(Rule::NamelessDotDot) => {
                inode_before(line, " has ").is_some_and(|ino| nameless.contains(&ino))
            }
            Some(Rule::SecondName) => {
                let names = n.last().and_then(|ino| seconds.get(ino));
                names.is_some() && !is_below_itself(line)
            }
            Some(Rule::DotDot) => {
                let directory = inode_before(line, " is ");
                let names = directory.and_then(|ino| seconds.get(&ino));
                let above = inode_before(line, ", should be ");
                names.is_some_and(|parents| above.is_some_and(|above| parents.contains(&above)))
            }
            Some(Rule::TooHigh) => n.len() >= 3 && n[1] > n[2],
            Some(Rule::TooLow) => n.len() >= 3 && (n[1] < n[2] || nameless.contains(&n[0])),
            Some(Rule::Links) => {
                let spare = n.first().and_then(|ino| dotdots.get(ino)).copied();
                n.len() >= 3 && n[1] + spare.unwrap_or(0) >= n[2]
            }
            None => false,
        };
        if !benign {
            return (Verdict::Corrupt, Some(line.to_string()));
        }
        verdict = Verdict::Leaks;
    }
    (verdict, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Verdict {
        read(lines).0
    }

    #[test]
    fn lines_are_weighed() {
        assert_eq!(
            of("Pass 1: Checking inodes, blocks, and sizes\n"),
            Verdict::Clean
        );
        assert_eq!(
            of("Block bitmap differences:  -(700--702)\nFix? no\n"),
            Verdict::Leaks
        );
        assert_eq!(
            of("Block bitmap differences:  +12 -(700--702)\n"),
            Verdict::Corrupt
        );
        let links = |is, should| {
            of(&format!(
                "Inode 12 ref count is {is}, should be {should}.  Fix? no\n"
            ))
        };
        assert_eq!(links(3, 2), Verdict::Leaks);
        assert_eq!(links(2, 3), Verdict::Corrupt);
        assert_eq!(
            of("Entry 'a' in / (2) has deleted/unused inode 13.\n"),
            Verdict::Corrupt
        );
    }

    #[test]
    fn a_directory_may_have_several_names() {
        let second = "Entry 'D' in /B (13) is a link to directory /A/D (14).\nClear? no\n";
        assert_eq!(of(second), Verdict::Leaks);
        let there = "'..' in /A/D (14) is /B (13), should be /A (12).\n";
        assert_eq!(of(&format!("{second}{there}")), Verdict::Leaks);
        assert_eq!(of(there), Verdict::Corrupt);
        let elsewhere = "'..' in /A/D (14) is / (2), should be /A (12).\n";
        assert_eq!(of(&format!("{second}{elsewhere}")), Verdict::Corrupt);
        let third = "Entry 'E' in /B (13) is a link to directory /A/D (14).\nClear? no\n";
        assert_eq!(of(&format!("{second}{third}")), Verdict::Leaks);
        let ring = "Entry 'A' in /A/D (14) is a link to directory /A (12).\nClear? no\n";
        assert_eq!(of(ring), Verdict::Corrupt);
    }

    #[test]
    fn what_has_no_name_may_be_half_made() {
        let empty = "Inode 13 is a zero-length directory.  Clear? no\n";
        assert_eq!(of(empty), Verdict::Corrupt);
        let nameless = format!("{empty}Unconnected directory inode 13 (was in /)\n");
        assert_eq!(of(&nameless), Verdict::Leaks);
        let removed = "Unconnected directory inode 13 (was in /a)\n\
            '..' in ... (13) is /a (12), should be <The NULL inode> (0).\n\
            Inode 12 ref count is 2, should be 3.  Fix? no\n";
        assert_eq!(of(removed), Verdict::Leaks);
    }
}
