//! `selvedge manpages`: the manual, from the same definitions as the command line.

use crate::Cli;
use crate::commands::guarantees;
use crate::failure::{Failure, Outcome};
use crate::own_file::OwnFile;
use clap::CommandFactory;
use clap_mangen::Man;
use patch::stack::{NOTATION, list};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};
use vfs::guarantees::table;

/// Write the manual pages to a directory
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory; made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let failed = |e| Failure::new(format_args!("{}: {e}", self.dir.display()));
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        write_pages(command, &self.dir).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// One page for the command and one for each of its subcommands, in section 8.
fn write_pages(command: clap::Command, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        write_pages(sub.clone(), dir)?;
    }
    let name = command.get_display_name().unwrap_or("selvedge").to_owned();
    let usage = usage(&command);
    let page = Man::new(command.override_usage(usage))
        .section("8")
        .manual("System Administration");
    let mut text = Vec::new();
    page.render(&mut text)?;
    if name == "selvedge-guarantees" {
        text.extend(promises()?.into_bytes());
    }
    if name == "selvedge-stack" {
        text.extend(layers().into_bytes());
    }
    text.extend(ending(&name).into_bytes());
    // For all to read, once they are installed.
    OwnFile::new(&dir.join(page.get_filename()))?.write(text, 0o644)
}

/// The synopsis. That of clap_mangen leaves out the values of options.
fn usage(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let is_shown = |arg: &&clap::Arg| !arg.is_hide_set();
    let options = command
        .get_opts()
        .filter(is_shown)
        .map(|arg| match arg.is_required_set() {
            true => arg.to_string(),
            false => format!("[{arg}]"),
        });
    let operands = command.get_positionals().filter(is_shown);
    let words = options.chain(operands.map(|arg| arg.to_string()));
    let command = command.has_subcommands().then(|| "<COMMAND>".into());
    std::iter::once(name.to_owned())
        .chain(words)
        .chain(command)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The table of promises, its lines left as they are and at the margin, for it is wide;
/// then what does not fit into it.
fn promises() -> io::Result<String> {
    let rows = guarantees::rows().map_err(|e| io::Error::other(e.to_string()))?;
    let table = roff(&table(&rows));
    let mut text = format!(".SH PROMISES\n.in 0\n.nf\n{table}.fi\n.in\n");
    for row in rows.iter().filter(|row| !row.notes.is_empty()) {
        text.push_str(&format!(
            ".TP\n{}{}",
            roff(&row.name),
            roff(&row.notes.join("\n"))
        ));
    }
    Ok(text)
}

/// How stacks are written, and the list of layers, its lines left as they are.
fn layers() -> String {
    let (notation, list) = (roff(NOTATION), roff(&list()));
    format!(".SH NOTATION\n{notation}.SH LAYERS\n.nf\n{list}.fi\n")
}

/// The exit codes of the command with this manual page.
pub(crate) fn exit_status(page: &str) -> &'static str {
    codes_and_pages(page).0
}

/// Exit codes, and the pages to read next.
fn codes_and_pages(page: &str) -> (&'static str, &'static str) {
    match page {
        "selvedge-mount" => (
            "0 mounted, 1 wrong usage, 32 the mount failed; a server in the foreground ends \
             with 32 if it failed later",
            "mount(8), fstab(5), selvedge-umount(8), selvedge-guarantees(8)",
        ),
        "selvedge-umount" => (
            "0 unmounted, 1 not unmounted, or the file system failed while it was mounted, \
             2 wrong usage",
            "umount(8), selvedge-mount(8), selvedge-fsck(8)",
        ),
        "selvedge-sync" => (
            "0 all is as durable as the mount can make it, 1 something is not or nobody could be \
             asked, 2 wrong usage",
            "sync(2), fsync(2), selvedge-mount(8)",
        ),
        "selvedge-depend" => (
            "that of the last command that ran: 0 all succeeded, 128 and the signal's number if one \
             ended it; 1 failed, 2 wrong usage",
            "selvedge-order(8), selvedge-pg-list(8), selvedge-sync(8)",
        ),
        "selvedge-order" => (
            "that of the program, 128 and the signal's number if one ended it; 1 failed, 2 wrong \
             usage, 126 the program could not be run, 127 it was not found",
            "selvedge-depend(8), selvedge-pg-list(8), selvedge-sync(8)",
        ),
        "selvedge-fsck" => (
            "0 clean, 4 errors found, 8 the check could not be made, 16 wrong usage",
            "fsck(8), selvedge-info(8), selvedge-dump(8)",
        ),
        "selvedge-stack" => (ORDINARY, "selvedge-mount(8), selvedge-graph(8)"),
        "selvedge-mkfs" => (ORDINARY, "mkfs(8), selvedge-mount(8)"),
        "selvedge-crash-test" => (
            "0 every promise was kept, 1 one was broken, or a failure, 2 wrong usage",
            "selvedge-crash-replay(8), selvedge-guarantees(8)",
        ),
        "selvedge-crash-replay" => (
            "0 nothing is wrong any more, 1 it still fails, 2 wrong usage",
            "selvedge-crash-test(8)",
        ),
        _ => (ORDINARY, "selvedge(8)"),
    }
}

/// The last sections of a page.
fn ending(page: &str) -> String {
    let (codes, see) = codes_and_pages(page);
    let (codes, see) = (roff(codes), roff(see));
    format!(".SH \"EXIT STATUS\"\n{codes}.SH \"SEE ALSO\"\n{see}")
}

/// The exit codes of most commands.
const ORDINARY: &str = "0 done, 1 failed, 2 wrong usage";

/// Text as roff takes it for text.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // Nothing that begins a line is a request then.
    text.lines().map(|line| format!("\\&{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_promises_is_kept_and_fits() {
        let rows = guarantees::rows().unwrap();
        for line in table(&rows).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(promises().unwrap().contains("\n.nf\n\\&File system"));
        assert_eq!(roff(".x\n'y-\\"), "\\&.x\n\\&'y\\-\\e\n");
    }
}
