//! `journal`: transactions in a log.

use super::option::{Opt, choose, duration, name_of, positive, show_duration};
use crate::stack::ValueError;
use crate::stack::kind::{Assembly, Build, BuildError, Kind};
use crate::{Journal, JournalOptions, Store, journal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of the layer `journal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLayer {
    /// The changes that are logged.
    pub what: journal::Mode,
    /// The place of the log.
    pub log: LogLocation,
    /// Age at which a transaction is committed.
    pub commit: Duration,
}

/// The place of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLocation {
    /// In a file of the file system.
    Internal,
    /// On its own device or in its own file, which becomes the last device below the cache.
    External(PathBuf),
    /// On the device of this number below the cache. The file system is on number 0.
    Device(u8),
}

impl Default for JournalLayer {
    fn default() -> Self {
        Self {
            what: journal::Mode::Ordered,
            log: LogLocation::Internal,
            commit: Duration::from_secs(5),
        }
    }
}

const WHAT: &[(&str, journal::Mode)] = &[
    ("metadata", journal::Mode::Metadata),
    ("ordered", journal::Mode::Ordered),
    ("full", journal::Mode::Full),
];

impl Kind for JournalLayer {
    const NAME: &'static str = "journal";
    const ABOUT: &'static str = "makes operations atomic: a log of transactions";
    const OPTIONS: &'static [Opt<Self>] = &[
        Opt {
            form: "metadata|ordered|full",
            help: "what the log holds: metadata; metadata, after the data that belong to it; all",
            is_required: false,
            set: |journal, text| choose(text, WHAT).map(|what| journal.what = what),
            get: |journal| Some(name_of(&journal.what, WHAT).into()),
        },
        Opt {
            form: "internal",
            help: "the log is in a file of the file system",
            is_required: false,
            set: |journal, text| match text {
                "internal" => {
                    journal.log = LogLocation::Internal;
                    Ok(())
                }
                _ => Err(ValueError::new("'internal' is needed")),
            },
            get: |journal| (journal.log == LogLocation::Internal).then(|| "internal".into()),
        },
        Opt {
            form: "external=PATH",
            help: "the log is in this file or on this device",
            is_required: false,
            set: |journal, path| {
                journal.log = LogLocation::External(path.into());
                Ok(())
            },
            get: |journal| match &journal.log {
                LogLocation::External(path) => Some(path.to_string_lossy().into_owned()),
                LogLocation::Internal | LogLocation::Device(_) => None,
            },
        },
        Opt {
            form: "log=NUMBER",
            help: "the log is on this device below the cache; the file system is on number 0",
            is_required: false,
            set: |journal, text| {
                let number = positive(text, "the number of a device, from 1")?;
                journal.log = LogLocation::Device(number);
                Ok(())
            },
            get: |journal| match journal.log {
                LogLocation::Device(number) => Some(number.to_string()),
                LogLocation::Internal | LogLocation::External(_) => None,
            },
        },
        Opt {
            form: "commit=TIME",
            help: "a transaction ends at this age; 5s",
            is_required: false,
            set: |journal, text| duration(text).map(|time| journal.commit = time),
            get: |journal| {
                let is_usual = journal.commit == Self::default().commit;
                (!is_usual).then(|| show_duration(journal.commit))
            },
        },
    ];
    const BUILD: Build<Self> = Build::OnOrdered(Self::build);
}

impl JournalLayer {
    fn build(
        &self,
        below: Arc<dyn Store>,
        assembly: &mut Assembly,
    ) -> Result<Arc<dyn Store>, BuildError> {
        let (Some((device, place)), Some(cache)) = (&assembly.log, &assembly.cache) else {
            return Ok(below);
        };
        let log = match *device {
            0 => below.clone(),
            number => assembly.store(cache, number),
        };
        let options = JournalOptions {
            mode: self.what,
            interval: cache.options().interval.and(Some(self.commit)),
            seconds: assembly.seconds.clone(),
        };
        let journal = Arc::new(Journal::open(below, log, place.clone(), options)?);
        assembly.journal = Some(journal.clone());
        Ok(journal)
    }
}
