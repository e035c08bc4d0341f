//! The parts of a run.

use super::calls::Calls;
use super::{Options, Part, Row, Target, clients, sharing};
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::machine::Pinned;
use crate::scaling::thread_counts;
use crate::target::{Made, Making};
use crate::tree::Tree;
use crate::workloads::{self, Workload};
use medium::LatencyModel;
use std::sync::Arc;

/// Memory beyond that of the large file, for the small ones and the logs of file systems.
const ROOM: u64 = 64 << 20;
/// Sizes of batches in bytes.
const BATCHES: [u64; 5] = [64 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];

/// A run, so far.
pub(super) struct Run<'a> {
    pub(super) options: &'a Options,
    pub(super) interrupt: Interrupt,
    pub(super) progress: &'a mut dyn FnMut(&str),
    pub(super) rows: Vec<Row>,
}

impl Run<'_> {
    pub(super) fn part(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Calls => {
                self.calls(None)?;
                self.calls(Some(LatencyModel::PHASE_CHANGE))
            }
            Part::Sharing => self.sharing(),
            Part::Workloads => self.workloads(),
            Part::Clients => self.clients(),
            Part::Batches => self.batches(),
        }
    }

    fn next(&mut self, what: &str) -> Result<()> {
        (self.progress)(what);
        self.interrupt.check()
    }

    /// Those of some targets that are to be measured.
    fn some(&self, some: &[Target]) -> Vec<Target> {
        let chosen = |target: &&Target| self.options.targets.contains(target);
        some.iter().filter(chosen).copied().collect()
    }

    fn make(
        &self,
        target: Target,
        image_bytes: u64,
        latency: Option<LatencyModel>,
    ) -> Result<Made> {
        target.to_make()?.make(Making {
            image_bytes,
            program: &self.options.program,
            latency,
        })
    }

    /// Single calls on all targets, or on those whose memory can be slower.
    fn calls(&mut self, latency: Option<LatencyModel>) -> Result<()> {
        let delayed = |op: &str| match latency {
            None => op.to_owned(),
            Some(model) => format!("{op}, {} ns", model.flush_line_ns),
        };
        let mut targets = self.some(&Target::ALL);
        targets.retain(|target| latency.is_none() || target.has_delays());
        let mut trees: Vec<(Target, Arc<dyn Tree>)> = Vec::new();
        for target in targets {
            self.next(&format!("single calls: preparing {}", target.name()))?;
            let bytes = self.options.file_bytes + ROOM;
            match self
                .make(target, bytes, latency)
                .and_then(|made| made.client())
            {
                Ok(tree) => trees.push((target, tree)),
                Err(why) if target.to_make()?.is_optional() => {
                    self.rows.push(Row::missing(target, &why));
                }
                Err(why) => return Err(why),
            }
        }
        // After the targets, so that the threads of services and engines have all CPUs.
        let _pinned = Pinned::to_one_cpu();
        let all = trees.iter();
        let all = all.map(|(_, tree)| Calls::new(&**tree, self.options.file_bytes));
        let mut all: Vec<_> = all.collect::<Result<_>>()?;
        for round in 0..=self.options.rounds {
            self.next(&delayed("single calls"))?;
            let count = all.len();
            for turn in 0..count {
                all[(turn + round as usize) % count].round()?;
            }
            if round == 0 {
                all.iter_mut().for_each(Calls::forget);
            }
        }
        for ((target, _), calls) in trees.iter().zip(all) {
            let rows = calls.rows(target.name());
            let rows = rows.into_iter().map(|row| Row {
                op: delayed(&row.op),
                ..row
            });
            self.rows.extend(rows);
        }
        Ok(())
    }

    /// Clients that share a block; on tmpfs, threads.
    fn sharing(&mut self) -> Result<()> {
        for target in self.some(&[Target::Pxfs, Target::Tmpfs]) {
            let made = self.make(target, ROOM, None)?;
            for clients in [1, self.options.clients.max(2)] {
                self.next(&format!(
                    "{clients} clients share a block of {}",
                    target.name()
                ))?;
                let time = self.options.time;
                let rows = sharing::measure(target.name(), &made, clients, time)?;
                self.rows.extend(rows);
            }
        }
        Ok(())
    }

    fn workloads(&mut self) -> Result<()> {
        let options = workloads::Options {
            program: self.options.program.clone(),
            workloads: vec![
                Workload::FileServer,
                Workload::WebServer,
                Workload::WebProxy,
            ],
            threads: Some(1),
            files: Some(self.options.files),
            time: self.options.time,
            rounds: self.options.rounds.min(3),
            ..workloads::Options::default()
        };
        let targets = self.some(&Target::ALL);
        let to_make: Vec<_> = targets
            .iter()
            .map(|one| one.to_make())
            .collect::<Result<_>>()?;
        let rows = workloads::measure(&to_make, &options, self.progress)?;
        for row in rows {
            let at = to_make.iter().position(|one| one.to_string() == row.target);
            let target = at.map_or(row.target.clone(), |at| targets[at].name().into());
            self.rows.push(Row {
                target,
                ..Row::from(row)
            });
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<()> {
        let files = self.options.files;
        for target in self.some(&[Target::Pxfs, Target::Tmpfs]) {
            for group in &clients::GROUPS {
                for clients in thread_counts(self.options.clients) {
                    self.next(&format!(
                        "{}: {clients} clients of {}",
                        group.name,
                        target.name()
                    ))?;
                    let each = Workload::FileServer.profile();
                    let each = each.map_or(0, |profile| profile.image_bytes(Some(files)));
                    let made = self.make(target, each * clients as u64, None)?;
                    let sizes = (files, self.options.time);
                    let row = clients::measure(target.name(), &made, group, clients, sizes)?;
                    self.rows.extend(row);
                }
            }
        }
        Ok(())
    }

    fn batches(&mut self) -> Result<()> {
        if self.some(&[Target::Pxfs]).is_empty() {
            return Ok(());
        }
        let files = self.options.files * 20;
        let room = ROOM + files as u64 * BATCHES.len() as u64 * 3 * 4096;
        let made = self.make(Target::Pxfs, room, None)?;
        for bytes in BATCHES {
            self.next(&format!("batches of {bytes} bytes"))?;
            let row = clients::batches(Target::Pxfs.name(), &made, bytes, files)?;
            self.rows.push(row);
        }
        Ok(())
    }
}
