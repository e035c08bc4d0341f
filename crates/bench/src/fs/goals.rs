//! The goals of soft updates, judged by the least time of one run's repeats:
//! others that use the machine only ever add to it.

use super::target::Target;
use super::{Backing, Report, Workload};

/// The most time on the disk, in that of the kernel's ext4, and where that is judged: if
/// flushes are so much of ext4's time.
const AGAINST_EXT4: f64 = 1.0;
const FLUSH_BOUND: [Workload; 2] = [Workload::Untar, Workload::Delete];
const FLUSHES_DOMINATE: f64 = 0.5;

/// The most time in memory, in that of the FUSE floor.
const AGAINST_FLOOR: f64 = 1.1;

/// The largest part of blocks that may be written twice.
const DOUBLE_WRITES: f64 = 0.02;

pub(super) fn judge(report: &Report) -> Vec<String> {
    let against_ext4 = FLUSH_BOUND.iter().filter_map(|w| against_ext4(report, *w));
    let against_floor = Workload::LAZY
        .iter()
        .filter_map(|w| against_floor(report, *w));
    let all = against_ext4.chain(against_floor);
    all.chain(double_writes(report)).collect()
}

fn verdict(figure: f64, limit: f64) -> &'static str {
    if figure <= limit { "met" } else { "missed" }
}

fn against_ext4(report: &Report, workload: Workload) -> Option<String> {
    let row = |target| report.row(target, Backing::Disk, workload);
    let (ours, ext4) = (row(Target::SOFT_UPDATES)?, row(Target::EXT4)?);
    let ratio = ours.least_seconds / ext4.least_seconds;
    let flushing = ext4.flushes? as f64 * report.disk_flush / ext4.seconds;
    let verdict = match flushing >= FLUSHES_DOMINATE {
        true => verdict(ratio, AGAINST_EXT4),
        false => "none",
    };
    Some(format!(
        "{verdict:6}  {} on the disk, soft updates / kernel ext4 ordered: {ratio:.2} (goal where \
         flushes dominate: at most {AGAINST_EXT4}; they are about {:.0} % of ext4's time)",
        workload.name(),
        flushing * 100.0
    ))
}

fn against_floor(report: &Report, workload: Workload) -> Option<String> {
    let ours = report.row(Target::SOFT_UPDATES, Backing::Memory, workload)?;
    let floor = report.row(Target::Floor, Backing::None, workload)?;
    let ratio = ours.least_seconds / floor.least_seconds;
    Some(format!(
        "{:6}  {} in memory, soft updates / FUSE floor: {ratio:.2} (goal: at most {AGAINST_FLOOR})",
        verdict(ratio, AGAINST_FLOOR),
        workload.name()
    ))
}

/// Judges the blocks written twice: the share in all workloads that do not sync, and the worst.
/// After each sync of a small write, the same inode is written again in any order.
fn double_writes(report: &Report) -> Option<String> {
    let name = Target::SOFT_UPDATES.to_string();
    let ours = report.rows.iter().filter(|row| row.target == name);
    let ours = ours.filter(|row| Workload::LAZY.contains(&row.workload));
    let parts = ours.filter_map(|row| Some((row.double_writes?, row.writes? as f64, row)));
    let parts: Vec<(f64, f64, &super::Row)> = parts.collect();
    let (worst, _, row) = parts.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let written: f64 = parts.iter().map(|(_, written, _)| written).sum();
    let twice: f64 = parts.iter().map(|(part, written, _)| part * written).sum();
    let part = twice / written.max(1.0);
    Some(format!(
        "{:6}  blocks written twice by soft updates without syncs: {:.2} % of {written} (goal: at most \
         {} %; most, {:.2} %, of the {} in {} {})",
        verdict(part, DOUBLE_WRITES),
        part * 100.0,
        DOUBLE_WRITES * 100.0,
        worst * 100.0,
        row.writes.unwrap_or_default(),
        row.workload.name(),
        row.backing.describe(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Row;

    fn row(target: Target, backing: Backing, workload: Workload, seconds: f64) -> Row {
        Row {
            target: target.to_string(),
            backing,
            workload,
            seconds: 1.25 * seconds,
            least_seconds: seconds,
            cpu_seconds: seconds,
            server_cpu_seconds: 0.0,
            kernel_cpu_seconds: 0.0,
            writes: Some(1000),
            requests: Some(10),
            flushes: Some(50),
            double_writes: Some(if workload == Workload::Delete {
                0.1
            } else {
                0.004
            }),
        }
    }

    #[test]
    fn goals_are_judged_on_their_device_and_workload() {
        use Backing::{Disk, Memory, None};
        use Workload::{Andrew, Delete, Untar};
        let (ours, ext4) = (Target::SOFT_UPDATES, Target::EXT4);
        let report = Report {
            rows: vec![
                row(ours, Disk, Untar, 1.0),
                row(ext4, Disk, Untar, 1.25),
                row(ours, Disk, Delete, 2.2),
                row(ext4, Disk, Delete, 2.1),
                row(ours, Memory, Andrew, 1.1),
                row(ext4, Memory, Andrew, 0.1),
                row(Target::Floor, None, Andrew, 1.0),
                Row {
                    double_writes: Some(0.5),
                    ..row(ours, Memory, Workload::SYNCED[0], 1.0)
                },
            ],
            notes: vec![],
            disk_flush: 0.02,
        };
        let goals = judge(&report);
        let starts = [
            "met     untar on the disk, soft updates / kernel ext4 ordered: 0.80",
            "none    delete on the disk, soft updates / kernel ext4 ordered: 1.05",
            "met     Andrew in memory, soft updates / FUSE floor: 1.10",
            "missed  blocks written twice by soft updates without syncs: 3.60 % of 3000 (goal: at most \
             2 %; most, 10.00 %, of the 1000 in delete on the disk)",
        ];
        assert_eq!(goals.len(), starts.len(), "{goals:?}");
        for (goal, start) in goals.iter().zip(starts) {
            assert!(goal.starts_with(start), "{goal}");
        }
        assert!(goals[0].contains("about 64 %"), "{}", goals[0]);
    }
}
