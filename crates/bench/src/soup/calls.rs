//! *filetest* and *dirtest* on one target.

use super::Row;
use crate::error::{Context, Result};
use crate::micro::surface::{Surface, WorkDir};
use crate::singles::{Times, cpu_seconds, timed};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vfs::FileSystem;

/// The calls of both tests.
pub(super) const CALLS: [&str; 4] = ["create", "unlink", "mkdir", "rmdir"];
/// CPU time of a create and an unlink, and the same with a sync after all creates.
pub(super) const CPU: &str = "create+unlink, CPU";
pub(super) const CPU_KEPT: &str = "create+unlink, CPU, kept";

/// The name with a number.
pub(super) fn name(n: u64) -> CString {
    CString::new(format!("name-{n}")).unwrap_or_default()
}

/// Times of both tests.
pub(super) struct Calls {
    surface: Box<dyn Surface>,
    fs: Option<Arc<dyn FileSystem>>,
    names: Vec<CString>,
    times: [Times; 4],
    /// CPU seconds without and with a sync in between, of all names and rounds so far.
    cpu: [f64; 2],
    rounds: u32,
}

impl Calls {
    pub(super) fn new(surface: Box<dyn Surface>, names: usize) -> Self {
        Self {
            surface,
            fs: None,
            names: (0..names as u64).map(name).collect(),
            times: Default::default(),
            cpu: [0.0; 2],
            rounds: 0,
        }
    }

    /// The file system, to end the work of its other threads.
    pub(super) fn with_fs(self, fs: Arc<dyn FileSystem>) -> Self {
        Self {
            fs: Some(fs),
            ..self
        }
    }

    /// Forgets the times so far.
    pub(super) fn forget(&mut self) {
        self.times = Default::default();
        (self.cpu, self.rounds) = ([0.0; 2], 0);
    }

    /// One round of both tests, and one for the CPU time.
    pub(super) fn round(&mut self) -> Result<()> {
        self.timed(0, |surface, name| surface.create(WorkDir::A, name))?;
        self.timed(1, |surface, name| surface.unlink(WorkDir::A, name))?;
        self.timed(2, |surface, name| surface.mkdir(WorkDir::A, name))?;
        self.timed(3, |surface, name| surface.rmdir(WorkDir::A, name))?;
        self.sync()?;
        for is_kept in [false, true] {
            let begun = cpu_seconds();
            self.all(|surface, name| surface.create(WorkDir::A, name))?;
            if is_kept {
                self.sync()?;
            }
            self.all(|surface, name| surface.unlink(WorkDir::A, name))?;
            self.sync()?;
            self.cpu[usize::from(is_kept)] += cpu_seconds() - begun;
        }
        self.rounds += 1;
        Ok(())
    }

    fn timed(
        &mut self,
        which: usize,
        call: impl Fn(&mut dyn Surface, &CStr) -> Result<()>,
    ) -> Result<()> {
        let surface = self.surface.as_mut();
        let times = &mut self.times[which];
        timed(&self.names, times, |name| call(surface, name))
    }

    fn all(&mut self, call: impl Fn(&mut dyn Surface, &CStr) -> Result<()>) -> Result<()> {
        let mut names = self.names.iter();
        names.try_for_each(|name| call(self.surface.as_mut(), name))
    }

    fn sync(&self) -> Result<()> {
        match &self.fs {
            Some(fs) => fs.sync().what(|| "sync".into()),
            None => Ok(()),
        }
    }

    /// The figures.
    pub(super) fn rows(self, target: &str, flush_ns: u64) -> Vec<Row> {
        let pairs = f64::from(self.rounds.max(1)) * self.names.len() as f64;
        let cpu = [CPU, CPU_KEPT].into_iter().zip(self.cpu);
        let cpu = cpu.map(|(op, seconds)| Row::mean(target, op, seconds * 1e9 / pairs));
        let calls = CALLS.into_iter().zip(self.times);
        let calls = calls.filter_map(|(op, times)| Row::of(target, op, flush_ns, times));
        calls.chain(cpu).collect()
    }
}
