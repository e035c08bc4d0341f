//! The machine that figures come from, and the CPUs that threads may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::fs;
use std::time::SystemTime;

/// The machine and the day, to print beside every figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Name and release of the kernel.
    pub kernel: String,
    /// The instruction that writes a cache line back: the best that the CPU has.
    pub flush: String,
    /// Day of the run, `YYYY-MM-DD` in UTC.
    pub date: String,
}

impl Machine {
    /// Describes this machine, now.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| field_of(&cpuinfo, name).unwrap_or("unknown").to_owned();
        let flags = field("flags");
        let uname = rustix::system::uname();
        Self {
            cpu: field("model name"),
            cores: cpus().len(),
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            flush: flush_instruction(&flags).to_owned(),
            date: day_of(SystemTime::now()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            cpu,
            cores,
            kernel,
            flush,
            date,
        } = self;
        write!(f, "{cpu}, {cores} CPUs, {kernel}, flush by {flush}, {date}")
    }
}

fn field_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// The order in which the medium chooses: CLWB keeps the line, CLFLUSHOPT does not wait
/// for the one before.
fn flush_instruction(flags: &str) -> &'static str {
    ["clwb", "clflushopt"]
        .into_iter()
        .find(|name| flags.split(' ').any(|flag| flag == *name))
        .unwrap_or("clflush")
}

/// The day of a time, in UTC.
fn day_of(time: SystemTime) -> String {
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.truncate("2000-01-01".len());
    text
}

/// Bytes of memory that programs can have; 0 if the system does not say.
pub(crate) fn available_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field_of(&meminfo, "MemAvailable");
    let kilobytes = kilobytes.and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}

/// The CPUs that this thread may use, ascending.
pub(crate) fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Keeps this thread, and the processes it starts, on some CPUs while it lives.
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// To one CPU: the last, since interrupts tend to go to the first. Without the
    /// right to do so, nothing happens.
    pub(crate) fn to_one_cpu() -> Self {
        Self::to(cpus().last().copied().unwrap_or_default())
    }

    /// To this CPU. Without the right to do so, nothing happens.
    pub(crate) fn to(cpu: usize) -> Self {
        let before = sched_getaffinity(None).ok();
        let mut one = CpuSet::new();
        one.set(cpu);
        let done = sched_setaffinity(None, &one).is_ok();
        Self {
            before: before.filter(|_| done),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before; if it no longer is, staying pinned is harmless.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_year_month_and_day() {
        let leap_day = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(951_782_400);
        assert_eq!(day_of(leap_day), "2000-02-29");
    }

    #[test]
    fn flags_are_whole_words() {
        assert_eq!(flush_instruction("fpu clflushopt clwb"), "clwb");
        assert_eq!(flush_instruction("fpu clflush clflushopt"), "clflushopt");
        assert_eq!(flush_instruction("fpu clflush"), "clflush");
    }

    #[test]
    fn pinning_ends_with_the_guard() {
        let before = cpus();
        let pinned = Pinned::to_one_cpu();
        assert!(cpus().len() <= 1 || pinned.before.is_none());
        drop(pinned);
        assert_eq!(cpus(), before);
    }
}
