//! Settings that are varied besides the script.

use crate::{PersistModel, Schedule};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A model of persistent memory, a schedule of write-back, or both (persistent memory below
/// a cache). Its text, such as `words`, `each` or `words.each`, is part of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    /// `None`: the medium is a block device.
    pub model: Option<PersistModel>,
    /// `None`: there is no cache.
    pub schedule: Option<Schedule>,
}

impl Display for Setting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.model, self.schedule) {
            (Some(model), Some(schedule)) => write!(f, "{model}.{schedule}"),
            (Some(model), None) => model.fmt(f),
            (None, Some(schedule)) => schedule.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Some((model, schedule)) = s.split_once('.') {
            return Ok(Self {
                model: Some(model.parse().map_err(|e| format!("{e}"))?),
                schedule: Some(schedule.parse()?),
            });
        }
        if let Ok(model) = s.parse() {
            return Ok(Self {
                model: Some(model),
                schedule: None,
            });
        }
        let schedule = s.parse();
        let schedule =
            schedule.map_err(|e| format!("`{s}` is not a persistence model, and {e}"))?;
        Ok(Self {
            model: None,
            schedule: Some(schedule),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_survives_its_text() {
        for text in [
            "words",
            "lines",
            "each",
            "any7",
            "every8+3",
            "words.sync",
            "lines.any1",
            "words.every2+0",
        ] {
            let setting: Setting = text.parse().expect(text);
            assert_eq!(setting.to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "word",
            "each.words",
            "words.",
            "words.each.ones",
            "every0+1",
            "every3",
        ] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }
}
