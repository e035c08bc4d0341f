//! `selvedge info`: what an image holds.

use crate::failure::Outcome;
use crate::{image, output, size};
use bpfs::format::BLOCK;
use bpfs::{Bpfs, MountOptions, SuperInfo};
use medium::{EffectiveDurability, MappedPmem};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::{FileSystem, Guarantees, StatFs};

/// Show what an image holds and what a mount of it would promise
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is shown.
#[derive(Serialize)]
struct Info<'a> {
    path: &'a Path,
    r#type: &'static str,
    version: u32,
    uuid: String,
    mode: String,
    size_bytes: u64,
    block_bytes: u64,
    blocks: u64,
    /// Missing if the image cannot be mounted as it is.
    blocks_free: Option<u64>,
    inodes_free: Option<u64>,
    /// What `--durability auto` would give.
    durability: String,
    durability_means: &'static str,
    guarantees: Option<Guarantees>,
    /// Why it cannot be mounted as it is.
    trouble: Option<String>,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let pm = image::open_read_only(&self.path)?;
        let durability = pm.durability();
        let header = image::probe(&self.path, &pm)?;
        let info = match inside(pm) {
            Ok((space, promise)) => self.info(&header, durability, Some((space, promise)), None),
            Err(e) => self.info(&header, durability, None, Some(e)),
        };
        if self.json {
            output::print_json(&info)?;
        } else {
            output::print(text(&info))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn info(
        &self,
        header: &SuperInfo,
        durability: EffectiveDurability,
        inside: Option<(StatFs, Guarantees)>,
        trouble: Option<String>,
    ) -> Info<'_> {
        let (space, guarantees) = inside.unzip();
        Info {
            path: &self.path,
            r#type: "bpfs",
            version: header.version,
            uuid: image::uuid(&header.uuid),
            mode: header.mode.to_string(),
            size_bytes: header.blocks * BLOCK,
            block_bytes: BLOCK,
            blocks: header.blocks,
            blocks_free: space.map(|s| s.blocks_free),
            inodes_free: space.map(|s| s.inodes_free),
            durability: durability.to_string(),
            durability_means: durability.describe(),
            guarantees,
            trouble,
        }
    }
}

/// What only a mount knows.
fn inside(pm: MappedPmem) -> Result<(StatFs, Guarantees), String> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Bpfs::open(pm, options).map_err(|e| e.to_string())?;
    let space = fs.statfs().map_err(|e| e.to_string())?;
    Ok((space, fs.guarantees()))
}

fn text(info: &Info<'_>) -> String {
    let mut lines = vec![
        ("path", info.path.display().to_string()),
        (
            "type",
            format!("{}, format version {}", info.r#type, info.version),
        ),
        ("UUID", info.uuid.clone()),
        ("mode", info.mode.clone()),
        (
            "size",
            format!(
                "{}, {} blocks of {}",
                size::display(info.size_bytes),
                info.blocks,
                info.block_bytes
            ),
        ),
    ];
    if let Some(free) = info.blocks_free {
        let bytes = size::display(free * info.block_bytes);
        lines.push(("free", format!("{bytes}, {free} blocks")));
    }
    lines.push((
        "durability",
        format!("{}: {}", info.durability, info.durability_means),
    ));
    if let Some(trouble) = &info.trouble {
        lines.push(("trouble", trouble.clone()));
    }
    let line = |(name, value): (&str, String)| format!("{name:<11} {value}\n");
    lines.into_iter().map(line).collect()
}
