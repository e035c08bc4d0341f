//! The processes of the machine, as far as groups need them.

use std::collections::BTreeSet;
use std::fs;
use vfs::{Errno, Result};

/// A process: its id and its start, since ids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// Time of the start, in ticks since the boot.
    pub start: u64,
}

/// The facts about processes that groups need.
#[allow(clippy::missing_errors_doc)] // ESRCH: the process has ended, or is not visible
pub trait Processes: Send + Sync {
    /// The process of a thread, by the id of the thread.
    fn of_thread(&self, tid: u32) -> Result<Process>;
    /// The parent, if the process has one.
    fn parent(&self, process: Process) -> Result<Option<Process>>;
    /// The children that have not been waited for.
    fn children(&self, process: Process) -> Result<Vec<Process>>;
    /// Whether the process runs. A zombie does not.
    fn is_alive(&self, process: Process) -> bool;
}

/// The processes in `/proc`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcFs;

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    state: u8,
    parent: u32,
    start: u64,
}

fn read(path: &str) -> Result<String> {
    // Names of programs may be any bytes.
    let bytes = fs::read(path).map_err(|_| Errno::SRCH)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        Self::parse(&read(&format!("/proc/{pid}/stat"))?).ok_or(Errno::SRCH)
    }

    /// The name of the program is in brackets and may hold any character: the fields begin after
    /// the last bracket. See proc(5): field 3 is the state, 4 the parent, 22 the start.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }
}

fn process(pid: u32) -> Result<Process> {
    let start = Stat::read(pid)?.start;
    Ok(Process { pid, start })
}

impl Processes for ProcFs {
    fn of_thread(&self, tid: u32) -> Result<Process> {
        let status = read(&format!("/proc/{tid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let pid = line.and_then(|pid| pid.trim().parse().ok());
        process(pid.ok_or(Errno::SRCH)?)
    }

    fn parent(&self, of: Process) -> Result<Option<Process>> {
        let stat = Stat::read(of.pid)?;
        match stat.parent {
            _ if stat.start != of.start => Err(Errno::SRCH),
            0 => Ok(None),
            parent => process(parent).map(Some),
        }
    }

    fn children(&self, of: Process) -> Result<Vec<Process>> {
        let threads = fs::read_dir(format!("/proc/{}/task", of.pid)).map_err(|_| Errno::SRCH)?;
        let mut children = BTreeSet::<u32>::new();
        for thread in threads.flatten() {
            let path = thread.path().join("children");
            // The thread may have ended meanwhile.
            let list = fs::read_to_string(path).unwrap_or_default();
            children.extend(
                list.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        Ok(children
            .into_iter()
            .filter_map(|pid| process(pid).ok())
            .collect())
    }

    fn is_alive(&self, it: Process) -> bool {
        Stat::read(it.pid).is_ok_and(|stat| stat.start == it.start && stat.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[test]
    fn this_process_and_its_child_are_found() {
        let own = ProcFs.of_thread(id()).unwrap();
        assert_eq!(own.pid, id());
        let thread = std::thread::spawn(|| {
            let tid = fs::read_link("/proc/thread-self").unwrap();
            let tid = tid.file_name().unwrap().to_str().unwrap().parse();
            ProcFs.of_thread(tid.unwrap()).unwrap()
        });
        assert_eq!(thread.join().unwrap(), own);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let found = ProcFs.of_thread(child.id()).unwrap();
        assert_eq!(ProcFs.parent(found).unwrap(), Some(own));
        assert!(ProcFs.children(own).unwrap().contains(&found));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!ProcFs.is_alive(found));
        assert_eq!(ProcFs.of_thread(found.pid), Err(Errno::SRCH));
    }

    #[test]
    fn a_name_with_brackets_and_spaces_is_skipped() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start), (b'S', 3, 4711));
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("7 (a) S").is_none());
    }
}
