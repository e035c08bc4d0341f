use super::*;
use crate::{Interposer, MountRequest, Prepared};
use clap::{Args, FromArgMatches};
use vfs::Guarantees;

/// An engine with options only.
struct Fake(&'static str);

#[derive(Args)]
struct First {
    /// A speed
    #[arg(long, value_parser = ["fast", "slow"])]
    mode: Option<String>,
    /// A number
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    number: Option<u32>,
    /// Whether
    #[arg(long)]
    flag: bool,
}

#[derive(Args)]
struct Second {
    /// In which way
    #[arg(long, value_parser = ["red", "slow"])]
    mode: Option<String>,
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        self.0
    }

    fn about(&self) -> &'static str {
        "a test's"
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        Ok(Vec::new())
    }

    fn options(&self, _verb: Verb) -> Command {
        let command = Command::new("");
        match self.0 {
            "first" => First::augment_args(command),
            _ => Second::augment_args(command),
        }
    }

    fn mount(
        &self,
        _request: &MountRequest,
        _options: &ArgMatches,
        _between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        Err(self.lacks("mounts"))
    }
}

const ENGINES: &[&dyn Engine] = &[&Fake("first"), &Fake("second")];

fn taken(words: &[&str]) -> Vec<Given> {
    let command = add(Command::new("x").no_binary_name(true), ENGINES, Verb::Mkfs);
    let matches = command.try_get_matches_from(words).unwrap();
    given(&matches, ENGINES, Verb::Mkfs)
}

fn refused(engine: usize, words: &[&str]) -> String {
    let parsed = parse(ENGINES, ENGINES[engine], Verb::Mkfs, &taken(words));
    parsed.unwrap_err().to_string()
}

#[test]
fn the_engine_parses_the_options_of_the_command_line() {
    let given = taken(&["--mode", "fast", "--number=7", "--flag"]);
    let matches = parse(ENGINES, ENGINES[0], Verb::Mkfs, &given).unwrap();
    let first = First::from_arg_matches(&matches).unwrap();
    assert_eq!(first.mode.as_deref(), Some("fast"));
    assert_eq!((first.number, first.flag), (Some(7), true));
    let matches = parse(ENGINES, ENGINES[1], Verb::Mkfs, &taken(&["--mode=red"])).unwrap();
    assert_eq!(
        Second::from_arg_matches(&matches).unwrap().mode.as_deref(),
        Some("red")
    );
    let none = parse(ENGINES, ENGINES[0], Verb::Mkfs, &taken(&[])).unwrap();
    assert!(!First::from_arg_matches(&none).unwrap().flag);
}

#[test]
fn wrong_options_are_named_as_they_were_written() {
    assert_eq!(
        refused(1, &["--flag"]),
        "--flag is for first, not for second"
    );
    let text = refused(0, &["--mode=red"]);
    assert!(text.starts_with("--mode=red: "), "{text}");
    let text = refused(0, &["--number=0"]);
    assert!(
        text.starts_with("--number=0: ") && text.contains("1.."),
        "{text}"
    );
}

#[test]
fn an_option_of_two_engines_has_the_help_and_the_values_of_both() {
    let command = add(Command::new("x"), ENGINES, Verb::Mkfs);
    command.clone().debug_assert();
    let mut modes = command.get_arguments().filter(|arg| arg.get_id() == "mode");
    let mode = modes.next().unwrap();
    assert!(modes.next().is_none());
    let help = mode.get_help().unwrap().to_string();
    assert_eq!(help, "first: A speed; second: In which way");
    let values = mode.get_possible_values();
    let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
    assert_eq!(values, ["fast", "slow", "red"]);
}

#[test]
fn engines_with_equal_texts_share_one() {
    let engines: &[&'static dyn Engine] = &[&Fake("first"), &Fake("second"), &Fake("third")];
    let command = add(Command::new("x"), engines, Verb::Mkfs);
    let help = |name: &str| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == name);
        arg.unwrap().get_help().unwrap().to_string()
    };
    assert_eq!(help("mode"), "first: A speed; second, third: In which way");
    assert_eq!(help("flag"), "first: Whether");
}

#[test]
fn names_are_known_if_any_engine_has_them() {
    assert!(is_known(ENGINES, Verb::Mkfs, "number"));
    assert!(!is_known(ENGINES, Verb::Mkfs, "numbers"));
}
