//! Options whose values have names: help texts, manual pages and completions list them.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use std::error::Error;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

/// A parser of `T` that lists some of its values.
#[derive(Clone)]
pub struct Listed<T> {
    values: Vec<PossibleValue>,
    parsed: PhantomData<fn() -> T>,
}

/// A parser that lists `names`.
pub fn listed<T>(names: impl IntoIterator<Item = impl ToString>) -> Listed<T> {
    // Commands are made once, and the program needs their names to its end.
    let value = |name: &dyn ToString| PossibleValue::new(&*name.to_string().leak());
    Listed {
        values: names.into_iter().map(|name| value(&name)).collect(),
        parsed: PhantomData,
    }
}

/// A parser of any text that lists these values.
pub fn listed_values(values: impl IntoIterator<Item = PossibleValue>) -> Listed<String> {
    Listed {
        values: values.into_iter().collect(),
        parsed: PhantomData,
    }
}

/// A parser that lists names and their meanings.
pub fn explained<T, const N: usize>(names: [(&'static str, &'static str); N]) -> Listed<T> {
    let value = |(name, meaning)| PossibleValue::new(name).help(meaning);
    Listed {
        values: names.into_iter().map(value).collect(),
        parsed: PhantomData,
    }
}

impl<T> TypedValueParser for Listed<T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        option: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parse = |text: String| text.parse::<T>();
        let parser = StringValueParser::new().try_map(parse);
        parser.parse_ref(command, option, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().cloned()))
    }
}
