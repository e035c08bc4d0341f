//! `partition`: one partition of a device.

use super::option::{Opt, positive};
use crate::partition::PartitionDevice;
use crate::stack::ValueError;
use crate::stack::kind::{Build, Kind};
use std::sync::Arc;

/// Options of the layer `partition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLayer {
    /// Number of the partition, as in Linux.
    pub number: u32,
    /// Bytes in a logical sector of the device.
    pub sector: u32,
}

impl Default for PartitionLayer {
    fn default() -> Self {
        Self {
            number: 1,
            sector: 512,
        }
    }
}

impl Kind for PartitionLayer {
    const NAME: &'static str = "partition";
    const ABOUT: &'static str = "a partition of the device, by its MBR or GPT";
    const OPTIONS: &'static [Opt<Self>] = &[
        Opt {
            form: "NUMBER",
            help: "its number; logical partitions of an MBR begin at 5",
            is_required: true,
            set: |partition, text| {
                partition.number = positive(text, "the number of a partition, from 1")?;
                Ok(())
            },
            get: |partition| Some(partition.number.to_string()),
        },
        Opt {
            form: "sector=512|4096",
            help: "bytes in a sector, by which an MBR counts; 512",
            is_required: false,
            set: |partition, text| {
                partition.sector = match text {
                    "512" => 512,
                    "4096" => 4096,
                    _ => return Err(ValueError::new(format_args!("'{text}' is not 512 or 4096"))),
                };
                Ok(())
            },
            get: |partition| (partition.sector != 512).then(|| partition.sector.to_string()),
        },
    ];
    const BUILD: Build<Self> = Build::OnDevice(|partition, below, _| {
        let device = PartitionDevice::open(below, partition.sector, partition.number)?;
        Ok(Arc::new(device))
    });
}
