//! The layout of a drawing: blocks in columns, befores further left, and patches below each
//! other in their blocks.

use super::Drawing;
use std::collections::HashSet;
use std::fmt::Write;

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rect {
    pub x: i64,
    pub y: i64,
    pub w: i64,
    pub h: i64,
}

impl Rect {
    pub(super) fn middle(&self) -> i64 {
        self.y + self.h / 2
    }

    pub(super) fn svg(&self, out: &mut String, class: &str) {
        let Self { x, y, w, h } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"3\"/>"
        );
    }
}

/// The positions of all blocks and patches.
#[derive(Debug)]
pub(super) struct Layout {
    pub width: i64,
    pub height: i64,
    pub blocks: Vec<Rect>,
    pub patches: Vec<Rect>,
}

const MARGIN: i64 = 20;
const GAP_X: i64 = 110;
const GAP_Y: i64 = 18;
const TITLE: i64 = 22;
const PATCH: i64 = 22;
const PATCH_GAP: i64 = 8;
/// Width of a character.
const CHAR: i64 = 7;

impl Layout {
    /// The layout of a drawing. A block is a box of its patches; an empty patch is a box of
    /// its own.
    pub(super) fn of(drawing: &Drawing) -> Self {
        let boxes = boxes(drawing);
        let columns = columns(drawing, &boxes);
        let mut layout = Self {
            width: 2 * MARGIN,
            height: 2 * MARGIN,
            blocks: vec![Rect::default(); drawing.blocks.len()],
            patches: vec![Rect::default(); drawing.patches.len()],
        };
        let last = columns.iter().max().copied().unwrap_or(0);
        let mut x = MARGIN;
        for column in 0..=last {
            let inside: Vec<&Piece> = columns
                .iter()
                .zip(&boxes)
                .filter(|(c, _)| **c == column)
                .map(|(_, b)| b)
                .collect();
            let w = inside.iter().map(|b| b.width(drawing)).max().unwrap_or(0);
            let mut y = MARGIN;
            for one in inside {
                y = layout.place(one, x, y, w) + GAP_Y;
            }
            layout.height = layout.height.max(y + MARGIN);
            x += w + GAP_X;
        }
        layout.width = layout.width.max(x - GAP_X + MARGIN + 40);
        layout
    }

    /// Places a box; returns the y coordinate of its end.
    fn place(&mut self, one: &Piece, x: i64, y: i64, w: i64) -> i64 {
        let Some(block) = one.block else {
            let h = PATCH;
            one.patches
                .iter()
                .for_each(|p| self.patches[*p] = Rect { x, y, w, h });
            return y + h;
        };
        let mut at = y + TITLE;
        for patch in &one.patches {
            self.patches[*patch] = Rect {
                x: x + 8,
                y: at,
                w: w - 16,
                h: PATCH,
            };
            at += PATCH + PATCH_GAP;
        }
        let h = at - y;
        self.blocks[block] = Rect { x, y, w, h };
        at
    }
}

/// A box: a block with its patches, or an empty patch.
#[derive(Debug)]
struct Piece {
    block: Option<usize>,
    patches: Vec<usize>,
}

impl Piece {
    fn width(&self, drawing: &Drawing) -> i64 {
        let titles = self.patches.iter().map(|p| drawing.patches[*p].title());
        let titles = titles.chain(self.block.map(|b| drawing.blocks[b].title()));
        let longest = titles.map(|t| t.chars().count()).max().unwrap_or(0);
        longest as i64 * CHAR + 32
    }
}

fn boxes(drawing: &Drawing) -> Vec<Piece> {
    let mut boxes: Vec<Piece> = (0..drawing.blocks.len())
        .map(|block| Piece {
            block: Some(block),
            patches: Vec::new(),
        })
        .collect();
    for (number, patch) in drawing.patches.iter().enumerate() {
        match patch.block {
            Some(block) => boxes[block].patches.push(number),
            None => boxes.push(Piece {
                block: None,
                patches: vec![number],
            }),
        }
    }
    boxes
}

/// The column of each box, right of its befores where possible. Boxes can wait for each other
/// through different patches; the depth-first walk then ignores the edge that closes the cycle.
fn columns(drawing: &Drawing, boxes: &[Piece]) -> Vec<usize> {
    let mut home = vec![0; drawing.patches.len()];
    for (number, one) in boxes.iter().enumerate() {
        one.patches.iter().for_each(|p| home[*p] = number);
    }
    let mut befores = vec![Vec::new(); boxes.len()];
    let edges = drawing.edges.iter();
    let between: HashSet<_> = edges.map(|e| (home[e.after], home[e.before])).collect();
    let mut between: Vec<_> = between.into_iter().filter(|(a, b)| a != b).collect();
    between.sort_unstable();
    for (after, before) in between {
        befores[after].push(before);
    }
    let mut columns = vec![None; boxes.len()];
    for root in 0..boxes.len() {
        place_after(root, &befores, &mut columns);
    }
    columns.into_iter().map(|c| c.unwrap_or(0)).collect()
}

/// Finds the column of one box and of its befores, depth first. Without recursion, since
/// chains can be long.
fn place_after(root: usize, befores: &[Vec<usize>], columns: &mut [Option<usize>]) {
    let mut path = vec![(root, 0)];
    let mut open = HashSet::from([root]);
    while let Some((number, next)) = path.last_mut() {
        let number = *number;
        if columns[number].is_none()
            && let Some(&before) = befores[number].get(*next)
        {
            *next += 1;
            if columns[before].is_none() && open.insert(before) {
                path.push((before, 0));
            }
            continue;
        }
        let right_of = befores[number].iter().filter_map(|b| columns[*b]);
        columns[number] = columns[number].or(Some(right_of.max().map_or(0, |c| c + 1)));
        open.remove(&number);
        path.pop();
    }
}
