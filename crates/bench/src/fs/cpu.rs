//! CPU time of a workload: of the programs, of the server, and of the kernel's threads.

use crate::server::Server;
use std::collections::HashMap;
use std::fs;

/// The bit in `/proc/PID/stat` that marks threads of the kernel.
const PF_KTHREAD: u64 = 0x0020_0000;

/// CPU time that has been used, in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    /// Seconds of this process, and of the programs that it ran to their end.
    client: f64,
    /// Seconds of the server, if there is one.
    server: f64,
    /// Seconds of each of the kernel's threads: writing back, committing, driving loop devices.
    kernel: HashMap<u32, f64>,
}

/// CPU time between two moments, in seconds, user and system together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Used {
    pub client: f64,
    pub server: f64,
    pub kernel: f64,
}

impl Clock {
    pub(super) fn now(server: Option<&Server>) -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // User and system, of this process and of its children.
        let ticks: u64 = [14, 15, 16, 17].map(|n| field(&stat, n)).iter().sum();
        let server = server.map_or((0.0, 0.0), Server::cpu_seconds);
        Self {
            client: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            server: server.0 + server.1,
            kernel: kernel_threads(),
        }
    }

    /// The time used since `before`. Kernel threads that ended meanwhile are missing.
    pub(super) fn since(&self, before: &Self) -> Used {
        let used = |(pid, now): (&u32, &f64)| now - before.kernel.get(pid).unwrap_or(&0.0);
        Used {
            client: self.client - before.client,
            server: self.server - before.server,
            kernel: self.kernel.iter().map(used).sum(),
        }
    }
}

impl Used {
    pub(super) fn total(self) -> f64 {
        self.client + self.server + self.kernel
    }
}

fn kernel_threads() -> HashMap<u32, f64> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let time = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let of_kernel = field(&stat, 9) & PF_KTHREAD != 0;
        // Nanoseconds, where /proc/PID/stat has hundredths of seconds.
        let exact = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        let ns: f64 = exact.split(' ').next()?.parse().ok()?;
        of_kernel.then_some((pid, ns * 1e-9))
    };
    pids.filter_map(time).collect()
}

/// A field of `/proc/PID/stat`, counted from 1; 0 if there is none. The second one, the
/// program's name, may hold anything, and ends at the last parenthesis.
fn field(stat: &str, number: usize) -> u64 {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let text = rest.split_whitespace().nth(number - 3);
    text.and_then(|n| n.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_any_name() {
        let stat = "17 (a ) b) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        assert_eq!([4, 9, 14, 17].map(|n| field(stat, n)), [4, 9, 14, 17]);
        assert_eq!((field(stat, 18), field("", 9)), (0, 0));
    }

    #[test]
    fn threads_that_are_new_count_and_those_that_ended_do_not() {
        let clock = |client, kernel: &[(u32, f64)]| Clock {
            client,
            server: 0.0,
            kernel: kernel.iter().copied().collect(),
        };
        let before = clock(1.0, &[(2, 5.0), (3, 1.0)]);
        let after = clock(1.5, &[(2, 5.25), (4, 0.125)]);
        let used = after.since(&before);
        assert_eq!((used.client, used.kernel), (0.5, 0.375));
        assert_eq!(used.total(), 0.875);
    }
}
