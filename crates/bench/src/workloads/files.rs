//! The files of a workload: names and sizes, and which of them exist.

use crate::error::{Error, Result};
use fastrand::Rng;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Percent of the files that exist at first.
const AT_FIRST: usize = 80;

/// The shape of the gamma distribution of sizes, as in Filebench's workloads.
const SHAPE: f64 = 1.5;

/// A file that exists or will.
pub(crate) struct Entry {
    pub path: CString,
    /// Its size, if it is written at once.
    pub bytes: usize,
}

/// Numbers of entries. A thread that has taken one uses it alone.
pub(crate) struct Pool(Mutex<Vec<usize>>);

/// Names that are in use and names that are free.
pub(crate) struct FileSet {
    pub entries: Vec<Entry>,
    pub present: Pool,
    pub absent: Pool,
}

impl Pool {
    /// Takes one at random.
    pub(crate) fn take(&self, random: &mut Rng) -> Result<usize> {
        let mut numbers = self.numbers();
        match numbers.len() {
            0 => Err(Error::Usage(
                "more threads than the workload has files for".into(),
            )),
            len => Ok(numbers.swap_remove(random.usize(..len))),
        }
    }

    pub(crate) fn put(&self, n: usize) {
        self.numbers().push(n);
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSet {
    /// Files of this mean size, `per_directory` of them in one directory, and as many directories
    /// in one above. `None`: all in one directory. The names of all directories begin with `prefix`.
    pub(crate) fn new(
        prefix: &str,
        files: usize,
        mean_bytes: usize,
        per_directory: Option<usize>,
    ) -> Self {
        let mut random = Rng::with_seed(files as u64);
        let entry = |n| Entry {
            path: path(prefix, n, per_directory),
            bytes: gamma(mean_bytes, &mut random),
        };
        let at_first = files * AT_FIRST / 100;
        Self {
            entries: (0..files).map(entry).collect(),
            present: Pool(Mutex::new((0..at_first).collect())),
            absent: Pool(Mutex::new((at_first..files).collect())),
        }
    }

    /// The directories, each after the one above it.
    pub(crate) fn directories(&self) -> Vec<CString> {
        let mut all = Vec::new();
        for entry in &self.entries {
            let path = entry.path.as_bytes();
            let ends = (0..path.len()).filter(|at| path[*at] == b'/');
            all.extend(ends.filter_map(|end| CString::new(&path[..end]).ok()));
        }
        all.sort();
        all.dedup();
        all
    }
}

fn path(prefix: &str, n: usize, per_directory: Option<usize>) -> CString {
    let path = match per_directory {
        None => format!("{prefix}d/{n:05}"),
        Some(width) => {
            let dir = n / width;
            let (above, dir, n) = (dir / width, dir % width, n % width);
            format!("{prefix}d{above:03}/d{dir:03}/{n:03}")
        }
    };
    CString::new(path).unwrap_or_default()
}

/// A size with a gamma distribution. A gamma variable of shape 1.5 is the sum of one of shape 1,
/// which is exponential, and one of shape 0.5, which is half the square of a normal one.
fn gamma(mean: usize, random: &mut Rng) -> usize {
    let mut exponential = || -(1.0 - random.f64()).ln();
    let (one, radius) = (exponential(), exponential());
    let normal = (random.f64() * std::f64::consts::TAU).cos();
    let size = mean as f64 / SHAPE * (one + radius * normal * normal);
    (size as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_variance_of_the_distribution() {
        let mut random = Rng::with_seed(1);
        let sizes: Vec<f64> = (0..100_000)
            .map(|_| gamma(100_000, &mut random) as f64)
            .collect();
        let count = sizes.len() as f64;
        let mean = sizes.iter().sum::<f64>() / count;
        let variance = sizes.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        assert!((mean / 1e5 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance / (1e10 / SHAPE) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn a_name_that_is_taken_is_not_taken_twice() {
        let set = FileSet::new("", 10, 1, None);
        let mut random = Rng::with_seed(1);
        let mut taken: Vec<_> = (0..8)
            .map(|_| set.present.take(&mut random).unwrap())
            .collect();
        assert!(set.present.take(&mut random).is_err());
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(*set.absent.numbers(), [8, 9]);
    }

    #[test]
    fn directories_come_after_those_above() {
        let all = FileSet::new("", 50, 1, Some(3)).directories();
        // 50 files, 17 directories of them, 6 directories of those.
        assert_eq!(all.len(), 17 + 6);
        assert_eq!(all[0].as_bytes(), b"d000");
        assert_eq!(all[1].as_bytes(), b"d000/d000");
        assert_eq!(FileSet::new("x", 50, 1, None).directories().len(), 1);
    }
}
