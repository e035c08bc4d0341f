//! The choice of an engine by commands, and its options.

use crate::failure::Failure;
use crate::image;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use engine::options::{self, Given};
use engine::{Engine, Image, Verb};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::str::FromStr;

/// The engine of an image. The default one says why something cannot be an image.
///
/// # Errors
/// If the image cannot be read, or holds nothing known.
pub(crate) fn of_image(path: &Path, offset: u64) -> Result<&'static dyn Engine, Failure> {
    let read = |e| Failure::about(path, e);
    if let Some(engine) = engines::of_image(path, offset).map_err(read)? {
        return Ok(engine);
    }
    if offset != 0 {
        let what = format_args!("there is no known file system at byte {offset}");
        return Err(Failure::about(path, what));
    }
    let found = path.metadata().map_err(read)?;
    if found.file_type().is_socket() {
        let what = "a socket; name the image of the service, after the service has ended";
        return Err(Failure::about(path, what));
    }
    let is_image = found.is_file() && found.len() > 0 || found.file_type().is_block_device();
    // A whole device can be mounted whatever it holds.
    if !is_image || image::is_mounted(path) {
        return Ok(engines::default());
    }
    let held = engine::magic::find(engines::all(), path, 0).map_err(read)?;
    Err(match held {
        Some(held) => Failure::about(path, format_args!("{}, not one of ours", held.name())),
        None => Failure::about(
            path,
            "no file system of a known type; make one with `selvedge mkfs`",
        ),
    })
}

/// The engine whose service has the socket.
fn of_socket(path: &Path) -> Result<&'static dyn Engine, Failure> {
    let found = engines::all().iter().find(|engine| engine.has_service());
    found
        .copied()
        .ok_or_else(|| Failure::about(path, "it is a socket"))
}

/// The value of `-t`: an engine, or `selvedge`.
#[derive(Clone, Copy)]
pub(crate) enum Type {
    /// `selvedge`: that of what the image holds.
    Any,
    /// The engine of this name.
    One(&'static dyn Engine),
}

impl Type {
    /// Returns the chosen engine. Without a choice, returns the engine of the format of the image.
    ///
    /// # Errors
    /// If the format of the image cannot be found, as for [`of_image`].
    pub(crate) fn engine(self, path: &Path, offset: u64) -> Result<&'static dyn Engine, Failure> {
        match self {
            Self::One(engine) => Ok(engine),
            Self::Any if Image::whole(path).is_socket() => of_socket(path),
            Self::Any => of_image(path, offset),
        }
    }

    /// Whether a mount uses a file or device.
    pub(crate) fn uses_image(self) -> bool {
        match self {
            Self::One(engine) => engine.uses_image(),
            Self::Any => true,
        }
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "selvedge",
            Self::One(engine) => engine.name(),
        })
    }
}

impl FromStr for Type {
    type Err = String;

    /// The name of an engine, or `selvedge`, each with or without `fuse.` before it.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("fuse.").unwrap_or(text);
        match engines::by_name(name) {
            Some(engine) => Ok(Self::One(engine)),
            None if name == "selvedge" => Ok(Self::Any),
            None => {
                let names: Vec<&str> = engines::all().iter().map(|e| e.name()).collect();
                Err(format!("'{text}' is not one of {}", names.join(", ")))
            }
        }
    }
}

/// The command whose options [`EngineArgs`] takes.
pub(crate) trait Of: 'static {
    /// The command.
    const VERB: Verb;
}

/// Options of `mkfs`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfMkfs {}
/// Options of `mount`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfMount {}
/// Options of `fsck`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfFsck {}
/// Options of `crash test`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfCrashTest {}

/// Options of `graph`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfGraph {}

/// Options of `serve`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfServe {}

impl Of for OfServe {
    const VERB: Verb = Verb::Serve;
}
impl Of for OfGraph {
    const VERB: Verb = Verb::Graph;
}
impl Of for OfMkfs {
    const VERB: Verb = Verb::Mkfs;
}
impl Of for OfMount {
    const VERB: Verb = Verb::Mount;
}
impl Of for OfFsck {
    const VERB: Verb = Verb::Fsck;
}
impl Of for OfCrashTest {
    const VERB: Verb = Verb::CrashTest;
}

/// Options of engines, as they were given. Flattened into a command's arguments, after its
/// own.
#[derive(Debug)]
pub(crate) struct EngineArgs<V> {
    given: Vec<Given>,
    of: PhantomData<V>,
}

impl<V: Of> EngineArgs<V> {
    /// The options of the command line.
    pub(crate) fn given(&self) -> &[Given] {
        &self.given
    }

    /// Parses the options as those of an engine.
    ///
    /// # Errors
    /// An option that it does not have, or a wrong value.
    pub(crate) fn of(&self, engine: &dyn Engine) -> Result<ArgMatches, engine::Error> {
        parse::<V>(engine, &self.given)
    }
}

/// Parses an engine's options of a command.
///
/// # Errors
/// An option that the engine does not have, or a wrong value.
pub(crate) fn parse<V: Of>(
    engine: &dyn Engine,
    given: &[Given],
) -> Result<ArgMatches, engine::Error> {
    options::parse(engines::all(), engine, V::VERB, given)
}

impl<V: Of> Args for EngineArgs<V> {
    fn augment_args(command: Command) -> Command {
        options::add(command, engines::all(), V::VERB)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<V: Of> FromArgMatches for EngineArgs<V> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            given: options::given(matches, engines::all(), V::VERB),
            of: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
