//! Bar charts as SVG: groups of horizontal bars on a logarithmic axis.
//!
//! Written out by hand: rectangles and text are all there is, and the labels stay text
//! that a reader can select and search.

use crate::table;
use std::fmt::Write;

/// Okabe and Ito's colours, which the colour-blind can tell apart.
const COLOURS: [&str; 6] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
];

const LABEL_WIDTH: f64 = 190.0;
const PLOT_WIDTH: f64 = 560.0;
const VALUE_WIDTH: f64 = 90.0;
const BAR_HEIGHT: f64 = 11.0;
const GROUP_GAP: f64 = 8.0;
const HEAD_HEIGHT: f64 = 64.0;

/// A chart: what each series has in each group. Values are above zero; others have no bar.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    /// What is shown, with its unit.
    pub title: String,
    /// Names of the series, one colour each.
    pub series: Vec<String>,
    /// Name of each group, and a value for each series.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

impl Chart {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let group_height = self.series.len() as f64 * BAR_HEIGHT + GROUP_GAP;
        let height = HEAD_HEIGHT + self.groups.len() as f64 * group_height + 30.0;
        let width = LABEL_WIDTH + PLOT_WIDTH + VALUE_WIDTH;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, 8.0, 20.0, "start\" font-size=\"15", &self.title);
        self.legend(&mut svg);
        let axis = self.axis();
        axis.draw(&mut svg, height - 24.0);
        for (i, (name, values)) in self.groups.iter().enumerate() {
            let top = HEAD_HEIGHT + i as f64 * group_height;
            let middle = top + (group_height - GROUP_GAP) / 2.0 + 4.0;
            text(&mut svg, LABEL_WIDTH - 8.0, middle, "end", name);
            for (j, value) in values.iter().enumerate() {
                bar(
                    &mut svg,
                    &axis,
                    top + j as f64 * BAR_HEIGHT,
                    COLOURS[j % COLOURS.len()],
                    *value,
                );
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, svg: &mut String) {
        let mut x = LABEL_WIDTH;
        for (i, name) in self.series.iter().enumerate() {
            rect(svg, x, 34.0, 10.0, 10.0, COLOURS[i % COLOURS.len()]);
            text(svg, x + 14.0, 43.0, "start", name);
            x += 34.0 + 7.0 * name.chars().count() as f64;
        }
    }

    /// Whole decades around all values.
    fn axis(&self) -> Axis {
        let values = self
            .groups
            .iter()
            .flat_map(|(_, values)| values.iter().flatten());
        let logs = values.filter(|v| **v > 0.0).map(|v| v.log10());
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        match low.is_finite() {
            // Half a decade below the least value, so that its bar can be seen.
            true => Axis {
                low: (low - 0.5).floor(),
                high: high.ceil().max(low.floor() + 1.0),
            },
            false => Axis {
                low: 0.0,
                high: 1.0,
            },
        }
    }
}

/// A logarithmic axis, from one power of ten to another.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn x(&self, log: f64) -> f64 {
        LABEL_WIDTH + (log - self.low) / (self.high - self.low) * PLOT_WIDTH
    }

    fn draw(&self, svg: &mut String, bottom: f64) {
        for decade in self.low as i32..=self.high as i32 {
            let x = self.x(f64::from(decade));
            // Writing to a string cannot fail.
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom:.1}\" stroke=\"#ddd\"/>",
                HEAD_HEIGHT - 8.0
            );
            let label = match decade {
                0.. => table::count(Some(10u64.saturating_pow(decade as u32))),
                _ => format!("{}", 10f64.powi(decade)),
            };
            text(svg, x, bottom + 14.0, "middle", &label);
        }
    }
}

fn bar(svg: &mut String, axis: &Axis, top: f64, colour: &str, value: Option<f64>) {
    let Some(value) = value.filter(|v| *v > 0.0) else {
        return;
    };
    let end = axis.x(value.log10());
    rect(
        svg,
        LABEL_WIDTH,
        top,
        end - LABEL_WIDTH,
        BAR_HEIGHT - 1.0,
        colour,
    );
    let label = match value {
        v if v < 10.0 && v.fract() != 0.0 => format!("{v:.2}"),
        v if v.fract() == 0.0 => table::count(Some(v as u64)),
        v => table::figure(Some(v)),
    };
    text(
        svg,
        end + 4.0,
        top + BAR_HEIGHT - 2.0,
        "start\" font-size=\"9",
        &label,
    );
}

fn rect(svg: &mut String, x: f64, y: f64, width: f64, height: f64, colour: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{colour}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let content = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(groups: Vec<(String, Vec<Option<f64>>)>) -> Chart {
        Chart {
            title: "a < b & c".into(),
            series: vec!["ours".into(), "paper".into()],
            groups,
        }
    }

    #[test]
    fn one_bar_for_each_value_above_zero() {
        let groups = vec![
            ("create".into(), vec![Some(92.0), Some(0.0)]),
            ("read".into(), vec![Some(4.0), None]),
        ];
        let svg = chart(groups).svg();
        // Background, two keys of the legend, two bars.
        assert_eq!(svg.matches("<rect").count(), 5);
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn longer_bars_for_larger_values() {
        let axis = chart(vec![("x".into(), vec![Some(3.0), Some(30_000.0)])]).axis();
        assert!(axis.low <= 0.0 && axis.high == 5.0);
        assert!(axis.x(3f64.log10()) < axis.x(30_000f64.log10()));
        assert!(axis.x(5.0) <= LABEL_WIDTH + PLOT_WIDTH);
    }

    #[test]
    fn nothing_to_show_is_still_a_document() {
        let svg = chart(Vec::new()).svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
