//! Ids of failures: one word from which a failure is replayed.
//!
//! Fields, separated by `:`
//! 1. the system's id,
//! 2. the persistence model of memory (`words`), or the schedule of write-back (`each`),
//! 3. the script: an enumerated one such as `e3.17` (three operations, number 17; the letters
//!    `c`, `n`, `f`, `l` stand for the trees crowded, names, file, large), a random one such as
//!    `r42.5.200` (seed 42, number 5, 200 operations), or `=TEXT`, percent-encoded,
//! 4. the operation, counted from 0,
//! 5. how it failed: `live`, `store.N` (after store N of the trace) or `in` / `end`
//!    (a crash in the operation / after its return), followed by
//! 6. one field per crash, `EVENT.CHOICES` (choices run-length coded, `1x3` is three
//!    times 1), the later ones inside recovery; then optionally `all` or `tSEED`: the policy for
//!    cells that were decided when the recovered system was used.
//!
//! `again.SEED` in the fifth field is a failure of a second life. One field with the crash
//! follows; then calls of that seed ran on the recovered system. The operation of those calls
//! and its failure follow as fields 4 to 6. The seed also selects whether the crash is a power
//! cut or the end of the server alone.

use crate::walk::{CrashAt, CrashPath, Tail};
use oracle::script::generate::Tree;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// The id of a failure. Text both ways; see the module for the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureId {
    /// [`System::id`](vfs::System::id).
    pub system: String,
    pub(crate) setting: String,
    pub(crate) script: ScriptRef,
    pub(crate) op: usize,
    pub(crate) spot: Spot,
}

/// The source of a script.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ScriptRef {
    Enumerated { tree: Tree, ops: u32, index: u64 },
    Random { seed: u64, index: u64, len: usize },
    Text(String),
}

/// The check that failed, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Without any crash.
    Live,
    /// The logical state after a store, in program order.
    Store(usize),
    /// A crash during the operation.
    In(CrashPath),
    /// A crash after its return.
    End(CrashPath),
    /// In the calls after a recovery.
    Again(Box<Again>),
}

/// A failure in calls after a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    /// Selects the calls.
    pub seed: u64,
    /// The crash before them.
    pub crash: CrashAt,
    /// The operation of those calls, and how it failed.
    pub op: usize,
    pub spot: Spot,
}

impl Display for FailureId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            system,
            setting,
            script,
            op,
            spot,
        } = self;
        write!(f, "{system}:{setting}:{script}:{op}:{spot}")
    }
}

impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Spot::Live => f.write_str("live"),
            Spot::Store(event) => write!(f, "store.{event}"),
            Spot::In(place) => write!(f, "in{place}"),
            Spot::End(place) => write!(f, "end{place}"),
            Spot::Again(again) => {
                let Again {
                    seed,
                    crash,
                    op,
                    spot,
                } = &**again;
                write!(f, "again.{seed}{crash}:{op}:{spot}")
            }
        }
    }
}

impl Display for CrashAt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ":{}", self.event)?;
        for (choice, times) in runs(&self.choices) {
            write!(f, ".{choice}")?;
            if times > 1 {
                write!(f, "x{times}")?;
            }
        }
        Ok(())
    }
}

impl Display for ScriptRef {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ScriptRef::Enumerated { tree, ops, index } => {
                let kind = match tree {
                    Tree::Crowded => 'c',
                    Tree::Names => 'n',
                    Tree::File => 'f',
                    Tree::Large => 'l',
                    Tree::Small | Tree::Empty => 'e',
                };
                write!(f, "{kind}{ops}.{index}")
            }
            ScriptRef::Random { seed, index, len } => write!(f, "r{seed}.{index}.{len}"),
            ScriptRef::Text(text) => {
                f.write_str("=")?;
                text.bytes().try_for_each(|b| match b {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                        write!(f, "{}", b as char)
                    }
                    b' ' => f.write_str("+"),
                    b'\n' => f.write_str(","),
                    _ => write!(f, "%{b:02x}"),
                })
            }
        }
    }
}

impl Display for CrashPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.crashes.iter().try_for_each(|crash| crash.fmt(f))?;
        match self.tail {
            Tail::None => Ok(()),
            Tail::All => f.write_str(":all"),
            Tail::Random(seed) => write!(f, ":t{seed}"),
        }
    }
}

/// Run lengths, without the zeros at the end: 0 is the default choice.
fn runs(choices: &[u32]) -> Vec<(u32, usize)> {
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for choice in choices {
        match runs.last_mut() {
            Some((last, times)) if last == choice => *times += 1,
            _ => runs.push((*choice, 1)),
        }
    }
    if runs.last().is_some_and(|(choice, _)| *choice == 0) {
        runs.pop();
    }
    runs
}

/// Longest run of choices that an id may ask for.
const MAX_RUN: usize = 1 << 20;

impl FromStr for FailureId {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = |what: &str| format!("`{s}` is not the id of a failure: {what}");
        let mut fields = s.split(':');
        let mut next = |what| fields.next().ok_or_else(|| bad(what));
        let system = next("no system")?.to_string();
        let setting = next("no model or schedule")?.to_string();
        let script = next("no script")?.parse().map_err(|e: String| bad(&e))?;
        let op = next("no operation")?;
        let op = op.parse();
        let op = op.map_err(|_| bad("the operation is not a number"))?;
        let rest: Vec<&str> = fields.collect();
        let (how, rest) = rest.split_first().ok_or_else(|| bad("no failed check"))?;
        let spot = spot(how, rest).ok_or_else(|| bad("the failed check is unknown"))?;
        Ok(Self {
            system,
            setting,
            script,
            op,
            spot,
        })
    }
}

impl FromStr for ScriptRef {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("`{s}` does not name a script");
        let numbers =
            |text: &str| -> Option<Vec<u64>> { text.split('.').map(|n| n.parse().ok()).collect() };
        if let Some(text) = s.strip_prefix('=') {
            return decode(text).map(ScriptRef::Text).ok_or_else(bad);
        }
        let kind = s.get(..1).ok_or_else(bad)?;
        let numbers = s.get(1..).and_then(numbers).ok_or_else(bad)?;
        match (kind, numbers.as_slice()) {
            ("e" | "c" | "n" | "f" | "l", &[ops, index]) => Ok(ScriptRef::Enumerated {
                tree: match kind {
                    "c" => Tree::Crowded,
                    "n" => Tree::Names,
                    "f" => Tree::File,
                    "l" => Tree::Large,
                    _ => Tree::Small,
                },
                ops: ops.try_into().map_err(|_| bad())?,
                index,
            }),
            ("r", &[seed, index, len]) => Ok(ScriptRef::Random {
                seed,
                index,
                len: len as usize,
            }),
            _ => Err(bad()),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'+' => b' ',
            b',' => b'\n',
            b'%' => {
                let hex = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = &rest[2..];
                u8::from_str_radix(hex, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn spot(how: &str, rest: &[&str]) -> Option<Spot> {
    Some(match (how.split_once('.'), how) {
        (None, "live") => Spot::Live,
        (Some(("store", n)), _) => Spot::Store(n.parse().ok()?),
        (None, "in") => Spot::In(crash_path(rest)?),
        (None, "end") => Spot::End(crash_path(rest)?),
        (Some(("again", seed)), _) => {
            let (&[first, op, how], rest) = rest.split_first_chunk::<3>()?;
            // There are at most two lives.
            let spot = spot(how, rest).filter(|spot| !matches!(spot, Spot::Again(_)))?;
            Spot::Again(Box::new(Again {
                seed: seed.parse().ok()?,
                crash: crash(first)?,
                op: op.parse().ok()?,
                spot,
            }))
        }
        _ => return None,
    })
}

fn crash_path(fields: &[&str]) -> Option<CrashPath> {
    let (tail, crashes) = match fields.split_last()? {
        (&"all", rest) => (Tail::All, rest),
        (last, rest) => match last.strip_prefix('t') {
            Some(seed) => (Tail::Random(seed.parse().ok()?), rest),
            None => (Tail::None, fields),
        },
    };
    let crashes: Option<Vec<CrashAt>> = crashes.iter().map(|text| crash(text)).collect();
    let crashes = crashes.filter(|c| !c.is_empty())?;
    Some(CrashPath { crashes, tail })
}

fn crash(text: &str) -> Option<CrashAt> {
    let mut fields = text.split('.');
    let event = fields.next()?.parse().ok()?;
    let mut choices = Vec::new();
    for run in fields {
        let (choice, times) = run.split_once('x').unwrap_or((run, "1"));
        let times: usize = times.parse().ok()?;
        let len = choices.len().checked_add(times).filter(|l| *l <= MAX_RUN)?;
        choices.resize(len, choice.parse().ok()?);
    }
    Some(CrashAt { event, choices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_crash_path() -> impl Strategy<Value = CrashPath> {
        let crash = (0usize..999, prop::collection::vec(0u32..4, 0..9));
        let tail = prop_oneof![
            Just(Tail::None),
            Just(Tail::All),
            any::<u64>().prop_map(Tail::Random)
        ];
        (prop::collection::vec(crash, 1..3), tail).prop_map(|(crashes, tail)| {
            // Zeros at the end are the default, and left out.
            let crashes = crashes.into_iter().map(|(event, mut choices)| {
                choices.truncate(choices.iter().rposition(|c| *c > 0).map_or(0, |i| i + 1));
                CrashAt { event, choices }
            });
            let crashes = crashes.collect();
            CrashPath { crashes, tail }
        })
    }

    fn any_first_spot() -> impl Strategy<Value = Spot> {
        prop_oneof![
            Just(Spot::Live),
            (0usize..99).prop_map(Spot::Store),
            any_crash_path().prop_map(Spot::In),
            any_crash_path().prop_map(Spot::End),
        ]
    }

    fn any_spot() -> impl Strategy<Value = Spot> {
        let again = (any::<u64>(), any_crash_path(), 0usize..99, any_first_spot());
        let again = again.prop_map(|(seed, mut place, op, spot)| {
            let crash = place.crashes.remove(0);
            Spot::Again(Box::new(Again {
                seed,
                crash,
                op,
                spot,
            }))
        });
        prop_oneof![any_first_spot(), again]
    }

    fn any_script() -> impl Strategy<Value = ScriptRef> {
        prop_oneof![
            (0usize..5, 1u32..4, any::<u64>()).prop_map(|(tree, ops, index)| {
                let tree = [
                    Tree::Small,
                    Tree::Crowded,
                    Tree::Names,
                    Tree::File,
                    Tree::Large,
                ][tree];
                ScriptRef::Enumerated { tree, ops, index }
            }),
            (any::<u64>(), any::<u64>(), 0usize..999)
                .prop_map(|(seed, index, len)| ScriptRef::Random { seed, index, len }),
            ".*".prop_map(ScriptRef::Text),
        ]
    }

    proptest! {
        #[test]
        fn an_id_survives_its_text(script in any_script(), op in 0usize..99, spot in any_spot()) {
            let id = FailureId { system: "toy-a".into(), setting: "lines".into(), script, op, spot };
            let text = id.to_string();
            prop_assert!(!text.contains(char::is_whitespace));
            prop_assert_eq!(text.parse::<FailureId>().unwrap(), id);
        }

        #[test]
        fn any_text_is_an_id_or_an_error(text in ".*") {
            let _ = text.parse::<FailureId>();
        }
    }

    #[test]
    fn malformed_ids_are_refused() {
        for bad in [
            "",
            "bpfs",
            "b:words:e1.1:0",
            "b:words:x:0:live",
            "b:words:e1.1:0:in:1.1x9999999",
        ] {
            assert!(bad.parse::<FailureId>().is_err(), "{bad}");
        }
    }
}
