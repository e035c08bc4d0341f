//! Bar charts as SVG: groups of horizontal bars on a logarithmic axis.

use crate::table;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Okabe and Ito's colours, which differ for the colour-blind.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
];

/// Lines of the axis' decades.
const GREY: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

// Heights of texts, of which `plotters` makes font sizes of four fifths.
const FONT: &str = "sans-serif";
const TITLE: u32 = 19;
const LABEL: u32 = 14;
const FIGURE: u32 = 11;

// In pixels. The labels of values stand to the right of the plot if a bar fills it.
const WIDTH: u32 = 840;
const LABEL_WIDTH: u32 = 190;
const VALUE_WIDTH: u32 = 90;
const HEAD_HEIGHT: u32 = 56;
const AXIS_HEIGHT: u32 = 24;
const BAR_HEIGHT: u32 = 11;

/// A chart: what each series has in each group. Values are above zero; others have no bar.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    /// The quantity shown, with its unit.
    pub title: String,
    /// Names of the series, one colour each.
    pub series: Vec<String>,
    /// Name of each group, and a value for each series.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
type Drawn<'s> = Result<(), DrawingAreaErrorKind<<SVGBackend<'s> as DrawingBackend>::ErrorType>>;

impl Chart {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let height = HEAD_HEIGHT + self.rows() as u32 * BAR_HEIGHT + AXIS_HEIGHT;
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let (head, plot) = root.split_vertically(HEAD_HEIGHT);
        let drawn = root
            .fill(&WHITE)
            .and_then(|()| self.draw_head(&head))
            .and_then(|()| self.draw_plot(&plot))
            .and_then(|()| root.present());
        drawn.expect("a string takes all that is drawn");
        drop((root, head, plot));
        svg
    }

    /// One row for each series of each group, and one between groups.
    fn rows(&self) -> usize {
        (self.groups.len() * (self.series.len() + 1)).max(1)
    }

    fn draw_head<'s>(&self, head: &Area<'s>) -> Drawn<'s> {
        head.draw(&Text::new(self.title.as_str(), (8, 6), (FONT, TITLE)))?;
        let mut x = LABEL_WIDTH as i32;
        for (name, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let key = [(x, 34), (x + 10, 44)];
            head.draw(&Rectangle::new(key, colour.filled()))?;
            head.draw(&Text::new(name.as_str(), (x + 14, 32), (FONT, LABEL)))?;
            x += 34 + 7 * name.chars().count() as i32;
        }
        Ok(())
    }

    fn draw_plot<'s>(&self, plot: &Area<'s>) -> Drawn<'s> {
        let (low, high) = self.decades();
        let (low, high) = (10f64.powi(low), 10f64.powi(high));
        // Rows count downward.
        let rows = self.rows() as f64;
        let mut chart = ChartBuilder::on(plot)
            .margin_right(VALUE_WIDTH)
            .x_label_area_size(AXIS_HEIGHT)
            .y_label_area_size(LABEL_WIDTH)
            .build_cartesian_2d((low..high).log_scale(), rows..0.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().max_light_lines(0);
        mesh.bold_line_style(GREY).axis_style(GREY);
        mesh.x_label_style((FONT, FIGURE));
        mesh.x_label_formatter(&|value| decade_label(*value))
            .draw()?;
        let place = Pos::new(HPos::Right, VPos::Center);
        let names = TextStyle::from((FONT, LABEL).into_font()).pos(place);
        let place = Pos::new(HPos::Left, VPos::Center);
        let figures = TextStyle::from((FONT, FIGURE).into_font()).pos(place);
        for (row, (name, values)) in self.groups.iter().enumerate() {
            let top = (row * (self.series.len() + 1)) as f64;
            let middle = chart.backend_coord(&(low, top + self.series.len() as f64 / 2.0));
            let left = plot.get_base_pixel();
            let at = (middle.0 - left.0 - 8, middle.1 - left.1);
            plot.draw(&Text::new(name.as_str(), at, &names))?;
            for (n, (value, colour)) in values.iter().zip(COLOURS.iter().cycle()).enumerate() {
                let Some(value) = value.filter(|value| *value > 0.0) else {
                    continue;
                };
                let (from, to) = (top + n as f64, top + n as f64 + 0.9);
                let bar = Rectangle::new([(low, from), (value, to)], colour.filled());
                let label = EmptyElement::at((value, (from + to) / 2.0))
                    + Text::new(value_label(value), (4, 0), &figures);
                chart.draw_series([bar])?;
                chart.draw_series([label])?;
            }
        }
        Ok(())
    }

    /// The powers of ten around all values: the first is at least half a decade below the
    /// least value, so that its bar can be seen.
    fn decades(&self) -> (i32, i32) {
        let values = self.groups.iter().flat_map(|(_, values)| values);
        let logs = values.flatten().filter(|v| **v > 0.0).map(|v| v.log10());
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        match low.is_finite() {
            true => {
                let first = (low - 0.5).floor();
                let last = high.ceil().max(low.floor() + 1.0);
                (first as i32, last as i32)
            }
            false => (0, 1),
        }
    }
}

/// The label of a power of ten.
fn decade_label(value: f64) -> String {
    match value {
        v if v >= 0.9 => table::count(Some(v.round() as u64)),
        v => format!("{}", 10f64.powi(v.log10().round() as i32)),
    }
}

fn value_label(value: f64) -> String {
    match value {
        v if v < 10.0 && v.fract() != 0.0 => format!("{v:.2}"),
        v if v.fract() == 0.0 => table::count(Some(v as u64)),
        v => table::figure(Some(v)),
    }
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

    /// The widths of the rectangles in this colour.
    fn widths(svg: &str, colour: &str) -> Vec<u32> {
        let lines = svg.lines().filter(|line| line.starts_with("<rect"));
        let lines = lines.filter(|line| line.to_lowercase().contains(colour));
        let width = |line: &str| {
            let (_, rest) = line.split_once("width=\"").unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        lines.map(width).collect()
    }

    #[test]
    fn one_bar_for_each_value_above_zero() {
        let groups = vec![
            ("create".into(), vec![Some(92.0), Some(0.0)]),
            ("read".into(), vec![Some(4.0), None]),
        ];
        let svg = chart(groups).svg();
        // A key of the legend each, and the bars.
        assert_eq!(widths(&svg, "#0072b2").len(), 3);
        assert_eq!(widths(&svg, "#e69f00").len(), 1);
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
        for text in ["create", "read", "ours", "paper", "92", "4", "10"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn longer_bars_for_larger_values() {
        let one = |value| vec![Some(value)];
        let groups = vec![("x".into(), one(3.0)), ("y".into(), one(30_000.0))];
        let chart = chart(groups);
        assert_eq!(chart.decades(), (-1, 5));
        let [_, short, long] = widths(&chart.svg(), "#0072b2")[..] else {
            panic!("a key and two bars");
        };
        assert!(0 < short && short < long && long <= WIDTH - LABEL_WIDTH - VALUE_WIDTH);
    }

    #[test]
    fn nothing_to_show_is_still_a_document() {
        let svg = chart(Vec::new()).svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN"));
    }
}
