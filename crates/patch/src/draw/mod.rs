//! Pictures of the patch graph: blocks as boxes with their patches inside. An arrow leads
//! from each patch to each of its befores, labelled with the rule.
//!
//! [`Drawing`] is a plain value; [`Drawing::dot`] and [`Drawing::svg`] render it.

mod layout;

use layout::{Layout, Rect};
use medium::Rule;
use serde::Serialize;
use std::fmt::Write;

/// A graph at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drawing {
    /// Blocks with changes that are not durable, by address.
    pub blocks: Vec<DrawnBlock>,
    /// Their patches, oldest first, then the empty ones.
    pub patches: Vec<DrawnPatch>,
    /// The order between patches.
    pub edges: Vec<DrawnEdge>,
}

/// A block with changes that are not durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrawnBlock {
    /// Number of its device in the configuration.
    pub device: u8,
    /// Number of the block on the device.
    pub lba: u64,
    /// Contents by the file system's format, such as `block bitmap of group 0`.
    pub name: Option<String>,
}

/// A patch that is not durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrawnPatch {
    /// Id of the patch, such as `p17.3`.
    pub id: String,
    /// Index of its block; an empty patch has none.
    pub block: Option<usize>,
    /// The kind of patch.
    pub kind: Kind,
    /// Offset of the changed range in the block, in bytes.
    pub at: u32,
    /// Length of the changed range, in bytes.
    pub len_bytes: u32,
    /// Length of the undo data, in bytes.
    pub undo_bytes: usize,
    /// Whether a write of it is under way.
    pub issued: bool,
}

/// The kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bytes, with undo data.
    Bytes,
    /// Bits of one word, with undo data.
    Bits,
    /// Without undo data.
    Hard,
    /// Without data.
    Empty,
    /// Without data, and held by its owner.
    Held,
}

/// `after` waits for `before`: indices of patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct DrawnEdge {
    pub after: usize,
    pub before: usize,
    /// The reason for the order.
    pub rule: Rule,
}

impl Drawing {
    /// Names the blocks for which `name` returns one.
    pub fn name_blocks(&mut self, name: impl Fn(u8, u64) -> Option<String>) {
        for block in &mut self.blocks {
            block.name = name(block.device, block.lba);
        }
    }

    /// The drawing as text for Graphviz.
    pub fn dot(&self) -> String {
        let mut out = String::from(
            "digraph patches {\n  rankdir=RL;\n  fontname=\"sans-serif\";\n  \
             node [shape=box, fontname=\"monospace\", fontsize=10];\n  \
             edge [fontname=\"sans-serif\", fontsize=9];\n",
        );
        for (number, block) in self.blocks.iter().enumerate() {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                out,
                "  subgraph cluster_{number} {{\n    label=\"{}\";",
                quoted(&block.title())
            );
            for (patch, text) in self.patches_of(Some(number)) {
                let _ = writeln!(out, "    n{patch} {};", text.dot());
            }
            out.push_str("  }\n");
        }
        for (patch, text) in self.patches_of(None) {
            let _ = writeln!(out, "  n{patch} {};", text.dot());
        }
        for edge in &self.edges {
            let _ = writeln!(
                out,
                "  n{} -> n{} [label=\"{}\"];",
                edge.after,
                edge.before,
                edge.rule.label()
            );
        }
        out.push_str("}\n");
        out
    }

    /// The drawing as an SVG image; befores are further left.
    pub fn svg(&self) -> String {
        let layout = Layout::of(self);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
             viewBox=\"0 0 {w} {h}\" font-family=\"monospace\" font-size=\"11\">\n{STYLE}",
            w = layout.width,
            h = layout.height
        );
        for (block, rect) in self.blocks.iter().zip(&layout.blocks) {
            rect.svg(&mut out, "block");
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                rect.x + 8,
                rect.y + 16,
                escaped(&block.title())
            );
        }
        for (patch, rect) in self.patches.iter().zip(&layout.patches) {
            rect.svg(&mut out, patch.class());
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                rect.x + 6,
                rect.y + 15,
                escaped(&patch.title())
            );
        }
        for edge in &self.edges {
            let (from, to) = (&layout.patches[edge.after], &layout.patches[edge.before]);
            arrow(&mut out, from, to, edge.rule);
        }
        out.push_str("</svg>\n");
        out
    }

    /// The patches of a block, or those without one.
    fn patches_of(&self, block: Option<usize>) -> impl Iterator<Item = (usize, &DrawnPatch)> {
        let numbered = self.patches.iter().enumerate();
        numbered.filter(move |(_, patch)| patch.block == block)
    }
}

impl DrawnBlock {
    fn title(&self) -> String {
        let place = match self.device {
            0 => format!("block {}", self.lba),
            device => format!("device {device}, block {}", self.lba),
        };
        match &self.name {
            Some(name) => format!("{place}: {name}"),
            None => place,
        }
    }
}

impl DrawnPatch {
    fn title(&self) -> String {
        let id = &self.id;
        let end = self.at + self.len_bytes;
        match self.kind {
            Kind::Empty => format!("{id} empty"),
            Kind::Held => format!("{id} held"),
            Kind::Hard => format!("{id} hard"),
            Kind::Bits => format!("{id} bits at {}", self.at),
            Kind::Bytes => format!("{id} {}..{end}, undo {}", self.at, self.undo_bytes),
        }
    }

    /// The attributes of the patch's node in Graphviz text.
    fn dot(&self) -> String {
        let style = match (self.kind, self.issued) {
            (_, true) => "style=filled, fillcolor=lightgrey",
            (Kind::Hard, _) => "penwidth=3",
            (Kind::Empty | Kind::Held, _) => "style=dashed",
            (Kind::Bytes | Kind::Bits, _) => "penwidth=1",
        };
        format!("[label=\"{}\", {style}]", quoted(&self.title()))
    }

    fn class(&self) -> &'static str {
        match (self.kind, self.issued) {
            (Kind::Hard, true) => "hard issued",
            (_, true) => "soft issued",
            (Kind::Hard, _) => "hard",
            (Kind::Empty | Kind::Held, _) => "empty",
            (Kind::Bytes | Kind::Bits, _) => "soft",
        }
    }
}

const STYLE: &str = "\
<style>
.block { fill: #f6f6f2; stroke: #555 }
.soft { fill: #fff; stroke: #333 }
.hard { fill: #fff; stroke: #111; stroke-width: 3 }
.empty { fill: none; stroke: #333; stroke-dasharray: 4 3 }
.issued { fill: #ddd }
.edge { fill: none; stroke: #36c }
.rule { fill: #36c; font-size: 10px; text-anchor: middle }
</style>
<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" \
markerHeight=\"8\" orient=\"auto-start-reverse\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#36c\"/>\
</marker></defs>
";

/// Draws an arrow from the left side of the after to the right side of the before; in one
/// column, around the right.
fn arrow(out: &mut String, from: &Rect, to: &Rect, rule: Rule) {
    let (y1, y2) = (from.middle(), to.middle());
    let (x1, x2, bend) = if from.x > to.x {
        let bend = ((from.x - to.x - to.w) / 2).max(20);
        (from.x, to.x + to.w, [-bend, bend])
    } else {
        (from.x + from.w, to.x + to.w, [40, 40])
    };
    let (c1, c2) = (x1 + bend[0], x2 + bend[1]);
    // The middle of the curve.
    let (x, y) = ((x1 + 3 * c1 + 3 * c2 + x2) / 8, i64::midpoint(y1, y2) - 3);
    let _ = writeln!(
        out,
        "<path class=\"edge\" marker-end=\"url(#tip)\" d=\"M{x1} {y1} C{c1} {y1} {c2} {y2} {x2} {y2}\"/>\n\
         <text class=\"rule\" x=\"{x}\" y=\"{y}\">{}</text>",
        rule.label()
    );
}

/// The text, escaped for the quotes of Graphviz.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// The text, escaped for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
