//! Times of single calls, and of processors.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Nanoseconds of single calls.
pub(crate) type Times = Vec<f64>;

/// Makes a call for each item, and adds its time, less the cost of the clock.
///
/// # Errors
/// That of the first call that fails.
pub(crate) fn timed<T, E>(
    items: impl IntoIterator<Item = T>,
    times: &mut Times,
    mut call: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let clock_ns = clock_ns();
    for item in items {
        let begun = Instant::now();
        call(item)?;
        let ns = begun.elapsed().as_nanos() as f64;
        times.push((ns - clock_ns).max(0.0));
    }
    Ok(())
}

/// Nanoseconds between two readings of the clock: the least of many.
pub(crate) fn clock_ns() -> f64 {
    let pair = |_| {
        let begun = Instant::now();
        begun.elapsed().as_nanos() as f64
    };
    (0..1000).map(pair).fold(f64::INFINITY, f64::min)
}

/// Seconds that all threads of this process have used, in the program and in the kernel.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
