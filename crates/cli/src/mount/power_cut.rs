//! `--simulate-power-cut`: a mount whose medium stops as if the power had failed.

use crate::failure::Failure;
use crate::mount::nth_call::NthCall;
use crate::mount::power_line::PowerLine;
use crate::own_file::{self, OwnFile};
use crate::random;
use fuse::Invalidator;
use medium::block::{BlockCutAfter, BlockDevice, PowerSupply, TearModel};
use medium::{CutAfter, PersistModel, Pmem, PowerCut};
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vfs::FileSystem;

/// The moment of the cut, and the states that it may leave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Spec {
    /// The event that cuts the power. `None`: only SIGUSR1 does.
    after: Option<After>,
    /// `seed=`: chooses the state that is left.
    seed: Option<u64>,
    /// `model=`: what may be left of what was being stored.
    model: Option<Model>,
    /// `report=`: the path of the report; otherwise it is beside the image.
    report: Option<PathBuf>,
}

/// The events that are counted towards the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// `after=` this many fences, or flushes of a block device.
    Barriers(u64),
    /// `after-stores=` this many stores of a word, or of a block.
    Stores(u64),
    /// `after-calls=` this many calls that change something.
    Calls(u64),
}

/// The models of both kinds of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    Memory(PersistModel),
    Blocks(TearModel),
}

impl std::str::FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "blocks" => Ok(Self::Blocks(TearModel::Blocks)),
            "sectors" => Ok(Self::Blocks(TearModel::Sectors)),
            _ => text
                .parse()
                .map(Self::Memory)
                .map_err(|_| format!("'{text}' is not one of words, lines, blocks, sectors")),
        }
    }
}

impl std::str::FromStr for Spec {
    type Err = String;

    /// `after=N,seed=S,model=MODEL,report=FILE`, all of them optional;
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
                "after" => spec.after = Some(After::Barriers(nth()?)),
                "after-stores" => spec.after = Some(After::Stores(nth()?)),
                "after-calls" => spec.after = Some(After::Calls(nth()?)),
                "seed" => spec.seed = Some(number()?),
                "model" => spec.model = Some(value.parse().map_err(|e| format!("'{word}': {e}"))?),
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

/// A medium whose power can be cut, with the moment of the cut.
#[derive(Clone)]
pub(crate) struct Switch {
    medium: Medium,
    seed: u64,
    report: OwnFile,
    /// Whether the report is written, once that has been tried.
    reported: Arc<OnceLock<bool>>,
}

/// A switch, and the moment of its cut.
pub(crate) type Power<'a> = (&'a Spec, Switch);

/// Memory whose power a switch cuts.
pub(crate) type Region = Arc<PowerCut<Box<dyn Pmem>>>;

/// The medium on the switch, with the model of the states that a cut leaves.
#[derive(Clone)]
enum Medium {
    Memory(Region, PersistModel),
    Blocks(Arc<PowerSupply>, TearModel),
}

/// A cut as it is printed, and as it is written to the report.
type Told = (String, Value);

impl Medium {
    fn arm(&self, after: After, seed: u64) {
        match self {
            Self::Memory(region, model) => {
                let when = match after {
                    After::Barriers(n) => CutAfter::Fences(n),
                    After::Stores(n) | After::Calls(n) => CutAfter::Stores(n),
                };
                region.cut_after(when, seed, *model);
            }
            Self::Blocks(supply, model) => {
                let when = match after {
                    After::Barriers(n) => BlockCutAfter::Flushes(n),
                    After::Stores(n) | After::Calls(n) => BlockCutAfter::Writes(n),
                };
                supply.cut_after(when, seed, *model);
            }
        }
    }

    /// The effect of the cut, if there was one.
    fn outcome(&self) -> Option<Result<Told, Failure>> {
        let failed =
            |e: &dyn std::fmt::Display| Failure::new(format_args!("the power cut failed: {e}"));
        match self {
            Self::Memory(region, _) => region.outcome().map(|cut| {
                let cut = cut.map_err(|e| failed(&e))?;
                let report = json!({
                    "seed": cut.seed,
                    "model": cut.model.to_string(),
                    "lines_in_flight": cut.lines,
                    "stores_in_flight": cut.stores,
                    "stores_lost": cut.lost,
                });
                Ok((cut.to_string(), report))
            }),
            Self::Blocks(supply, _) => supply.outcome().map(|cut| {
                let cut = cut.map_err(|e| failed(&e))?;
                let report = json!({
                    "seed": cut.seed,
                    "model": cut.model.to_string(),
                    "blocks_in_flight": cut.blocks,
                    "writes_in_flight": cut.writes,
                    "writes_lost": cut.lost,
                });
                Ok((cut.to_string(), report))
            }),
        }
    }
}

impl Switch {
    /// Puts a switch in front of `region`, which is mapped from `image`, and returns the switched
    /// region. `seed` is for when `spec` has none.
    ///
    /// # Errors
    /// If the model does not fit memory, no random seed is available, or the report could
    /// not be written.
    pub(crate) fn of_memory(
        region: Box<dyn Pmem>,
        image: &Path,
        spec: &Spec,
        seed: Option<u64>,
    ) -> Result<(Self, Region), Failure> {
        let model = match spec.model {
            None => PersistModel::default(),
            Some(Model::Memory(model)) => model,
            Some(Model::Blocks(model)) => return Err(wrong_model(model, "words and lines")),
        };
        let region = Arc::new(PowerCut::new(region));
        let medium = Medium::Memory(region.clone(), model);
        Ok((Self::new(medium, image, spec, seed)?, region))
    }

    /// Puts a switch in front of `devices`, of which the first is `image`, and replaces each by
    /// its switched device. Otherwise as [`of_memory`](Self::of_memory).
    ///
    /// # Errors
    /// If the model does not fit block devices, no random seed is available, or the report could
    /// not be written.
    pub(crate) fn of_blocks<'a>(
        devices: impl IntoIterator<Item = &'a mut Arc<dyn BlockDevice>>,
        image: &Path,
        spec: &Spec,
        seed: Option<u64>,
    ) -> Result<Self, Failure> {
        let model = match spec.model {
            None => TearModel::default(),
            Some(Model::Blocks(model)) => model,
            Some(Model::Memory(model)) => return Err(wrong_model(model, "blocks and sectors")),
        };
        let supply = Arc::new(PowerSupply::default());
        for device in devices {
            *device = Arc::new(supply.plug(device.clone()));
        }
        Self::new(Medium::Blocks(supply, model), image, spec, seed)
    }

    fn new(medium: Medium, image: &Path, spec: &Spec, seed: Option<u64>) -> Result<Self, Failure> {
        let seed = spec.seed.or(seed).map_or_else(random::seed, Ok)?;
        let report = report(spec, image)?;
        Ok(Self {
            medium,
            seed,
            report,
            reported: Arc::default(),
        })
    }

    /// The seed that chooses the state that is left.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Starts to count towards the cut that `spec` asks for, and returns the file system
    /// to serve. `fs` is open: the count is of what the mount does, not of how it came to
    /// be.
    pub(crate) fn arm(&self, spec: &Spec, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        match spec.after {
            None => fs,
            Some(After::Calls(nth)) => Arc::new(NthCall::new(fs, self.clone(), nth)),
            Some(after) => {
                self.medium.arm(after, self.seed);
                fs
            }
        }
    }

    /// Cuts the power after one of the next stores, which the seed selects: short
    /// calls make a few, long ones hundreds, and each should be cut early and late.
    pub(crate) fn arm_call(&self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let most = 1 << rng.u32(..10);
        let stores = After::Stores(rng.u64(1..=most));
        self.medium.arm(stores, self.seed);
    }

    /// Takes back [`arm_call`](Self::arm_call).
    pub(crate) fn disarm(&self) {
        match &self.medium {
            Medium::Memory(region, _) => region.disarm(),
            Medium::Blocks(supply, _) => supply.disarm(),
        }
    }

    /// Cuts the power now. [`watch`](Self::watch) does the rest.
    pub(crate) fn cut(&self) {
        // The outcome, failure included, is found by the watch.
        match &self.medium {
            Medium::Memory(region, model) => drop(region.cut(self.seed, *model)),
            Medium::Blocks(supply, model) => drop(supply.cut(self.seed, *model)),
        }
    }

    /// Whether the power is gone.
    pub(crate) fn is_cut(&self) -> bool {
        self.medium.outcome().is_some()
    }

    /// Waits in the background for the cut, whatever its cause; then reports, and has
    /// the kernel drop its caches of the file system below `line`, whose calls fail.
    /// The mount stays: nothing that its users do by path reaches the directory below.
    pub(crate) fn watch(
        &self,
        line: Arc<PowerLine>,
        kernel: Invalidator,
    ) -> JoinHandle<Result<(), Failure>> {
        let switch = self.clone();
        thread::spawn(move || {
            let outcome = loop {
                match switch.medium.outcome() {
                    Some(outcome) => break outcome,
                    None => thread::sleep(Duration::from_millis(1)),
                }
            };
            line.invalidate(&kernel);
            let told = outcome.and_then(|(line, report)| switch.tell(&line, &report));
            // There is no report of a cut that failed.
            let _ = switch.reported.set(false);
            told.inspect_err(|e| tracing::error!("{e}"))
        })
    }

    /// Waits for the report of a cut that [`watch`](Self::watch) sees, and returns whether it
    /// is written.
    pub(crate) fn wait_for_report(&self) -> bool {
        *self.reported.wait()
    }

    fn tell(&self, line: &str, report: &Value) -> Result<(), Failure> {
        let mut json = serde_json::to_vec_pretty(report).map_err(Failure::new)?;
        json.push(b'\n');
        // First, and in any case: standard output may block, or be closed.
        let written = self.report.write(json, own_file::PRIVATE);
        let _ = self.reported.set(written.is_ok());
        let printed = crate::output::print(format!("{line}\n"));
        written.map_err(|e| Failure::about(self.report.path(), e))?;
        printed
    }
}

fn wrong_model(model: impl std::fmt::Display, known: &str) -> Failure {
    Failure::new(format_args!(
        "--simulate-power-cut: the models of this medium are {known}, not {model}"
    ))
}

/// The file of the report. A report that cannot be written would otherwise be missed only
/// when there is something to report.
fn report(spec: &Spec, image: &Path) -> Result<OwnFile, Failure> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e: io::Error| Failure::about(&path, format_args!("cannot be the report: {e}"))
    };
    let report = match &spec.report {
        Some(path) => OwnFile::chosen(path).map_err(failed(path))?,
        None => OwnFile::beside(image, ".power-cut.json").map_err(failed(image))?,
    };
    report.try_write().map_err(failed(report.path()))?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_is_read_from_its_option() {
        assert_eq!("".parse(), Ok(Spec::default()));
        let full = "after=9,seed=18446744073709551615,model=lines,report=/tmp/x";
        let spec = Spec {
            after: Some(After::Barriers(9)),
            seed: Some(u64::MAX),
            model: Some(Model::Memory(PersistModel::Lines)),
            report: Some("/tmp/x".into()),
        };
        assert_eq!(full.parse(), Ok(spec));
        let after = |text: &str| text.parse::<Spec>().unwrap().after.unwrap();
        assert_eq!(after("after-stores=9"), After::Stores(9));
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
