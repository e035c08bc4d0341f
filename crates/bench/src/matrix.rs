//! Figures of several targets in several workloads: what tables and charts are made of.

use crate::chart::Chart;
use crate::table::Grid;

/// One figure, or several that belong together.
pub(crate) trait Cell {
    /// The target of the measurement.
    fn column(&self) -> &str;
    /// The workload of the target.
    fn line(&self) -> &str;
}

/// Cells by workload and target, both in the order of their first appearance.
pub(crate) struct Matrix<'r, C> {
    cells: Vec<&'r C>,
    /// The targets: columns, or the series of a chart.
    pub targets: Vec<&'r str>,
    /// The workloads: lines, or the groups of a chart.
    pub workloads: Vec<&'r str>,
}

impl<'r, C: Cell> Matrix<'r, C> {
    /// Makes a matrix of these cells.
    pub(crate) fn of(cells: impl IntoIterator<Item = &'r C>) -> Self {
        let mut matrix = Self {
            cells: cells.into_iter().collect(),
            targets: Vec::new(),
            workloads: Vec::new(),
        };
        for cell in &matrix.cells {
            if !matrix.targets.contains(&cell.column()) {
                matrix.targets.push(cell.column());
            }
            if !matrix.workloads.contains(&cell.line()) {
                matrix.workloads.push(cell.line());
            }
        }
        matrix
    }

    /// Returns a cell, if it was measured.
    pub(crate) fn at(&self, target: &str, workload: &str) -> Option<&'r C> {
        let mut cells = self.cells.iter().copied();
        cells.find(|c| c.column() == target && c.line() == workload)
    }

    /// A line for each workload; for each target the columns that `heads` names and
    /// `texts` fills.
    pub(crate) fn grid(
        &self,
        corner: &str,
        heads: impl Fn(&str) -> Vec<String>,
        texts: impl Fn(&str, Option<&C>) -> Vec<String>,
    ) -> Grid {
        let line = |first: &str, cells: &dyn Fn(&str) -> Vec<String>| {
            let mut line = vec![first.to_owned()];
            line.extend(self.targets.iter().flat_map(|target| cells(target)));
            line
        };
        let row =
            |workload: &&str| line(workload, &|target| texts(target, self.at(target, workload)));
        Grid {
            heads: line(corner, &heads),
            rows: self.workloads.iter().map(row).collect(),
        }
    }

    /// A group of bars for each workload, one bar for each target.
    pub(crate) fn chart(&self, title: String, value: impl Fn(&C) -> f64) -> Chart {
        let group = |workload: &&str| {
            let bars = self
                .targets
                .iter()
                .map(|t| self.at(t, workload).map(&value));
            ((*workload).to_owned(), bars.collect())
        };
        Chart {
            title,
            series: self.targets.iter().map(|t| (*t).to_owned()).collect(),
            groups: self.workloads.iter().map(group).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Cell for (&str, &str, f64) {
        fn column(&self) -> &str {
            self.0
        }
        fn line(&self) -> &str {
            self.1
        }
    }

    #[test]
    fn lines_and_columns_keep_their_order_and_gaps_stay_gaps() {
        let cells = [("b", "y", 1.0), ("a", "y", 2.0), ("b", "x", 3.0)];
        let matrix = Matrix::of(&cells);
        let text = |_: &str, c: Option<&(&str, &str, f64)>| {
            vec![c.map_or("-".into(), |c| format!("{}", c.2))]
        };
        let grid = matrix.grid("op", |target| vec![target.into()], text);
        assert_eq!(grid.heads, ["op", "b", "a"]);
        assert_eq!(grid.rows, [["y", "1", "2"], ["x", "3", "-"]]);
        let chart = matrix.chart("t".into(), |c| c.2);
        assert_eq!(chart.series, ["b", "a"]);
        let bars = vec![Some(3.0), None];
        assert_eq!(chart.groups[1], ("x".to_owned(), bars));
    }
}
