//! `--simulate-power-cut`: a mount that ends as if the power had failed.

use crate::failure::Failure;
use crate::image;
use crate::mount::nth_call::NthCall;
use crate::random;
use fuse::Unmounter;
use medium::{CutAfter, CutReport, PersistModel, Pmem, PowerCut};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use vfs::FileSystem;

/// When the power goes, and what may be left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// Otherwise only on SIGUSR1.
    after: Option<After>,
    /// `seed=`: chooses the state that is left.
    seed: Option<u64>,
    /// `model=`: words or lines.
    model: PersistModel,
    /// `report=`: where the report goes; otherwise beside the image.
    report: Option<PathBuf>,
}

/// What is counted towards the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// `after=` this many fences, `after-stores=` this many stores.
    Medium(CutAfter),
    /// `after-calls=` this many calls that change something.
    Calls(u64),
}

impl std::str::FromStr for Spec {
    type Err = String;

    /// `after=N,seed=S,model=words|lines,report=FILE`, all of them optional;
    /// `after-stores=N` or `after-calls=N` in the place of `after=N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        for word in text.split(',').filter(|w| !w.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || {
                value
                    .parse()
                    .map_err(|_| format!("'{word}' needs a number"))
            };
            let nth = || match number()? {
                0 => Err(format!("'{word}': counting begins with 1")),
                n => Ok(n),
            };
            if name.starts_with("after") && spec.after.is_some() {
                return Err(format!("'{word}': the cut has its moment already"));
            }
            match name {
                "after" => spec.after = Some(After::Medium(CutAfter::Fences(nth()?))),
                "after-stores" => spec.after = Some(After::Medium(CutAfter::Stores(nth()?))),
                "after-calls" => spec.after = Some(After::Calls(nth()?)),
                "seed" => spec.seed = Some(number()?),
                "model" => spec.model = value.parse().map_err(|e| format!("'{word}': {e}"))?,
                "report" if !value.is_empty() => spec.report = Some(value.into()),
                _ => {
                    return Err(format!(
                        "'{word}' is not one of after=, after-stores=, after-calls=, seed=, \
                         model=, report="
                    ));
                }
            }
        }
        Ok(spec)
    }
}

/// A region whose power can be cut, and how.
#[derive(Clone)]
pub struct Switch {
    region: Arc<PowerCut<Box<dyn Pmem>>>,
    seed: u64,
    model: PersistModel,
    report: PathBuf,
}

/// The report as it is written to its file.
#[derive(Serialize)]
struct Report {
    seed: u64,
    model: String,
    lines_in_flight: u64,
    stores_in_flight: u64,
    stores_lost: u64,
}

impl Switch {
    /// Puts a switch in front of `region`, which is mapped from `image`. `seed` is for
    /// when `spec` has none.
    ///
    /// # Errors
    /// If no random seed is to be had, or the report could not be written.
    pub fn new(
        region: Box<dyn Pmem>,
        image: &Path,
        spec: &Spec,
        seed: Option<u64>,
    ) -> Result<Self, Failure> {
        let beside = || {
            let mut name = image.as_os_str().to_owned();
            name.push(".power-cut.json");
            name.into()
        };
        let seed = spec.seed.or(seed).map_or_else(random::seed, Ok)?;
        let report = spec.report.clone().unwrap_or_else(beside);
        let report = writable(&report).map_err(|e| image::about(&report, e))?;
        let region = Arc::new(PowerCut::new(region));
        Ok(Self {
            region,
            seed,
            model: spec.model,
            report,
        })
    }

    /// The seed that chooses the state that is left.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Starts to count towards the cut that `spec` asks for, and returns the file system
    /// to serve. `fs` is open: the count is of what the mount does, not of how it came to
    /// be.
    pub fn arm(&self, spec: &Spec, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        match spec.after {
            None => fs,
            Some(After::Medium(when)) => {
                self.region.cut_after(when, self.seed, self.model);
                fs
            }
            Some(After::Calls(nth)) => Arc::new(NthCall::new(fs, self.clone(), nth)),
        }
    }

    /// Has the power go behind one of the next stores, which one the seed decides: short
    /// calls make a few, long ones hundreds, and each should be cut early and late.
    pub fn arm_call(&self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let most = 1 << rng.u32(..10);
        let stores = CutAfter::Stores(rng.u64(1..=most));
        self.region.cut_after(stores, self.seed, self.model);
    }

    /// Takes back [`arm_call`](Self::arm_call).
    pub fn disarm(&self) {
        self.region.disarm();
    }

    /// The region to use.
    pub fn region(&self) -> Arc<PowerCut<Box<dyn Pmem>>> {
        Arc::clone(&self.region)
    }

    /// Cuts the power now. [`watch`](Self::watch) does the rest.
    pub fn cut(&self) {
        // The outcome, failure included, is found by the watch.
        let _ = self.region.cut(self.seed, self.model);
    }

    /// Whether the power is gone.
    pub fn is_cut(&self) -> bool {
        self.region.outcome().is_some()
    }

    /// Waits in the background for the power to go, by whatever cause; then reports,
    /// takes the mount away and ends the process.
    pub fn watch(self, unmounter: Unmounter) {
        thread::spawn(move || {
            let outcome = loop {
                match self.region.outcome() {
                    Some(outcome) => break outcome,
                    None => thread::sleep(Duration::from_millis(1)),
                }
            };
            let ended = outcome
                .map_err(|e| Failure::new(format_args!("the power cut failed: {e}")))
                .and_then(|cut| self.tell(&cut));
            if let Err(e) = unmounter.detach() {
                tracing::error!("{e}");
            }
            match ended {
                Ok(()) => std::process::exit(0),
                Err(e) => {
                    tracing::error!("{e}");
                    std::process::exit(1)
                }
            }
        });
    }

    fn tell(&self, cut: &CutReport) -> Result<(), Failure> {
        let report = Report {
            seed: cut.seed,
            model: cut.model.to_string(),
            lines_in_flight: cut.lines,
            stores_in_flight: cut.stores,
            stores_lost: cut.lost,
        };
        crate::output::print(format!("{cut}\n"))?;
        let mut json = serde_json::to_vec_pretty(&report).map_err(Failure::new)?;
        json.push(b'\n');
        std::fs::write(&self.report, json)
            .map_err(|e| Failure::new(format_args!("{}: {e}", self.report.display())))
    }
}

/// The absolute name of a file that can be written; one that is not there is not left
/// there. (The server leaves its working directory, and a report that cannot be written
/// would be missed only when there is something to report.)
fn writable(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let there = path.try_exists()?;
    File::options().append(true).create(true).open(&path)?;
    if !there {
        std::fs::remove_file(&path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        assert_eq!("".parse(), Ok(Spec::default()));
        let full = "after=9,seed=18446744073709551615,model=lines,report=/tmp/x";
        let spec = Spec {
            after: Some(After::Medium(CutAfter::Fences(9))),
            seed: Some(u64::MAX),
            model: PersistModel::Lines,
            report: Some("/tmp/x".into()),
        };
        assert_eq!(full.parse(), Ok(spec));
        let after = |text: &str| text.parse::<Spec>().unwrap().after.unwrap();
        assert_eq!(after("after-stores=9"), After::Medium(CutAfter::Stores(9)));
        assert_eq!(after("after-calls=9"), After::Calls(9));
        for wrong in [
            "when=3",
            "after=soon",
            "after-stores",
            "model=pages",
            "report=",
            "seed",
            "after=0",
            "after-calls=0",
            "after=1,after-calls=1",
        ] {
            assert!(wrong.parse::<Spec>().is_err(), "{wrong}");
        }
    }
}
