//! Texts about layers, generated from their list.

use super::{About, KINDS, Layers, Shape, Stack};
use std::fmt::Write;

/// The notation of stacks, in a paragraph.
pub const NOTATION: &str = "A stack reads from the front end down to the device, as in \
'uhfs > ext2 > journal(full, internal) > cache(256M, durable=flush) > disk'. Several devices \
below the cache stand in brackets: '... > cache > [disk, disk(PATH)]'. They count from 0; the \
file system is on number 0. A word with a space or one of >()[],=\" stands in quotes.";

/// A list of all layers: the description of each, the layers below it, and its options.
pub fn list() -> String {
    let mut text = String::from(
        "uhfs\n    turns system calls into steps of a format; stands on a format\n\
         FORMAT, such as ext2\n    turns steps into changes of blocks; stands on a store\n",
    );
    for kind in KINDS {
        let _ = writeln!(
            text,
            "{}\n    {}; {}",
            kind.name,
            kind.about,
            standing(kind)
        );
        let options = (kind.options)();
        let width = options.iter().map(|(form, _)| form.len()).max();
        for (form, help) in options {
            let width = width.unwrap_or_default();
            let _ = writeln!(text, "        {form:width$}  {help}");
        }
    }
    text
}

/// The interfaces that a layer provides and needs, with the names of layers that may be below.
fn standing(kind: &About) -> String {
    let gives = kind.shape.gives();
    let Some(takes) = kind.shape.takes(gives) else {
        return format!("{gives}, on nothing");
    };
    let names: Vec<&str> = KINDS
        .iter()
        .filter(|below| below.shape.can_provide(takes))
        .map(|k| k.name)
        .collect();
    let number = if kind.shape.can_stand_on_several() {
        " or several"
    } else {
        ""
    };
    let gives = match (kind.shape, gives) {
        (Shape::OnStore, _) => "the kind of store that it stands on".into(),
        (_, gives) => gives.to_string(),
    };
    format!("{gives}, on {takes}{number} ({})", names.join(", "))
}

impl Stack {
    /// Descriptions of the stack's layers from the top down, one on each line.
    pub fn explain(&self) -> String {
        let mut rows = vec![
            ("uhfs".into(), "system calls as steps of the format".into()),
            (self.format.clone(), "steps as changes of blocks".into()),
        ];
        rows_of(&self.layers, 0, &mut rows);
        let width = rows
            .iter()
            .map(|(layer, _): &(String, String)| layer.chars().count())
            .max();
        let width = width.unwrap_or_default();
        let mut text = format!("mode: {}\n", self.mode());
        for (layer, about) in rows {
            let _ = writeln!(text, "{layer:width$}  {about}");
        }
        text
    }
}

fn rows_of(layers: &Layers, depth: usize, rows: &mut Vec<(String, String)>) {
    for layer in &layers.list {
        let indent = "  ".repeat(depth);
        rows.push((format!("{indent}{layer}"), layer.about().about.into()));
    }
    for (number, below) in layers.below.iter().enumerate() {
        let indent = "  ".repeat(depth);
        rows.push((
            format!("{indent}[{number}]"),
            format!("device number {number}"),
        ));
        rows_of(below, depth + 1, rows);
    }
}
