//! Memory that is slower to write than the one it runs on.
//!
//! The model is that of Mnemosyne's evaluation (Volos, section 3.5.1). It adds time for each
//! flushed line and for each fence, and limits the bandwidth of streaming stores. Loads, and
//! stores that stay in the cache, take no extra time. Guarantee: the median delay is within 4 %
//! of the request. [`Calibration::measure`] measures the deviation on this machine.

use crate::units::line_count;
use crate::{MediumError, Pmem, Rule};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The delays to add; 0 adds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyModel {
    /// Nanoseconds for each line that is flushed.
    pub flush_line_ns: u64,
    /// Nanoseconds for each line that a streaming store touches.
    pub stream_line_ns: u64,
    /// Bytes per second that streaming stores may reach, or 0 for no limit.
    pub stream_bytes_per_s: u64,
    /// Nanoseconds for each fence.
    pub fence_ns: u64,
}

impl LatencyModel {
    /// Phase-change memory as Mnemosyne's evaluation assumes it: 150 ns, 4 GB/s.
    pub const PHASE_CHANGE: Self = Self {
        flush_line_ns: 150,
        stream_line_ns: 0,
        stream_bytes_per_s: 4_000_000_000,
        fence_ns: 150,
    };
}

/// Forwards everything to `P` and adds delays.
pub struct Latency<P> {
    inner: P,
    model: LatencyModel,
    spin: &'static Spin,
}

impl<P: Pmem> Latency<P> {
    /// Adds the delays of `model`. The first call in a process takes 0.1 s, or more on a busy
    /// machine, to measure the processor's time-stamp counter.
    pub fn new(inner: P, model: LatencyModel) -> Self {
        let spin = Spin::calibrated();
        Self { inner, model, spin }
    }

    /// The region below, without the delays.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The delays.
    pub fn model(&self) -> LatencyModel {
        self.model
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Latency<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        let start = ticks();
        self.inner.store_nt(off, bytes);
        let len = bytes.len() as u64;
        self.spin
            .wait(line_count(off, len) * self.model.stream_line_ns);
        // The limit includes the time that the stores took themselves.
        if let Some(ns) = (len * 1_000_000_000).checked_div(self.model.stream_bytes_per_s) {
            self.spin.wait_from(start, ns);
        }
    }

    fn flush(&self, off: u64, len: u64) {
        self.inner.flush(off, len);
        self.spin
            .wait(line_count(off, len) * self.model.flush_line_ns);
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let result = self.inner.fence(rule);
        self.spin.wait(self.model.fence_ns);
        result
    }
}

/// The accuracy of the delays on this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// The requested delay, in nanoseconds.
    pub asked_ns: u64,
    /// The median delay, in nanoseconds.
    pub median_ns: f64,
}

impl Calibration {
    /// Measures delays of `asked_ns` with the system's clock, in batches, for some
    /// 8,000 delays.
    pub fn measure(asked_ns: u64) -> Self {
        Spin::calibrated().measure(asked_ns)
    }

    /// The deviation of the median as a part of the request: 0.01 is 1 % too long.
    pub fn error(&self) -> f64 {
        self.median_ns / self.asked_ns as f64 - 1.0
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// An error that ends the calibration: half of what is guaranteed.
const GOOD_ENOUGH: f64 = 0.02;

/// A spinning wait on the time-stamp counter. It does not sleep or use PAUSE: both
/// take longer than the delays in question. Reading the counter is coarse, too (some
/// 10 ns in a virtual machine), so the last stretch of a wait is an empty loop.
struct Spin {
    ticks_per_ns: f64,
    /// Ticks between two readings of the counter.
    reading: f64,
    /// Rounds of the empty loop in a tick.
    rounds_per_tick: f64,
    /// Ticks that a wait takes beyond its request.
    overhead: f64,
}

impl Spin {
    /// The spin of the process, calibrated once: the best of up to ten calibrations, because
    /// the load of the machine may spoil one.
    fn calibrated() -> &'static Self {
        static SPIN: OnceLock<Spin> = OnceLock::new();
        SPIN.get_or_init(|| {
            let rate = ticks_per_ns();
            let mut best = Spin::calibrate(rate);
            let mut error = best.worst_error();
            for _ in 1..10 {
                if error <= GOOD_ENOUGH {
                    break;
                }
                let next = Spin::calibrate(rate);
                let next_error = next.worst_error();
                if next_error < error {
                    (best, error) = (next, next_error);
                }
            }
            best
        })
    }

    fn calibrate(ticks_per_ns: f64) -> Self {
        let mut spin = Spin {
            ticks_per_ns,
            reading: ticks_of(1000, || {
                ticks();
            }),
            rounds_per_tick: 10_000.0 / ticks_of(1, || empty_rounds(10_000)),
            overhead: 0.0,
        };
        spin.overhead = spin.measure_overhead();
        spin
    }

    /// The largest relative error of some usual delays.
    fn worst_error(&self) -> f64 {
        let error = |ns| self.measure(ns).error().abs();
        [100, 150, 300, 1000]
            .map(error)
            .into_iter()
            .fold(0.0, f64::max)
    }

    /// Measures delays, as [`Calibration::measure`] does.
    fn measure(&self, asked_ns: u64) -> Calibration {
        const BATCHES: usize = 251;
        const DELAYS: u32 = 32;
        let batch = || {
            let start = Instant::now();
            (0..DELAYS).for_each(|_| self.wait(asked_ns));
            start.elapsed().as_nanos() as f64 / f64::from(DELAYS)
        };
        let median_ns = median((0..BATCHES).map(|_| batch()).collect());
        Calibration {
            asked_ns,
            median_ns,
        }
    }

    /// Waits for `ns` nanoseconds from now; not at all if 0.
    fn wait(&self, ns: u64) {
        if ns > 0 {
            self.wait_from(ticks(), ns);
        }
    }

    /// Waits until `ns` nanoseconds after `start`. Never inlined, so that the overhead
    /// is the same for every caller.
    #[inline(never)]
    fn wait_from(&self, start: u64, ns: u64) {
        let target = ns as f64 * self.ticks_per_ns - self.overhead;
        let mut left = target;
        // The next reading would be too late: one for the reading itself, one in between.
        while left > 2.0 * self.reading {
            left = target - ticks().wrapping_sub(start) as f64;
        }
        // A negative number of rounds becomes 0.
        empty_rounds((left * self.rounds_per_tick) as u64);
    }

    /// The median over waits of many lengths, each repeated, as delays are used.
    fn measure_overhead(&self) -> f64 {
        let excess = |ns| ticks_of(32, || self.wait(ns)) - ns as f64 * self.ticks_per_ns;
        median((100..400).step_by(7).map(excess).collect())
    }
}

/// A loop that takes the same few cycles in every round and touches nothing.
fn empty_rounds(rounds: u64) {
    for round in 0..rounds {
        std::hint::black_box(round);
    }
}

/// The median number of ticks that `call` takes when it is made `times` in a row.
fn ticks_of(times: u64, call: impl Fn()) -> f64 {
    let once = || {
        let start = ticks();
        (0..times).for_each(|_| call());
        ticks().wrapping_sub(start) as f64 / times as f64
    };
    median((0..31).map(|_| once()).collect())
}

/// The rate of [`ticks`], by the system's clock.
fn ticks_per_ns() -> f64 {
    const SPAN: Duration = Duration::from_millis(4);
    let rate = || {
        let (clock, counter) = (Instant::now(), ticks());
        while clock.elapsed() < SPAN {}
        let counted = ticks().wrapping_sub(counter);
        counted as f64 / clock.elapsed().as_nanos() as f64
    };
    // The median, because any one span may be interrupted between two readings.
    median((0..9).map(|_| rate()).collect())
}

/// The time-stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has the counter, and Linux lets user code read it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds of the system's clock.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPmem;

    const TOLERANCE: f64 = 0.04;

    /// The machine may be busy, so the best of many measurements counts, each already a median.
    /// A wrong delay is wrong every time.
    fn best_error(mut measure: impl FnMut() -> f64) -> f64 {
        let mut best = f64::INFINITY;
        for _ in 0..50 {
            best = best.min(measure().abs());
            if best <= TOLERANCE {
                break;
            }
        }
        best
    }

    #[test]
    fn delays_are_within_4_percent_in_the_median() {
        // The clock's rate is calibrated anew each time, too: the first may have been
        // disturbed.
        let error = best_error(|| {
            let spin = Spin::calibrate(ticks_per_ns());
            spin.worst_error().max(spin.measure(10_000).error().abs())
        });
        assert!(error <= TOLERANCE, "off by {error:.3}");
    }

    /// Median nanoseconds of `call`, compared with `asked_ns`.
    fn error_of(call: impl Fn(), asked_ns: f64) -> f64 {
        best_error(|| {
            let time = || {
                let start = Instant::now();
                call();
                start.elapsed().as_nanos() as f64
            };
            median((0..101).map(|_| time()).collect()) / asked_ns - 1.0
        })
    }

    #[test]
    fn each_kind_of_call_takes_the_time_of_the_model() {
        let model = LatencyModel {
            flush_line_ns: 1000,
            stream_line_ns: 0,
            stream_bytes_per_s: 1_000_000_000,
            fence_ns: 20_000,
        };
        let pm = Latency::new(MemoryPmem::new(1 << 20), model);
        let flush = error_of(|| pm.flush(10, 20 * 64), 21_000.0);
        assert!(flush <= TOLERANCE, "flush: off by {flush:.3}");
        let fence = error_of(|| pm.fence(Rule::DurableBeforeReturn).unwrap(), 20_000.0);
        assert!(fence <= TOLERANCE, "fence: off by {fence:.3}");
        let bytes = vec![1; 65536];
        let stream = error_of(|| pm.store_nt(0, &bytes), 65_536.0);
        assert!(stream <= TOLERANCE, "bandwidth: off by {stream:.3}");
        let model = LatencyModel {
            stream_line_ns: 500,
            ..LatencyModel::default()
        };
        let pm = Latency::new(MemoryPmem::new(1 << 20), model);
        let lines = error_of(|| pm.store_nt(0, &[1; 6400]), 50_000.0);
        assert!(lines <= TOLERANCE, "streamed lines: off by {lines:.3}");
    }
}
