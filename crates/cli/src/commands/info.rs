//! `selvedge info`: the description of an image, or of the mount that uses it.

use crate::failure::{Failure, Outcome};
use crate::mount::{facts, table};
use crate::{image, output, types};
use engine::{Error, Image, size};
use medium::{EffectiveDurability, Holder, OpenError};
use rustix::fs::statvfs;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show what an image holds and what a mount of it would promise
///
/// For an image that is mounted, shows where, by which process, and which durability is
/// in force there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Where in the file or device the image begins, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "0",
        hide_default_value = true,
        value_parser = size::parse
    )]
    offset: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Facts about an image that is mounted for writing.
#[derive(Serialize)]
struct Mounted<'a> {
    path: &'a Path,
    mounted_on: PathBuf,
    /// Type, mode, size and promises, as the mount reports them.
    #[serde(flatten)]
    told: Map<String, Value>,
    /// The server, if the system reports it.
    process: Option<u32>,
    /// The durability in force, if the mount reports it.
    #[serde(serialize_with = "by_name")]
    durability: Option<EffectiveDurability>,
    durability_means: Option<&'static str>,
}

fn by_name<S: Serializer>(d: &Option<EffectiveDurability>, s: S) -> Result<S::Ok, S::Error> {
    d.map(|d| d.to_string()).serialize(s)
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let engine = types::of_image(&self.path, self.offset)?;
        let image = Image::at(&self.path, self.offset);
        let info = match image::patiently(&self.path, || engine.info(&image)) {
            Ok(info) => info,
            Err(Error::Open(e)) => return self.in_use(e),
            Err(e) => return Err(Failure::new(e)),
        };
        if self.json {
            output::print_json(&info.json)?;
        } else {
            output::print(table_of(info.lines))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the facts of an image that cannot be opened, as its mount reports them.
    fn in_use(&self, e: OpenError) -> Outcome {
        let OpenError::InUse { holder, .. } = &e else {
            return Err(Failure::new(e));
        };
        let path = self.path.canonicalize();
        let path = path.map_err(|e| Failure::about(&self.path, e))?;
        let mount = table::find_image(&path).map_err(|e| Failure::about(&path, e))?;
        let Some(mount) = mount else {
            return Err(Failure::new(e));
        };
        let durability = facts::durability(&mount.dir);
        let told = told_by(&mount.dir);
        let means = match told.get("guarantees").map(|promised| &promised["durable"]) {
            Some(durable) if durable != "at-return" => EffectiveDurability::survived,
            _ => EffectiveDurability::describe,
        };
        let info = Mounted {
            path: &self.path,
            process: holder.as_ref().map(|h| h.pid),
            durability,
            durability_means: durability.map(means),
            told,
            mounted_on: mount.dir,
        };
        if self.json {
            output::print_json(&info)?;
        } else {
            output::print(mounted_text(&info, holder.as_ref()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Facts that a mount of ours reports, and how much room it has now.
fn told_by(dir: &Path) -> Map<String, Value> {
    let mut told = facts::info(dir);
    if let Ok(space) = statvfs(dir) {
        told.insert("blocks_free".into(), space.f_bfree.into());
        told.insert("inodes_free".into(), space.f_ffree.into());
    }
    told.extend(facts::stats(dir).map(|stats| ("stats".into(), stats)));
    told
}

/// The blocks that a mount has written, on one line.
fn written(stats: &Value) -> Option<String> {
    let graph = &stats["graph"];
    Some(format!(
        "{} blocks, {} of them before all their changes were ready; {} flushes",
        stats["writes"].as_u64()?,
        graph["blocks_partial"].as_u64()?,
        stats["flushes"].as_u64()?
    ))
}

fn mounted_text(info: &Mounted<'_>, holder: Option<&Holder>) -> String {
    let by = holder.map_or_else(|| "a process that is not visible".into(), Holder::to_string);
    let mut lines = vec![("path", info.path.display().to_string())];
    for name in ["type", "mode", "stack", "graph"] {
        let told = info.told.get(name).and_then(Value::as_str);
        lines.extend(told.map(|value| (name, value.to_owned())));
    }
    let bytes = info.told.get("size_bytes").and_then(Value::as_u64);
    lines.extend(bytes.map(|bytes| ("size", size::display(bytes))));
    let written = info.told.get("stats").and_then(written);
    lines.extend(written.map(|written| ("written", written)));
    lines.extend([
        ("mounted on", info.mounted_on.display().to_string()),
        ("served by", by),
    ]);
    let level = info.durability.zip(info.durability_means);
    let level = level.map(|(level, text)| format!("in force is {level}: {text}"));
    lines.extend(level.map(|level| ("durability", level)));
    table_of(lines)
}

fn table_of(lines: Vec<(&str, String)>) -> String {
    let line = |(name, value): (&str, String)| format!("{name:<11} {value}\n");
    lines.into_iter().map(line).collect()
}
