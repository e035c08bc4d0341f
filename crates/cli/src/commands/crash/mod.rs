//! `selvedge crash`: explores all states that a power cut could leave.

mod explore;
mod import;
mod mount;
mod record;
mod show;
mod subjects;

use crate::failure::{Failure, Outcome, code};
use crate::output::{self, count};
use crate::script;
use crate::terminal;
use crate::types::{EngineArgs, OfCrashTest, Type};
use clap::Subcommand;
use clap::builder::RangedU64ValueParser;
use crash::program::{Named, explore_all, replay_id};
use crash::{FailureId, FailureReport, Options, PersistModel, Progress, Schedule, block, replay};
use engine::values::listed;
use engine::{Engine, Explored};
use oracle::script::GRAMMAR;
use oracle::script::generate::Tree;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Explore what a crash can leave: of a file system, or of your program's files
///
/// `test` and `replay` explore the file systems of this program. `record` and `explore` are for
/// your own program: they record what it does, and show your checker each state that a crash could
/// have left, on different file systems.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Test(Test),
    Replay(Replay),
    Record(record::Args),
    Import(import::Args),
    Explore(explore::Args),
    Show(show::Args),
    Mount(mount::Args),
}

impl Args {
    /// Whether the command opens crash states by the thousand.
    pub(crate) fn explores(&self) -> bool {
        match self.command {
            Command::Test(_) | Command::Replay(_) | Command::Explore(_) => true,
            Command::Record(_) | Command::Import(_) | Command::Show(_) | Command::Mount(_) => false,
        }
    }
}

/// Run scripts of calls, and judge every state that a power cut could leave
///
/// Exits with 1 if a promise was broken. Each failure is one line that begins with an
/// id, which `crash replay` takes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("Calls of a script:\n{GRAMMAR}"))]
struct Test {
    /// The type: a file system, or memory (programs on durable memory: logs, transactions, the
    /// heap, regions, structures, pages and files)
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = engines::default().name(),
        value_parser = listed::<What>(explored().map(|e| e.name()).chain([MEMORY]))
    )]
    what: What,
    /// The program on durable memory to explore; may be given several times; by default all
    #[arg(long = "program", value_name = "PROGRAM", value_parser = listed::<Program>(programs::all().iter().map(|p| &p.name)))]
    programs: Vec<Program>,
    /// Longest scripts of the enumeration: 1, 2 or 3 calls; 0 enumerates none
    ///
    /// They start from a small tree. On persistent memory, scripts of one call also start from
    /// a crowded one, where tables and directories must grow. On blocks, others start from a
    /// tree of names, where calls rename, link and remove what the call before has made, and
    /// scripts of one call also from one with directories of several blocks.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=3))]
    ops: u32,
    /// The tree that scripts start from, which also selects their calls: small (a few files and
    /// directories; all calls), names (calls on what the call before has made), file (the data
    /// of one file), crowded (full directories), large (directories of several blocks); may be
    /// given several times
    #[arg(long = "tree", value_name = "TREE", value_parser = listed::<Tree>(TREES))]
    trees: Vec<Tree>,
    /// How many of the longest scripts to draw; 0 takes all
    ///
    /// By default 1000 of the scripts of three calls are drawn; those of one and two
    /// calls are all taken.
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Explore this script, and no enumerated ones; - reads standard input
    ///
    /// It starts from a new file system and has one call a line, in the forms listed below.
    /// Paths start at the root; @N is the file that handle N has open. MODE is octal, all other
    /// numbers are decimal. PATTERN chooses the bytes that are written. `#` begins a comment.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ops", "trees", "sample"])]
    script: Option<PathBuf>,
    /// How many long random scripts to add
    #[arg(long, value_name = "N", default_value_t = 0)]
    random: u64,
    /// Calls in each of them
    #[arg(long, value_name = "N", default_value_t = 200)]
    random_len: usize,
    /// Most moments of a script at which crashes are explored: calls on memory, flushes of blocks
    ///
    /// About that many of a longer script are drawn. By default all are taken.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    moments: Option<usize>,
    /// Ends of each script, by a power cut or a killed server, after which more calls run and
    /// are crashed in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    lives: usize,
    /// Seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The persistence model of memory: a crash keeps words (any subset of the 8-byte words that
    /// are not durable) or lines (a prefix of the stores to each cache line)
    #[arg(long, value_name = "MODEL", default_value_t = PersistModel::Words, value_parser = listed::<PersistModel>(PersistModel::ALL))]
    model: PersistModel,
    /// When a cache of blocks writes back, once or several times: sync (by a sync at the end),
    /// each (a wave after each call), ones, twos or waves (one, two or all that can go at a time,
    /// then a sync), any1 (after each call and at the end, a few blocks drawn from all that can
    /// go); by default all of them
    #[arg(long = "schedule", value_name = "SCHEDULE", value_parser = listed::<Schedule>(Schedule::ALL))]
    schedules: Vec<Schedule>,
    /// Further crashes inside the recovery: 0, 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    recovery_depth: u8,
    /// Stop after that many failures
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one())]
    max_failures: usize,
    /// Start no further script after that many seconds
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<u64>,
    /// Threads; by default one per CPU
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: EngineArgs<OfCrashTest>,
}

/// The type that is not a file system.
const MEMORY: &str = "memory";

/// The subject of an exploration.
#[derive(Debug, Clone, Copy)]
enum What {
    Memory,
    Files(Type),
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            MEMORY => Ok(Self::Memory),
            _ => text.parse().map(Self::Files),
        }
    }
}

/// The name of a program on durable memory.
#[derive(Debug, Clone)]
struct Program(String);

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = programs::all().into_iter().map(|program| program.name);
        let name = names.find(|name| name == text);
        let name = name.ok_or_else(|| format!("there is no program '{text}'"))?;
        Ok(Self(name))
    }
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// The engines whose crash states can be explored.
fn explored() -> impl Iterator<Item = &'static dyn Engine> {
    let engines = engines::all().iter().copied();
    engines.filter(|engine| !engine.subjects().is_empty())
}

/// Visit the state of one failure again, and say what is wrong there
///
/// Exits with 1 if it still fails, 0 if it does not.
#[derive(Debug, clap::Args)]
struct Replay {
    /// The id that `crash test` printed
    id: FailureId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        match &self.command {
            Command::Test(test) => test.run(),
            Command::Replay(replay) => replay.run(),
            Command::Record(args) => args.run(),
            Command::Import(args) => args.run(),
            Command::Explore(args) => args.run(),
            Command::Show(args) => args.run(),
            Command::Mount(args) => args.run(),
        }
    }
}

impl Test {
    fn run(&self) -> Outcome {
        let bar = terminal::bar(0);
        let show = |p: &Progress| {
            bar.set_length(p.workloads_total);
            bar.set_position(p.workloads);
            bar.set_message(format!(
                "{}, {}",
                count(p.states, "state"),
                count(p.violations, "violation")
            ));
        };
        let found = match self.what {
            What::Memory => explore_all(&self.programs(), &self.options(&MEMORY_TREES)?, &show),
            What::Files(files) => match self.subject(files)? {
                Explored::Memory(system) => {
                    crash::explore(&*system, &self.options(&MEMORY_TREES)?, &show)
                }
                Explored::Blocks(system) => {
                    block::explore(&*system, &self.options(&BLOCK_TREES)?, &show)
                }
            },
        };
        bar.finish_and_clear();
        let found = found.map_err(Failure::new)?;
        if self.json {
            output::print_json(&found)?;
        } else {
            output::print(text(&found))?;
        }
        Ok(verdict(found.violations == 0))
    }

    fn programs(&self) -> Vec<Named> {
        let mut programs = programs::all();
        let is_chosen = |p: &Named| self.programs.iter().any(|chosen| chosen.0 == p.name);
        programs.retain(|p| self.programs.is_empty() || is_chosen(p));
        programs
    }

    /// The engine in the mode of that name, or in its usual one.
    fn subject(&self, files: Type) -> Result<Explored, Failure> {
        let engine = match files {
            Type::One(engine) => engine,
            Type::Any => engines::default(),
        };
        if explored().all(|other| other.name() != engine.name()) {
            let names = explored().map(|engine| engine.name());
            let names = names.chain([MEMORY]).collect::<Vec<_>>().join(", ");
            let why = format!("'{}' has no medium to explore: use {names}", engine.name());
            return Err(Failure::new(why).with_code(code::USAGE));
        }
        let usage = |e| Failure::new(e).with_code(code::USAGE);
        let options = self.options.of(engine).map_err(usage)?;
        let subject = engine.subject(&options);
        subject.map_err(Failure::new)
    }

    fn options(&self, usual: &Usual) -> Result<Options, Failure> {
        let scripts = self.script.as_deref().map(script::read).transpose()?;
        let (trees, singles) = match self.trees.as_slice() {
            [] => (usual.trees.to_vec(), usual.singles.to_vec()),
            chosen => (chosen.to_vec(), Vec::new()),
        };
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let schedules = match self.schedules.as_slice() {
            [] => Schedule::ALL.to_vec(),
            some => some.to_vec(),
        };
        Ok(Options {
            schedules,
            ops: if scripts.is_some() { 0 } else { self.ops },
            scripts: scripts.iter().map(ToString::to_string).collect(),
            sample: self.sample(),
            trees,
            singles,
            random_scripts: self.random,
            random_len: self.random_len,
            moments: self.moments.unwrap_or(usize::MAX),
            lives: self.lives,
            seed: self.seed,
            model: self.model,
            recovery_depth: self.recovery_depth.into(),
            time_limit: self.time_limit.map(Duration::from_secs),
            max_failures: self.max_failures,
            threads: self.threads.unwrap_or_else(cpus),
            states_per_point: match self.what {
                What::Memory => STATES_OF_PROGRAMS,
                What::Files(_) => Options::default().states_per_point,
            },
            ..Options::default()
        })
    }

    /// How many of the longest scripts to draw, if not all.
    fn sample(&self) -> Option<u64> {
        match self.sample {
            None => (self.ops == 3).then_some(SAMPLE),
            Some(sample) => Some(sample).filter(|n| *n > 0),
        }
    }
}

/// Trees that scripts can start from.
const TREES: [Tree; 5] = [
    Tree::Small,
    Tree::Names,
    Tree::File,
    Tree::Crowded,
    Tree::Large,
];

/// The trees that scripts start from by default, and further ones for scripts of one call. In
/// these, tables and directories must grow.
struct Usual {
    trees: &'static [Tree],
    singles: &'static [Tree],
}

const MEMORY_TREES: Usual = Usual {
    trees: &[Tree::Small],
    singles: &[Tree::Crowded],
};

const BLOCK_TREES: Usual = Usual {
    trees: &[Tree::Small, Tree::Names],
    singles: &[Tree::Large],
};

/// Scripts of three calls that are drawn by default.
const SAMPLE: u64 = 1000;

/// States of a program up to which a point in time is explored exhaustively. Each of them has
/// states of its recovery.
const STATES_OF_PROGRAMS: usize = 32;

impl Replay {
    fn run(&self) -> Outcome {
        let failure = match replay_id(&programs::all(), &self.id) {
            Some(failure) => failure,
            None => self.file_system()?,
        };
        let failure = failure.map_err(Failure::new)?;
        if self.json {
            output::print_json(&failure)?;
        } else {
            output::print(match &failure {
                Some(failure) => failure_text(failure),
                None => format!("{}: nothing is wrong there any more\n", self.id),
            })?;
        }
        Ok(verdict(failure.is_none()))
    }

    /// The failure of a file system.
    fn file_system(&self) -> Result<Result<Option<FailureReport>, String>, Failure> {
        let mut subjects = engines::all().iter().flat_map(|engine| engine.subjects());
        let subject = subjects.find(|subject| subject.id() == self.id.system);
        let subject = subject.ok_or_else(|| {
            Failure::new(format_args!(
                "{}: the system {} is unknown",
                self.id, self.id.system
            ))
        })?;
        Ok(match &subject {
            Explored::Memory(system) => replay(&**system, &self.id),
            Explored::Blocks(system) => block::replay(&**system, &self.id),
        })
    }
}

fn verdict(is_fine: bool) -> ExitCode {
    if is_fine {
        ExitCode::SUCCESS
    } else {
        code::FAILED.into()
    }
}

fn text(found: &crash::Outcome) -> String {
    let mut text = String::new();
    for failure in &found.failures {
        text.push_str(&failure_text(failure));
    }
    let part = if found.complete {
        ""
    } else {
        " (a limit of time or failures ended it before all that were asked for)"
    };
    // Writing to a string cannot fail.
    for part in found.enumerated.iter().filter(|part| part.taken < part.of) {
        let (taken, of, ops, tree) = (part.taken, part.of, part.ops, part.tree);
        let _ = writeln!(
            text,
            "took {taken} of the {of} scripts of {} on the {tree} tree",
            count(ops.into(), "call")
        );
    }
    let unit = match &*found.system {
        MEMORY => "program",
        _ => "script",
    };
    let _ = writeln!(
        text,
        "{} under the model {}, seed {}: {}{part}, {} ({} distinct), {}, {:.1} s, \
         {:.0} states per second",
        found.system,
        found.model,
        found.seed,
        count(found.workloads, unit),
        count(found.states_explored, "crash state"),
        found.states_distinct,
        count(found.violations, "violation"),
        found.seconds,
        found.states_per_second
    );
    text
}

/// The failure's line, and the shortest script that is known to fail like it.
fn failure_text(failure: &FailureReport) -> String {
    let mut text = format!("{failure}\n");
    if failure.shrunk.is_empty() {
        return text; // of a program
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  shrunk, on the {} tree:", failure.tree);
    for line in failure.shrunk.lines() {
        let _ = writeln!(text, "    {line}");
    }
    text
}
