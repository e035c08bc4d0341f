//! The report as text, as tables and as a chart.

use super::{OURS, Part, Report, Row, Way};
use crate::chart::Chart;
use crate::matrix::Matrix;
use crate::table::{Grid, count, figure};
use std::fmt;

/// Notes for readers of the tables.
pub(crate) const NOTES: &str = "\
Microseconds are medians. mnemosyne: a hash table of a fixed number of buckets, values go \
through the log; in place: an entry is stored in its fresh node and fenced, and the log has \
the rest; HashMap, B+ tree: the library's. Goals are judged by the first. Slower memory: that \
many nanoseconds more for each flushed line and each fence, and 4 GB/s for streamed bytes; \
other stores have no delays there, since theirs would have to be put into what they flush \
with. Berkeley DB has \
none in the comparison either, which favours it.";

fn heads(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Formats microseconds with three digits.
fn us(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us => figure(Some(us)),
    }
}

impl Report {
    /// Returns the tables of all measured parts, each with its title.
    pub(crate) fn sections(&self) -> Vec<(String, Grid)> {
        let mut sections = self.store_sections();
        let mut add = |part: Part, title: &str, grid: Grid| {
            if !grid.rows.is_empty() {
                sections.push((format!("{title} ({part})"), grid));
            }
        };
        add(Part::Commits, "Nanoseconds of a commit", self.commit_grid());
        add(Part::Logs, "Logs, MB/s", self.log_grid());
        add(
            Part::Truncation,
            "Microseconds of an insert, by who truncates",
            self.truncation_grid(),
        );
        add(
            Part::Latency,
            "Microseconds on slower memory",
            self.latency_grid(),
        );
        add(
            Part::Trees,
            "A tree that is changed, and one that is saved",
            self.tree_grid(),
        );
        add(Part::Restart, "Restart", self.restart_grid());
        add(
            Part::Paging,
            "64 bytes anywhere in a region with a pool",
            self.paging_grid(),
        );
        sections
    }

    fn store_sections(&self) -> Vec<(String, Grid)> {
        let kinds = [
            ("insert", "Microseconds of an insert"),
            ("delete", "Microseconds of a delete"),
            ("update", "Thousands of inserts and deletes per second"),
        ];
        let section = |(op, title): (&str, &str)| {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.op == op).collect();
            let text = |row: &Row| match op {
                "update" => figure(Some(row.ops_per_second / 1e3)),
                _ => us(row.us_median),
            };
            let grid = store_grid(&rows, text);
            (!rows.is_empty()).then(|| (format!("{title} ({})", Part::Hash), grid))
        };
        kinds.into_iter().filter_map(section).collect()
    }

    fn commit_grid(&self) -> Grid {
        Grid {
            heads: heads(&["", "median ns", "mean ns"]),
            rows: self
                .commits
                .iter()
                .map(|row| {
                    vec![
                        row.what.into(),
                        figure(Some(row.ns_median)),
                        figure(Some(row.ns_mean)),
                    ]
                })
                .collect(),
        }
    }

    fn log_grid(&self) -> Grid {
        Grid {
            heads: heads(&["record bytes", "two fences", "torn bits", "ratio"]),
            rows: self
                .logs
                .iter()
                .map(|row| {
                    vec![
                        row.record_bytes.to_string(),
                        figure(Some(row.base_mb_per_second)),
                        figure(Some(row.torn_bit_mb_per_second)),
                        format!("{:.2}", row.ratio()),
                    ]
                })
                .collect(),
        }
    }

    /// Makes a table with a line for each idle share and size, and the median, mean and tail of
    /// each way.
    fn truncation_grid(&self) -> Grid {
        let mut first = vec!["idle %, value bytes".to_owned()];
        for way in Way::ALL {
            first.extend([way.name().to_owned(), "mean".into(), "p99".into()]);
        }
        let firsts = self
            .truncation
            .iter()
            .filter(|row| row.truncation == Way::ALL[0]);
        let line = |head: &super::IdleRow| {
            let mut line = vec![format!("{}, {}", head.idle_percent, head.value_bytes)];
            let same = |row: &&super::IdleRow| {
                row.idle_percent == head.idle_percent && row.value_bytes == head.value_bytes
            };
            for row in self.truncation.iter().filter(same) {
                line.extend([us(row.us_median), us(row.us_mean), us(row.us_p99)]);
            }
            line
        };
        Grid {
            heads: first,
            rows: firsts.map(line).collect(),
        }
    }

    /// Makes a table with a line for each size and call: our time at each latency, and the time of
    /// Berkeley DB without extra latency.
    fn latency_grid(&self) -> Grid {
        let (ours, _) = OURS[0];
        let mut latencies: Vec<u64> = self.latency.iter().map(|row| row.latency_ns).collect();
        latencies.dedup();
        let mut first = vec!["value bytes, call".to_owned()];
        for latency in &latencies {
            first.extend([format!("{latency} ns"), "in place".into()]);
        }
        first.push(format!("{}, no delays", super::peers::BERKELEY_RELAXED));
        let lines = self
            .latency
            .iter()
            .filter(|row| row.latency_ns == latencies[0] && row.store == ours);
        let line = |head: &super::SlowRow| {
            let mut line = vec![format!("{}, {}", head.value_bytes, head.op)];
            let same =
                |row: &&super::SlowRow| row.value_bytes == head.value_bytes && row.op == head.op;
            line.extend(
                self.latency
                    .iter()
                    .filter(same)
                    .map(|row| us(row.us_median)),
            );
            let peer = self.rows.iter().find(|row| {
                row.store == super::peers::BERKELEY_RELAXED
                    && row.op == head.op
                    && row.value_bytes == head.value_bytes
                    && row.threads == 1
            });
            line.push(peer.map_or("-".into(), |row| us(row.us_median)));
            line
        };
        Grid {
            rows: lines.map(line).collect(),
            heads: first,
        }
    }

    fn tree_grid(&self) -> Grid {
        let names = [
            "nodes",
            "insert us",
            "save us",
            "inserts per save",
            "save on disk us",
        ];
        Grid {
            heads: heads(&names),
            rows: self
                .trees
                .iter()
                .map(|row| {
                    vec![
                        count(Some(row.nodes)),
                        us(row.insert_us),
                        us(row.save_us),
                        figure(Some(row.inserts_per_save())),
                        us(row.disk_save_us),
                    ]
                })
                .collect(),
        }
    }

    fn restart_grid(&self) -> Grid {
        let mut rows = Vec::new();
        if let Some(restart) = &self.restart {
            let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
            rows.push(vec![
                format!(
                    "recover {} of logs, {} transactions",
                    mib(restart.record_bytes),
                    restart.transactions
                ),
                format!("{:.1}", restart.recovery_seconds * 1e3),
                format!("{:.2}", restart.recovery_seconds_per_gib()),
            ]);
            rows.push(vec![
                format!(
                    "open a heap of {}, {} blocks",
                    mib(restart.heap_bytes),
                    restart.heap_blocks
                ),
                format!("{:.1}", restart.open_seconds * 1e3),
                String::new(),
            ]);
            rows.push(vec![
                "and scan it, in the first allocation".into(),
                format!("{:.1}", restart.scan_seconds * 1e3),
                format!("{:.2}", restart.restart_seconds_per_gib()),
            ]);
        }
        Grid {
            heads: heads(&["", "ms", "s per GiB"]),
            rows,
        }
    }

    fn paging_grid(&self) -> Grid {
        let names = [
            "call, working set",
            "mean us",
            "median us",
            "p99 us",
            "pages read per call",
            "pages written",
        ];
        let line = |row: &super::PagingRow| {
            vec![
                format!("{}, {} pools", row.op, row.pools),
                us(row.us_mean),
                us(row.us_median),
                us(row.us_p99),
                format!("{:.3}", row.loaded_per_op),
                format!("{:.3}", row.written_per_op),
            ]
        };
        Grid {
            heads: heads(&names),
            rows: self.paging.iter().map(line).collect(),
        }
    }

    /// Makes a chart of the inserts of each store by size, by one thread.
    pub(crate) fn chart(&self) -> Chart {
        let rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| row.op == "insert" && row.threads == 1)
            .collect();
        let title = "Microseconds of an insert by one thread, median (less is better)".into();
        Matrix::of(rows).chart(title, |row| row.us_median)
    }
}

/// Makes a table with a line for each store and a column for each size and number of threads.
fn store_grid(rows: &[&Row], text: impl Fn(&Row) -> String) -> Grid {
    Matrix::of(rows.iter().copied()).grid(
        "store",
        |column| vec![column.to_owned()],
        |_, row| vec![row.map_or("-".into(), &text)],
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}.", self.machine)?;
        self.notes
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "{NOTES}")?;
        for (title, grid) in self.sections() {
            writeln!(f, "\n{title}\n{}", grid.text())?;
        }
        if !self.missing.is_empty() {
            writeln!(f)?;
        }
        self.missing
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))?;
        let goals = self.goals();
        if !goals.is_empty() {
            writeln!(f, "\nThis run against the goals:")?;
        }
        goals.iter().try_for_each(|goal| writeln!(f, "{goal}"))
    }
}
