//! The user's checker: a program that judges a directory.
//!
//! A [`CheckerKind::Command`] is a shell command, run once for each state. A [`CheckerKind::Server`] is a
//! program that stays: for each state it reads a line with the directory and the file of the
//! output, separated by a tab, and answers with the line `ok` or with `fail` and a message. It saves
//! the start of a process for each state.
//!
//! Both have limits of time and memory. A checker that exceeds its time, or dies, has failed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The environment variable with the path of the program's output so far.
pub const OUTPUT_VARIABLE: &str = "SELVEDGE_OUTPUT";

/// Most bytes of a checker's message.
const MESSAGE_MAX: u64 = 4096;

/// A checker and its limits.
#[derive(Debug, Clone)]
pub struct Checker {
    /// The program.
    pub kind: CheckerKind,
    /// Time for one state.
    pub timeout: Duration,
    /// Memory of each process, in bytes.
    pub memory_bytes: u64,
}

/// The ways in which a checker runs.
#[derive(Debug, Clone)]
pub enum CheckerKind {
    /// A shell command. `{dir}` stands for the directory; without it, the directory follows.
    Command(String),
    /// A shell command that answers on its standard output.
    Server(String),
}

/// The judgement of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong.
    Fine,
    /// Something is wrong, in words.
    Wrong(String),
}

/// A checker at work, with a temporary directory of its own.
pub struct Bench {
    checker: Checker,
    dir: tempfile::TempDir,
    server: Option<Server>,
}

struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Bench {
    /// A checker that works below the directory `scratch`.
    ///
    /// # Errors
    /// Nothing can be made there.
    pub fn new(checker: &Checker, scratch: &Path) -> io::Result<Self> {
        let mut dir = tempfile::Builder::new();
        Ok(Self {
            checker: checker.clone(),
            dir: dir.prefix("selvedge-state-").tempdir_in(scratch)?,
            server: None,
        })
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The directory for the next state; it is empty.
    ///
    /// # Errors
    /// The state before it cannot be removed.
    pub fn clear(&self) -> io::Result<PathBuf> {
        let state = self.state();
        if state.exists() {
            remove(&state)?;
        }
        fs::create_dir(&state)?;
        Ok(state)
    }

    /// Judges what is in the directory, given the program's output before the crash.
    ///
    /// # Errors
    /// The checker cannot be started.
    pub fn judge(&mut self, output: &[u8]) -> io::Result<Verdict> {
        let state = self.state();
        let path = self.dir.path().join("output");
        fs::write(&path, output)?;
        match self.checker.kind.clone() {
            CheckerKind::Command(command) => self.run(&command, &state, &path),
            CheckerKind::Server(command) => self.ask(&command, &state, &path),
        }
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        let kib = self.checker.memory_bytes >> 10;
        shell.args(["-c", &format!("ulimit -v {kib}; {command}")]);
        shell.process_group(0);
        shell
    }

    fn run(&self, command: &str, state: &Path, output: &Path) -> io::Result<Verdict> {
        let messages = self.dir.path().join("messages");
        let file = File::create(&messages)?;
        let quoted = format!("'{}'", state.display());
        let command = match command.contains("{dir}") {
            true => command.replace("{dir}", &quoted),
            false => format!("{command} {quoted}"),
        };
        let mut child = self
            .shell(&command)
            .env(OUTPUT_VARIABLE, output)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let ended = self.end_of(&mut child)?;
        let message = || first_line(File::open(&messages)?);
        Ok(match ended {
            Some(status) if status.success() => Verdict::Fine,
            Some(status) => Verdict::Wrong(match message()? {
                empty if empty.is_empty() => describe(status),
                line => line,
            }),
            None => Verdict::Wrong(self.slow()),
        })
    }

    /// Waits for a process up to its limit of time, and ends all processes of its group.
    fn end_of(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let id = Pid::from_child(child);
        let fd = pidfd_open(id, PidfdFlags::empty())?;
        let has_ended = is_ready(PollFd::new(&fd, PollFlags::IN), self.checker.timeout)?;
        // Processes that it has started are of its group. There may be none.
        let _ = kill_process_group(id, Signal::KILL);
        let status = child.wait()?;
        Ok(has_ended.then_some(status))
    }

    fn slow(&self) -> String {
        let seconds = self.checker.timeout.as_secs_f64();
        format!("the checker ran longer than {seconds} s")
    }

    fn ask(&mut self, command: &str, state: &Path, output: &Path) -> io::Result<Verdict> {
        let mut server = match self.server.take() {
            Some(server) => server,
            None => self.serve(command)?,
        };
        let question = format!("{}\t{}\n", state.display(), output.display());
        let asked = server.to.write_all(question.as_bytes());
        let asked = asked.and_then(|()| server.to.flush());
        let ready = PollFd::new(server.from.get_ref(), PollFlags::IN);
        let in_time = is_ready(ready, self.checker.timeout)?;
        let mut line = Vec::new();
        if asked.is_ok() && in_time {
            let mut limited = (&mut server.from).take(MESSAGE_MAX);
            limited.read_until(b'\n', &mut line)?;
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        let verdict = match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", _) => Verdict::Fine,
            ("fail", why) => Verdict::Wrong(why.to_owned()),
            _ => {
                let _ = kill_process_group(Pid::from_child(&server.child), Signal::KILL);
                let status = server.child.wait()?;
                return Ok(Verdict::Wrong(match (in_time, line.as_str()) {
                    (false, _) => self.slow(),
                    (true, "") => format!("the checker ended: {}", describe(status)),
                    (true, line) => format!("the checker answered `{line}`"),
                }));
            }
        };
        self.server = Some(server);
        Ok(verdict)
    }

    fn serve(&self, command: &str) -> io::Result<Server> {
        let mut child = self
            .shell(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Server {
                child,
                to,
                from: BufReader::new(from),
            }),
            _ => Err(io::Error::other("the checker has no pipes")),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process_group(Pid::from_child(&server.child), Signal::KILL);
            let _ = server.child.wait();
        }
        // The temporary directory removes itself, unless a state forbids it.
        let _ = remove(&self.state());
    }
}

fn is_ready(fd: PollFd<'_>, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).ok();
    loop {
        match poll(&mut [fd.clone()], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

fn first_line(file: File) -> io::Result<String> {
    let mut text = Vec::new();
    file.take(MESSAGE_MAX).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    Ok(line.unwrap_or_default().to_owned())
}

/// Removes a tree, also directories that forbid it to their owner.
fn remove(path: &Path) -> io::Result<()> {
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    let mut left = vec![path.to_owned()];
    while let Some(dir) = left.pop() {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(kind: CheckerKind, output: &[u8]) -> Vec<Verdict> {
        let checker = Checker {
            kind,
            timeout: Duration::from_millis(700),
            memory_bytes: 256 << 20,
        };
        let mut bench = Bench::new(&checker, &std::env::temp_dir()).unwrap();
        let twice = (0..2).map(|n| {
            let state = bench.clear().unwrap();
            fs::write(state.join("f"), n.to_string()).unwrap();
            bench.judge(output).unwrap()
        });
        twice.collect()
    }

    fn wrong(message: &str) -> Verdict {
        Verdict::Wrong(message.to_owned())
    }

    #[test]
    fn a_command_judges_by_its_exit_status() {
        let command = |text: &str| CheckerKind::Command(text.into());
        let grep = "grep -q 0 {dir}/f || { echo; echo f is wrong; exit 1; }";
        assert_eq!(
            judge(command(grep), b""),
            [Verdict::Fine, wrong("f is wrong")]
        );
        assert_eq!(
            judge(command("test -d"), b""),
            [Verdict::Fine, Verdict::Fine]
        );
        assert_eq!(judge(command("exit 3;"), b"")[0], wrong("exit status 3"));
        let output = judge(command("grep -q said $SELVEDGE_OUTPUT #"), b"said");
        assert_eq!(output, [Verdict::Fine, Verdict::Fine]);
    }

    #[test]
    fn time_and_memory_are_limited() {
        let command = |text: &str| CheckerKind::Command(text.into());
        let slow = wrong("the checker ran longer than 0.7 s");
        assert_eq!(judge(command("sleep 60;"), b"")[0], slow);
        let server = CheckerKind::Server("read line; sleep 60".into());
        assert_eq!(judge(server, b""), [slow.clone(), slow]);
        let limit = command("test $(ulimit -v) = 262144 #");
        assert_eq!(judge(limit, b"")[0], Verdict::Fine);
    }

    #[test]
    fn a_server_answers_for_each_state() {
        let server = "while IFS='\t' read -r dir output; do \
                      if grep -q 0 $dir/f; then echo ok; else echo fail f is wrong; fi; done";
        let server = CheckerKind::Server(server.into());
        assert_eq!(judge(server, b""), [Verdict::Fine, wrong("f is wrong")]);
        let ends = CheckerKind::Server("read line; exit 9".into());
        assert_eq!(
            judge(ends, b"")[1],
            wrong("the checker ended: exit status 9")
        );
        let rude = CheckerKind::Server("read line; echo hello; cat".into());
        assert_eq!(judge(rude, b"")[0], wrong("the checker answered `hello`"));
    }
}
