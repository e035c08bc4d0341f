//! The published figures that ours are compared with, of the Featherstitch/BPFS
//! dissertation: Figure 3.8 (section 3.6.4), bytes written per system call, and Figure
//! 2.10 (section 2.6.2), what the patch optimisations are worth.

/// The system call of a row, on a file system that was made for it and mounted anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Appends `len` bytes to a file of `size` bytes.
    Append {
        /// Length of the file before.
        size: u64,
        /// Bytes appended.
        len: u64,
    },
    /// Overwrites `len` bytes at `off` in a file of 1 MiB.
    Overwrite {
        /// The offset in bytes.
        off: u64,
        /// Bytes written.
        len: u64,
    },
    /// Makes a regular file.
    Create,
    /// Gives a file a second name.
    Link,
    /// Makes a symbolic link.
    Symlink,
    /// Makes a directory.
    Mkdir,
    /// Removes a file's only name.
    Unlink,
    /// Removes one of a file's two names.
    UnlinkHardLink,
    /// Removes a symbolic link.
    UnlinkSymlink,
    /// Removes an empty directory.
    Rmdir,
    /// Renames a file or a directory.
    Rename {
        /// Whether it is a directory.
        is_dir: bool,
        /// The target.
        to: RenameTo,
    },
    /// Changes owner and group.
    Chown,
    /// Changes the permission bits.
    Chmod,
    /// Reads 8 bytes of a file.
    Read,
    /// Lists a directory: one call for the entries, one that finds the end.
    Readdir,
}

/// The target of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameTo {
    /// A new name in the same directory.
    Intra,
    /// A name in the same directory that exists.
    Clobber,
    /// A new name in another directory.
    Inter,
}

/// One row: bytes written in each of the five builds.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name of the row.
    pub op: &'static str,
    /// The call.
    pub call: Call,
    /// Shadow paging to the root.
    pub sp: u64,
    /// With short-circuit commits.
    pub sc: u64,
    /// With in-place appends or independent time updates: the smaller of the two builds.
    pub aort: u64,
    /// With both.
    pub aandt: u64,
    /// With height switch, in-place creation and derived link counts.
    pub other: u64,
}

const fn row(op: &'static str, call: Call, bytes: [u64; 5]) -> Row {
    let [sp, sc, aort, aandt, other] = bytes;
    Row {
        op,
        call,
        sp,
        sc,
        aort,
        aandt,
        other,
    }
}

const fn append(size: u64, len: u64) -> Call {
    Call::Append { size, len }
}

const fn over(off: u64, len: u64) -> Call {
    Call::Overwrite { off, len }
}

const fn rename(is_dir: bool, to: RenameTo) -> Call {
    Call::Rename { is_dir, to }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Figure 3.8.
#[rustfmt::skip] // a table reads best as one
pub const FIGURE_3_8: [Row; 32] = {
    use Call::*;
    use RenameTo::*;
    [
        row("append 8 B to 0 B", append(0, 8), [20524, 4112, 4116, 28, 28]),
        row("append 4 KiB to 0 B", append(0, 4 * KIB), [24612, 8200, 8204, 4116, 4116]),
        row("append 128 KiB to 0 B", append(0, 128 * KIB), [151852, 135432, 135436, 131348, 131356]),
        row("append 8 B to 8 B", append(8, 8), [20532, 8200, 4112, 20, 20]),
        row("append 4 KiB to 8 KiB", append(8 * KIB, 4 * KIB), [28716, 12296, 8208, 4116, 4116]),
        row("append 4 KiB to 2 MiB", append(2 * MIB, 4 * KIB), [24636, 8224, 8224, 8228, 4140]),
        row("append 128 KiB to 2 MiB", append(2 * MIB, 128 * KIB), [151860, 135448, 135448, 135452, 131364]),
        row("overwrite 8 B at 0 B", over(0, 8), [28708, 12296, 12, 12, 12]),
        row("overwrite 8 B at 4092 B", over(4092, 8), [32812, 16392, 12300, 12300, 12316]),
        row("overwrite 16 B at 0 B", over(0, 16), [28708, 12296, 4108, 4108, 4108]),
        row("overwrite 4 KiB at 0 B", over(0, 4 * KIB), [28708, 12296, 4108, 4108, 4108]),
        row("overwrite 4 KiB at 1 B", over(1, 4 * KIB), [32812, 16392, 12300, 12300, 12316]),
        row("overwrite 124 KiB at 1 B", over(1, 124 * KIB), [155932, 139272, 135180, 135180, 135436]),
        row("overwrite 128 KiB at 0 B", over(0, 128 * KIB), [155932, 139272, 135180, 135180, 135436]),
        row("create", Create, [24692, 8200, 8200, 8208, 92]),
        row("link", Link, [24640, 8200, 8200, 8212, 40]),
        row("symlink", Symlink, [24694, 8202, 8202, 8210, 94]),
        row("mkdir", Mkdir, [24698, 8202, 8202, 8210, 98]),
        row("unlink file", Unlink, [24616, 8200, 16, 16, 16]),
        row("unlink hard link", UnlinkHardLink, [24624, 8200, 8200, 8212, 24]),
        row("unlink symlink", UnlinkSymlink, [24616, 8200, 16, 16, 16]),
        row("rmdir", Rmdir, [24620, 8200, 8200, 8208, 20]),
        row("rename file", rename(false, Intra), [24640, 8200, 4112, 4112, 4144]),
        row("rename file, clobber", rename(false, Clobber), [24624, 8200, 4112, 4112, 4128]),
        row("rename file, inter-dir", rename(false, Inter), [28752, 12296, 12296, 12312, 12360]),
        row("rename dir", rename(true, Intra), [24644, 8200, 4116, 4116, 4148]),
        row("rename dir, clobber", rename(true, Clobber), [24632, 8200, 8200, 8212, 4136]),
        row("rename dir, inter-dir", rename(true, Inter), [28764, 12296, 12296, 12316, 12372]),
        row("chown", Chown, [20508, 4104, 12, 12, 12]),
        row("chmod", Chmod, [20504, 4104, 8, 8, 8]),
        row("read", Read, [20500, 4, 4, 4, 4]),
        row("readdir (2 calls)", Readdir, [41000, 8, 8, 8, 8]),
    ]
};

/// One row of Figure 2.10: a workload with some of the optimisations.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// `untar`, `delete`, `postmark` or `andrew`.
    pub workload: &'static str,
    /// `none`, `hard`, `overlap` or `both`.
    pub optimisations: &'static str,
    /// Patches made.
    pub patches: u64,
    /// Undo data allocated, in MiB.
    pub undo_mib: f64,
    /// System time, in seconds.
    pub seconds: f64,
}

const fn effect(names: [&'static str; 2], patches: u64, undo_mib: f64, seconds: f64) -> Effect {
    let [workload, optimisations] = names;
    Effect {
        workload,
        optimisations,
        patches,
        undo_mib,
        seconds,
    }
}

/// Figure 2.10.
#[rustfmt::skip] // a table reads best as one
pub const FIGURE_2_10: [Effect; 16] = [
    effect(["untar", "none"], 619_740, 459.41, 3.33),
    effect(["untar", "hard"], 446_002, 205.94, 2.73),
    effect(["untar", "overlap"], 111_486, 254.02, 1.87),
    effect(["untar", "both"], 68_887, 0.39, 1.83),
    effect(["delete", "none"], 299_089, 1.43, 0.81),
    effect(["delete", "hard"], 41_113, 0.91, 0.24),
    effect(["delete", "overlap"], 54_665, 0.93, 0.31),
    effect(["delete", "both"], 1_800, 0.00, 0.15),
    effect(["postmark", "none"], 4_590_571, 3_175.28, 23.64),
    effect(["postmark", "hard"], 2_544_198, 1_582.94, 18.62),
    effect(["postmark", "overlap"], 550_442, 1_590.27, 12.88),
    effect(["postmark", "both"], 675_308, 0.11, 11.05),
    effect(["andrew", "none"], 70_932, 64.09, 4.34),
    effect(["andrew", "hard"], 50_769, 36.18, 4.32),
    effect(["andrew", "overlap"], 12_449, 27.90, 4.20),
    effect(["andrew", "both"], 10_418, 0.04, 4.07),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Column sums, taken by hand from the printed figure: a wrong digit shows.
    #[test]
    fn figure_is_complete() {
        let names: HashSet<_> = FIGURE_3_8.iter().map(|r| r.op).collect();
        assert_eq!(names.len(), 32);
        let sum = |pick: fn(&Row) -> u64| FIGURE_3_8.iter().map(pick).sum::<u64>();
        assert_eq!(
            [
                sum(|r| r.sp),
                sum(|r| r.sc),
                sum(|r| r.aort),
                sum(|r| r.aandt),
                sum(|r| r.other)
            ],
            SUMS
        );
    }

    const SUMS: [u64; 5] = [1_342_112, 791_344, 701_336, 681_000, 620_592];

    /// The prose under the figure: what each optimisation group must not make worse by
    /// more than 256 bytes.
    #[test]
    fn columns_shrink_as_the_dissertation_states() {
        for r in FIGURE_3_8 {
            assert!(r.sc < r.sp, "{}", r.op);
            for (next, last) in [(r.aort, r.sc), (r.aandt, r.aort), (r.other, r.aandt)] {
                assert!(next <= last + 256, "{}", r.op);
            }
        }
    }

    /// The prose under the figure: both together save 99 % of the undo data, 85 to 99 % of
    /// the patches and up to 81 % of the time.
    #[test]
    fn optimisations_save_as_the_dissertation_states() {
        let at = |workload, which| {
            let mut rows = FIGURE_2_10.iter();
            let found = rows.find(|r| (r.workload, r.optimisations) == (workload, which));
            found.unwrap_or_else(|| panic!("{workload}, {which}"))
        };
        let mut most_time: f64 = 0.0;
        for workload in ["untar", "delete", "postmark", "andrew"] {
            let (none, both) = (at(workload, "none"), at(workload, "both"));
            for middle in ["hard", "overlap"].map(|which| at(workload, which)) {
                assert!(middle.undo_mib < none.undo_mib && middle.undo_mib > both.undo_mib);
                assert!(middle.seconds < none.seconds && middle.patches < none.patches);
            }
            assert!(both.undo_mib <= 0.01 * none.undo_mib, "{workload}");
            let patches = 1.0 - both.patches as f64 / none.patches as f64;
            assert!((0.85..0.995).contains(&patches), "{workload}: {patches}");
            most_time = most_time.max(1.0 - both.seconds / none.seconds);
        }
        assert_eq!((most_time * 100.0).round(), 81.0);
    }
}
