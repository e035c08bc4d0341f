//! `selvedge graph`: what is not durable yet, and what waits for what, as a picture.

use crate::failure::{Failure, Outcome};
use crate::types::{EngineArgs, OfGraph, Type};
use crate::{output, script};
use clap::ValueEnum;
use engine::values::listed;
use engine::{Engine, Error};
use oracle::script::{GRAMMAR, Op, State, run};
use std::path::PathBuf;
use std::process::ExitCode;
use vfs::{Errno, FileSystem};

/// Draw the graph of changes that a script leaves in the cache
///
/// Runs the script on an empty file system in memory, writes nothing back but what the script
/// syncs, and draws what is left: blocks as boxes, their patches inside (hard ones heavy,
/// empty ones dashed), an arrow from each patch to those that must be durable before it,
/// labelled with the rule. For a mount, SIGUSR2 to its server draws the same beside the
/// image.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("A script has one call a line:\n{GRAMMAR}"))]
pub(crate) struct Args {
    /// The script; - reads standard input
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// The type
    #[arg(long = "type", short = 't', value_name = "TYPE", default_value = with_graph().next().map_or("", |e| e.name()), value_parser = listed::<Type>(with_graph().map(|e| e.name())))]
    fs_type: Type,
    /// svg (an image), dot (text for Graphviz) or json
    #[arg(long, value_name = "FORMAT", default_value = "svg")]
    format: Format,
    #[command(flatten)]
    options: EngineArgs<OfGraph>,
}

/// The engines that keep a graph of changes.
fn with_graph() -> impl Iterator<Item = &'static dyn Engine> {
    let engines = engines::all().iter().copied();
    engines.filter(|engine| engine.has_graph())
}

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Svg,
    Dot,
    Json,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let script = script::read(&self.script)?;
        let engine = match self.fs_type {
            Type::One(engine) => engine,
            Type::Any => engines::default(),
        };
        let options = self.options.of(engine).map_err(Failure::new)?;
        let calls = |fs: &dyn FileSystem| {
            let results = run(fs, &mut State::default(), &script);
            let failed = |op: &Op, e: Errno| Error::new(format_args!("{op}: {e}"));
            let mut ops = script.ops.iter().zip(results);
            ops.try_for_each(|(op, result)| result.map_err(|e| failed(op, e)))
        };
        let graph = engine.graph(&calls, &options).map_err(Failure::new)?;
        match self.format {
            Format::Svg => output::print(graph.svg)?,
            Format::Dot => output::print(graph.dot)?,
            Format::Json => output::print_json(&graph.json)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
