//! Options of engines for a command. The command line takes the options of all engines. The
//! chosen engine then parses its own.
//!
//! # Guarantees
//! - The options of engines are independent. An option of two engines stands once on the
//!   command line, with the text of both. Engines with equal texts share one.
//! - An option of another engine is an error that names its owners.

use crate::values::listed_values;
use crate::{Engine, Error, Result, Verb};
use clap::builder::{Resettable, StringValueParser, StyledStr, ValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};
use std::error::Error as _;
use std::ffi::OsString;

/// An option as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its long name, without dashes.
    pub name: String,
    /// Its value, if it takes one.
    pub value: Option<OsString>,
    /// The option and its value as the user wrote them, for messages.
    pub as_written: String,
}

impl Given {
    /// An option of the command line: `--name=value`.
    pub fn flag(name: &str, value: Option<OsString>) -> Self {
        let text = value.as_ref().map(|value| value.to_string_lossy());
        let text = text.map_or_else(String::new, |value| format!("={value}"));
        Self {
            name: name.to_owned(),
            value,
            as_written: format!("--{name}{text}"),
        }
    }

    /// An option of a mount: `-o name=value`.
    pub fn mount_option(text: &str) -> Self {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.into())),
            None => (text, None),
        };
        Self {
            name: name.to_owned(),
            value,
            as_written: format!("mount option '{text}'"),
        }
    }
}

/// The long name of an engine's option, which all of them have.
fn long(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

/// Adds the options of all engines to a command.
pub fn add(mut command: Command, engines: &[&'static dyn Engine], verb: Verb) -> Command {
    for engine in engines {
        for arg in engine.options(verb).get_arguments() {
            let there = command.get_arguments().find(|a| a.get_id() == arg.get_id());
            let there = there.cloned();
            let help = |of| help_of_all(engines, verb, arg.get_id(), of);
            let texts = [help(Arg::get_help), help(Arg::get_long_help)];
            let merged = open_to_all(arg.clone(), there.as_ref(), texts);
            command = match there {
                None => command.arg(merged),
                Some(_) => command.mut_arg(arg.get_id(), |_| merged),
            };
        }
    }
    command
}

/// The help texts that engines have for an option, each after the names of its engines.
fn help_of_all(
    engines: &[&'static dyn Engine],
    verb: Verb,
    option: &Id,
    of: fn(&Arg) -> Option<&StyledStr>,
) -> Option<String> {
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    for engine in engines {
        let command = engine.options(verb);
        let arg = command.get_arguments().find(|arg| arg.get_id() == option);
        let Some(text) = arg.and_then(of).map(ToString::to_string) else {
            continue;
        };
        match texts.iter_mut().find(|(there, _)| *there == text) {
            Some((_, names)) => names.push(engine.name()),
            None => texts.push((text, vec![engine.name()])),
        }
    }
    let named = texts.iter();
    let named = named.map(|(text, names)| format!("{}: {text}", names.join(", ")));
    (!texts.is_empty()).then(|| named.collect::<Vec<_>>().join("; "))
}

/// The option as the command line has it: it takes any text, and its help names the engines.
fn open_to_all(arg: Arg, merged: Option<&Arg>, texts: [Option<String>; 2]) -> Arg {
    let [short, all] = texts.map(|text| match text {
        Some(text) => Resettable::Value(StyledStr::from(text)),
        None => Resettable::Reset,
    });
    let mut values = merged.map_or_else(Vec::new, Arg::get_possible_values);
    for value in arg.get_possible_values() {
        if values
            .iter()
            .all(|there| there.get_name() != value.get_name())
        {
            values.push(value);
        }
    }
    let takes_value = arg.get_action().takes_values();
    let parser: ValueParser = match values.is_empty() {
        true => StringValueParser::new().into(),
        false => listed_values(values).into(),
    };
    let mut arg = arg
        .default_value(None)
        .required(false)
        .help_heading("Options of a type")
        .help(short)
        .long_help(all);
    if takes_value {
        arg = arg.value_parser(parser);
    }
    arg
}

/// The engines' options that a command line had.
pub fn given(matches: &ArgMatches, engines: &[&'static dyn Engine], verb: Verb) -> Vec<Given> {
    let mut found: Vec<Given> = Vec::new();
    for engine in engines {
        for arg in engine.options(verb).get_arguments() {
            let id = arg.get_id().as_str();
            let is_there = matches.value_source(id) == Some(ValueSource::CommandLine);
            if !is_there || found.iter().any(|given| given.name == long(arg)) {
                continue;
            }
            let mut values = matches.get_raw(id).into_iter().flatten();
            let takes_value = arg.get_action().takes_values();
            let value = values.next().filter(|_| takes_value);
            found.push(Given::flag(long(arg), value.map(Into::into)));
        }
    }
    found
}

/// Whether any engine has an option of this name.
pub fn is_known(engines: &[&'static dyn Engine], verb: Verb, name: &str) -> bool {
    engines.iter().any(|engine| has(*engine, verb, name))
}

fn has(engine: &dyn Engine, verb: Verb, name: &str) -> bool {
    let command = engine.options(verb);
    command.get_arguments().any(|arg| long(arg) == name)
}

/// Parses what was given as the engine's own options.
///
/// # Errors
/// [`Error::Option`]: an option that the engine does not have, or a wrong value.
pub fn parse(
    engines: &[&'static dyn Engine],
    engine: &dyn Engine,
    verb: Verb,
    given: &[Given],
) -> Result<ArgMatches> {
    for option in given {
        if !has(engine, verb, &option.name) {
            let owners = engines.iter().filter(|e| has(**e, verb, &option.name));
            let owners: Vec<&str> = owners.map(|e| e.name()).collect();
            let (written, owners) = (&option.as_written, owners.join(", "));
            let text = format!("{written} is for {owners}, not for {}", engine.name());
            return Err(Error::Option(text));
        }
    }
    let words = given.iter().map(|option| {
        let mut word = OsString::from(format!("--{}", option.name));
        if let Some(value) = &option.value {
            word.push("=");
            word.push(value);
        }
        word
    });
    let command = engine.options(verb).no_binary_name(true);
    let command = command.disable_help_flag(true).disable_version_flag(true);
    command
        .try_get_matches_from(words)
        .map_err(|e| wrong(&e, given))
}

/// The error in the words that the user wrote.
fn wrong(error: &clap::Error, given: &[Given]) -> Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let arg = context(ContextKind::InvalidArg).unwrap_or_default();
    let named = |option: &&Given| {
        let rest = arg
            .strip_prefix("--")
            .and_then(|arg| arg.strip_prefix(&*option.name));
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c == '-' || c.is_alphanumeric()))
    };
    let option = given.iter().find(named);
    let why = match (error.source(), context(ContextKind::InvalidValue)) {
        (Some(source), _) => source.to_string(),
        (None, Some(value)) => format!("'{value}' is not a possible value"),
        (None, None) => error.kind().to_string(),
    };
    Error::Option(match option {
        Some(option) => format!("{}: {why}", option.as_written),
        None => why,
    })
}

#[cfg(test)]
mod tests;
