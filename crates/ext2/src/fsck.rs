//! The verdict of e2fsck on an image, in the terms of our own checker.
//!
//! Tests compare the two checkers. `e2fsck -fn` prints a line about each problem, and this module
//! lists the lines that soft updates may cause. Each image takes one process.

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
    /// Only defects that soft updates may leave.
    Leaks,
    /// A defect that must never occur.
    Corrupt,
}

impl Verdict {
    /// The verdict of our own checker's report.
    pub fn of(report: &Report) -> Self {
        match report.worst() {
            None => Self::Clean,
            Some(Severity::Leak) => Self::Leaks,
            Some(Severity::Corrupt) => Self::Corrupt,
        }
    }
}

/// The judgement of e2fsck.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// The class of the worst problem.
    pub verdict: Verdict,
    /// The first line that soft updates cannot cause.
    pub worst: Option<String>,
    /// The whole output.
    pub output: String,
}

/// Most bytes of output that are read. On some images e2fsck starts over for ever.
const OUTPUT_MAX: u64 = 256 << 10;

/// Runs `e2fsck -fn` on an image. It syncs the image's file, so one in memory (`/dev/shm`)
/// is judged much faster.
///
/// # Errors
/// If e2fsck cannot be started, or its output not be read.
pub fn judge(image: &Path) -> io::Result<Judgement> {
    let mut command = Command::new("e2fsck");
    command.env("LC_ALL", "C").arg("-fn").arg(image);
    // At the largest time, so that no mount is in the future of a test's clock.
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
    // Exit status 4 is "errors left uncorrected". 0 is none, or wrong free counts alone.
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

/// The condition under which a message is about a leak of soft updates.
#[derive(Clone, Copy)]
enum Rule {
    /// The message is not about a problem.
    Noise,
    /// Always a leak.
    Leak,
    /// A leak if the first number, the stored one, is larger than the second, the right one.
    TooHigh,
    /// A leak if the first number is smaller than the second.
    TooLow,
    /// A leak if the inode has no name: it is half made, or half removed.
    Nameless,
    /// A leak if the inode, whose `..` leads nowhere, has no name.
    NamelessDotDot,
    /// A second name of a directory is a leak if the directory is not below itself.
    SecondName,
    /// A `..` that does not lead to the first name's directory is a leak if it leads to another
    /// name's.
    DotDot,
    /// A leak if nothing in use is marked as free: no `+` in the list.
    OnlyMinus,
    /// A wrong link count is a leak. `..` of directories without a name may be missing from it.
    Links,
}

/// The messages of e2fsck and their rules. All of the words must occur, in this order. The first
/// match counts, and a line without a match is corruption.
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

/// The inodes without a name, and the number of nameless directories that have each directory as
/// `..`.
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

/// For each directory with several names, the directories of the names that e2fsck would remove.
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
        // The answer to a question in an earlier line.
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
    fn each_line_of_e2fsck_has_its_verdict() {
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
    fn an_inode_without_a_name_may_be_half_made() {
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
