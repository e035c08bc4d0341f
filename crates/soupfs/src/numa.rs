//! The NUMA nodes of the machine.

use std::num::NonZeroUsize;

/// The number of NUMA nodes that are online; 1 if the kernel does not report it.
pub(crate) fn nodes() -> NonZeroUsize {
    let list = std::fs::read_to_string("/sys/devices/system/node/online");
    let count = list.ok().and_then(|list| count(list.trim()));
    count
        .and_then(NonZeroUsize::new)
        .unwrap_or(NonZeroUsize::MIN)
}

/// The numbers in a list of the kernel, such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_in_lists_of_the_kernel() {
        let counts = [
            ("0", Some(1)),
            ("0-1", Some(2)),
            ("0,2-4,9", Some(5)),
            ("", None),
            ("1-0", None),
            ("0-18446744073709551615", None),
            ("a", None),
        ];
        for (list, expected) in counts {
            assert_eq!(count(list), expected, "{list:?}");
        }
        assert!(nodes().get() > 0);
    }
}
