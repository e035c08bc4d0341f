//! Tables, as text for a terminal and as Markdown.

use comfy_table::{CellAlignment, Table, TableStyle, presets};

/// A table whose first column is text and whose other columns are figures.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    /// Column heads.
    pub heads: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

impl Grid {
    /// With the columns of another table of the same lines at the right.
    pub(crate) fn beside(mut self, other: Grid) -> Self {
        self.heads.extend(other.heads.into_iter().skip(1));
        for (row, more) in self.rows.iter_mut().zip(other.rows) {
            row.extend(more.into_iter().skip(1));
        }
        self
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        self.render(presets::NOTHING)
    }

    /// Formats the grid as a Markdown table.
    pub(crate) fn markdown(&self) -> String {
        self.render(presets::ASCII_MARKDOWN)
    }

    fn render(&self, style: TableStyle) -> String {
        let mut table = Table::new();
        table
            .load_style(style)
            .set_header(&self.heads)
            .add_rows(&self.rows);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }
}

/// A whole number with thousands apart, as the paper prints them; `-` for none.
pub(crate) fn count(n: Option<u64>) -> String {
    let Some(n) = n else { return "-".into() };
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A figure with one decimal below 100 and none above; `-` for none.
pub(crate) fn figure(x: Option<f64>) -> String {
    match x {
        None => "-".into(),
        Some(x) if x.abs() < 100.0 => format!("{x:.1}"),
        Some(x) => count(Some(x.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_separators() {
        assert_eq!(count(Some(0)), "0");
        assert_eq!(count(Some(999)), "999");
        assert_eq!(count(Some(1000)), "1,000");
        assert_eq!(count(Some(12_345_678)), "12,345,678");
        assert_eq!(count(None), "-");
        assert_eq!(figure(Some(2.25)), "2.2");
        assert_eq!(figure(Some(1234.5)), "1,235");
    }

    #[test]
    fn markdown_has_a_rule_and_every_cell() {
        let grid = Grid {
            heads: vec!["op".into(), "bytes".into()],
            rows: vec![vec!["create".into(), "92".into()]],
        };
        let lines: Vec<_> = grid.markdown().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("| op"));
        assert!(lines[1].starts_with("|--"));
        assert!(lines[2].contains("create") && lines[2].ends_with("92 |"));
    }
}
