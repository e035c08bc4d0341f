//! The parts of a run.

use super::calls::Calls;
use super::options::ROOM;
use super::sharing::{Case, Files};
use super::{Options, Part, Row, Target, clients, protection, sharing, under_run, untar};
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::machine::Pinned;
use crate::scaling::thread_counts;
use crate::service::Service;
use crate::target::{self, Made, Making};
use crate::tree::Tree;
use crate::workloads::{self, Workload};
use medium::LatencyModel;
use std::sync::Arc;

/// Sizes of batches in bytes.
const BATCHES: [u64; 5] = [64 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];

/// The name of memory alone, in rows.
pub(super) const MEMORY: &str = "memory";

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
                self.calls(Some(LatencyModel::PHASE_CHANGE))?;
                self.calls_under_run()
            }
            Part::Sharing => self.sharing(),
            Part::Workloads => self.workloads(),
            Part::Clients => self.clients(),
            Part::Batches => self.batches(),
            Part::Protection => self.protection(),
            Part::Untar => self.untar(),
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

    /// Those that this process can call, with their names.
    fn called(&self, some: &[Target]) -> Result<Vec<(String, target::Target)>> {
        if let Some(dir) = &self.options.dir {
            let directory = target::Target::Directory(dir.clone());
            return Ok(vec![(dir.display().to_string(), directory)]);
        }
        let to_make = |target: Target| {
            let made = target.to_make().transpose()?;
            Some(made.map(|made| (target.name().to_owned(), made)))
        };
        self.some(some).into_iter().filter_map(to_make).collect()
    }

    fn make(
        &self,
        target: &target::Target,
        image_bytes: u64,
        latency: Option<LatencyModel>,
    ) -> Result<Made> {
        target.make(Making {
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
        let targets = match latency {
            None => self.called(&Target::CALLED)?,
            Some(_) if self.options.dir.is_some() => return Ok(()),
            Some(_) => self.called(&Target::DELAYED)?,
        };
        let mut trees: Vec<(String, Arc<dyn Tree>)> = Vec::new();
        for (name, target) in targets {
            self.next(&format!("single calls: preparing {name}"))?;
            let bytes = self.options.file_bytes + ROOM;
            let made = self.make(&target, bytes, latency);
            match made.and_then(|made| made.client()) {
                Ok(tree) => trees.push((name, tree)),
                Err(why) if target.is_optional() => self.rows.push(Row::missing(&name, &why)),
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
        for ((name, _), calls) in trees.iter().zip(all) {
            let rows = calls.rows(name);
            let rows = rows.into_iter().map(|row| Row {
                op: delayed(&row.op),
                ..row
            });
            self.rows.extend(rows);
        }
        Ok(())
    }

    /// Single calls of a program under `selvedge run`.
    fn calls_under_run(&mut self) -> Result<()> {
        if self.options.dir.is_some() || self.some(&[Target::Run]).is_empty() {
            return Ok(());
        }
        self.next("single calls under selvedge run")?;
        match under_run::calls(self.options) {
            Ok(rows) => self.rows.extend(rows),
            Err(why) => self.rows.push(Row::missing(Target::Run.name(), &why)),
        }
        Ok(())
    }

    /// Clients that share a file; on tmpfs and in memory, threads.
    fn sharing(&mut self) -> Result<()> {
        let numbers = [1, self.options.clients.max(2)];
        let mut made = Vec::new();
        for (name, target) in self.called(&[Target::Pxfs, Target::Tmpfs])? {
            self.next(&format!("images of {name}"))?;
            let bytes = ROOM + sharing::all_bytes(numbers);
            made.push((name, self.make(&target, bytes, None)?));
        }
        let time = self.options.time;
        for clients in numbers {
            let mut targets = vec![(MEMORY.to_owned(), Files::memory(clients))];
            for (name, made) in &made {
                targets.push((name.clone(), Files::of(made, clients)?));
            }
            let mut next = |case: Case| self.next(&format!("{clients} clients: {case}"));
            let rows = sharing::measure(&targets, clients, time, &mut next)?;
            self.rows.extend(rows);
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
            files: Some(self.options.files),
            time: self.options.time,
            rounds: self.options.rounds.min(3),
            ..workloads::Options::default()
        };
        self.workloads_on(&Target::CALLED, &options)?;
        let webproxy = workloads::Options {
            workloads: vec![Workload::WebProxy],
            ..options
        };
        self.workloads_on(&[Target::Kvfs], &webproxy)
    }

    fn workloads_on(&mut self, some: &[Target], options: &workloads::Options) -> Result<()> {
        let (names, targets): (Vec<_>, Vec<_>) = self.called(some)?.into_iter().unzip();
        if targets.is_empty() {
            return Ok(());
        }
        for row in workloads::measure(&targets, options, self.progress)? {
            let mut targets = targets.iter();
            let at = targets.position(|target| target.to_string() == row.target);
            let target = at.map_or_else(|| row.target.clone(), |at| names[at].clone());
            self.rows.push(Row {
                target,
                ..Row::from(row)
            });
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<()> {
        let files = self.options.files;
        for (name, target) in self.called(&[Target::Pxfs, Target::Tmpfs])? {
            for group in &clients::GROUPS {
                for clients in thread_counts(self.options.clients) {
                    self.next(&format!("{}: {clients} clients of {name}", group.name))?;
                    let each = Workload::FileServer.profile();
                    let each = each.map_or(0, |profile| profile.image_bytes(Some(files)));
                    let made = self.make(&target, each * clients as u64, None)?;
                    let sizes = (files, self.options.time);
                    let rows = clients::measure(&name, &made, group, clients, sizes)?;
                    self.rows.extend(rows);
                }
            }
        }
        Ok(())
    }

    fn batches(&mut self) -> Result<()> {
        let files = self.options.files * 20;
        let room = ROOM + files as u64 * BATCHES.len() as u64 * 3 * 4096;
        for (name, target) in self.called(&[Target::Pxfs])? {
            let made = self.make(&target, room, None)?;
            for bytes in BATCHES {
                self.next(&format!("batches of {bytes} bytes"))?;
                let row = clients::batches(&name, &made, bytes, files)?;
                self.rows.push(row);
            }
        }
        Ok(())
    }

    /// Changes of protection, on an image and on a protected store.
    fn protection(&mut self) -> Result<()> {
        if self.options.dir.is_some() || self.some(&[Target::Pxfs]).is_empty() {
            return Ok(());
        }
        let name = Target::Pxfs.name();
        let protected = format!("{name}, protected");
        for (target, start) in [
            (name, Service::start_image as fn(u64) -> Result<Service>),
            (&protected, Service::start_protected),
        ] {
            self.next(&format!("changes of protection: {target}"))?;
            let made = Made::Service(Arc::new(start(protection::IMAGE_BYTES)?));
            let rows = protection::measure(target, &*made.client()?, self.options.rounds)?;
            self.rows.extend(rows);
        }
        Ok(())
    }

    /// Programs on a tree of files.
    fn untar(&mut self) -> Result<()> {
        let targets = self.some(&[Target::Run, Target::Tmpfs]);
        if self.options.dir.is_some() || targets.is_empty() {
            return Ok(());
        }
        self.next("untar and rm")?;
        match untar::measure(&targets, self.options, &self.interrupt) {
            Ok(rows) => self.rows.extend(rows),
            Err(why) => {
                self.interrupt.check()?;
                self.rows.push(Row {
                    op: untar::OPS[0].into(),
                    ..Row::missing("untar", &why)
                });
            }
        }
        Ok(())
    }
}
