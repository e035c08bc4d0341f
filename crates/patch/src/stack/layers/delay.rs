//! `delay`: the latency of a slower device.

use super::option::{Opt, choose, name_of};
use crate::stack::kind::{Build, Kind};
use medium::block::{DelayDevice, DelayModel};
use std::sync::Arc;

/// Options of the layer `delay`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelayLayer {
    /// The device whose latency is added.
    pub like: Delay,
}

/// A device whose latency a delay imitates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Delay {
    /// A disk of a notebook: [`DelayModel::TRAVELSTAR_7K320`].
    #[default]
    Disk,
    /// An SSD for consumers: [`DelayModel::SAMSUNG_970_EVO`].
    Ssd,
    /// An SSD for consumers, by SATA: [`DelayModel::SAMSUNG_850_EVO`].
    SataSsd,
}

impl Delay {
    /// The latency of the device.
    pub fn model(self) -> DelayModel {
        match self {
            Self::Disk => DelayModel::TRAVELSTAR_7K320,
            Self::Ssd => DelayModel::SAMSUNG_970_EVO,
            Self::SataSsd => DelayModel::SAMSUNG_850_EVO,
        }
    }
}

const LIKE: &[(&str, Delay)] = &[
    ("disk", Delay::Disk),
    ("ssd", Delay::Ssd),
    ("sata-ssd", Delay::SataSsd),
];

impl Kind for DelayLayer {
    const NAME: &'static str = "delay";
    const ABOUT: &'static str = "makes the device as slow as another";
    const OPTIONS: &'static [Opt<Self>] = &[Opt {
        form: "disk|ssd|sata-ssd",
        help: "a notebook's disk of 7,200 rpm, an SSD by NVMe, or one by SATA",
        is_required: true,
        set: |delay, text| choose(text, LIKE).map(|like| delay.like = like),
        get: |delay| Some(name_of(&delay.like, LIKE).into()),
    }];
    const BUILD: Build<Self> = Build::OnDevice(|delay, below, _| {
        Ok(Arc::new(DelayDevice::new(below, delay.like.model())))
    });
}
