use super::*;
use crate::{Before, Cache, CacheOptions, Change, Content, Store};
use medium::block::{Geometry, Lba, MemoryDevice};
use std::sync::Arc;

/// A graph with a block-level cycle. An inode waits for the block that it points to, a name
/// for the inode, and a second change of the inode for the name.
fn picture() -> Drawing {
    let geometry = Geometry {
        block_bytes: 512,
        blocks: 16,
    };
    let options = CacheOptions {
        interval: None,
        ..CacheOptions::default()
    };
    let device = Box::new(MemoryDevice::new(geometry));
    let cache = Arc::new(Cache::new(vec![device], options));
    let volume = cache.store(0);
    let op = volume.begin(3, crate::Caller::SYSTEM).unwrap();
    let write = |lba, at, rule: Option<(Rule, crate::PatchId)>| {
        let bytes = &[7; 4];
        let befores: Vec<Before> = rule
            .map(|(rule, patch)| Before { patch, rule })
            .into_iter()
            .collect();
        let change = Change::Bytes { at, bytes };
        volume
            .change(&op, Lba(lba), Content::Metadata, change, &befores)
            .unwrap()
            .id
    };
    let block = write(9, 0, None);
    let inode = write(5, 64, Some((Rule::InitialiseBeforePoint, block)));
    let name = write(7, 0, Some((Rule::LinkBeforeUnlink, inode)));
    let _again = write(5, 128, Some((Rule::NullifyBeforeReuse, name)));
    volume.end(op);
    let mut drawing = cache.draw();
    drawing.name_blocks(|_, lba| (lba == 5).then(|| "inodes <1> & \"2\"".into()));
    drawing
}

#[test]
fn a_drawing_has_all_blocks_edges_and_undo_data() {
    let drawing = picture();
    let lbas: Vec<u64> = drawing.blocks.iter().map(|b| b.lba).collect();
    assert_eq!(lbas, [5, 7, 9]);
    let mut edges: Vec<_> = drawing
        .edges
        .iter()
        .map(|e| {
            let lba = |p: usize| drawing.blocks[drawing.patches[p].block.unwrap()].lba;
            (lba(e.after), lba(e.before), e.rule.label())
        })
        .collect();
    edges.sort_unstable();
    let expected = [
        (5, 5, "overlap"),
        (5, 7, "nullify"),
        (5, 9, "init"),
        (7, 5, "link"),
    ];
    assert_eq!(edges, expected);
    let soft = drawing.patches.iter().filter(|p| p.kind == Kind::Bytes);
    // The patch that would close a cycle between blocks keeps undo data.
    assert_eq!(
        soft.map(|p| (p.at, p.undo_bytes)).collect::<Vec<_>>(),
        [(128, 4)]
    );
}

#[test]
fn graphviz_text_has_blocks_hard_patches_and_rules() {
    let dot = picture().dot();
    assert!(
        dot.contains("label=\"block 5: inodes <1> & \\\"2\\\"\";"),
        "{dot}"
    );
    assert_eq!(dot.matches("subgraph cluster_").count(), 3);
    assert_eq!(dot.matches("penwidth=3").count(), 3);
    for rule in ["init", "link", "nullify"] {
        assert!(dot.contains(&format!("[label=\"{rule}\"];")), "{dot}");
    }
}

#[test]
fn svg_draws_befores_further_left() {
    let drawing = picture();
    let layout = Layout::of(&drawing);
    let x = |lba| {
        let number = drawing.blocks.iter().position(|b| b.lba == lba).unwrap();
        layout.blocks[number].x
    };
    assert!(x(9) < x(5));
    for (patch, rect) in drawing.patches.iter().zip(&layout.patches) {
        let block = &layout.blocks[patch.block.unwrap()];
        assert!(rect.x > block.x && rect.x + rect.w < block.x + block.w);
        assert!(rect.y > block.y && rect.y + rect.h < block.y + block.h);
    }
    let svg = drawing.svg();
    assert!(
        svg.contains("block 5: inodes &lt;1&gt; &amp; \"2\""),
        "{svg}"
    );
    assert_eq!(svg.matches("class=\"hard\"").count(), 3);
    assert_eq!(
        svg.matches("<path class=\"edge\"").count(),
        drawing.edges.len()
    );
}

#[test]
fn an_empty_graph_can_be_drawn() {
    let drawing = Drawing::default();
    assert!(drawing.svg().ends_with("</svg>\n"));
    assert!(drawing.dot().ends_with("}\n"));
}
