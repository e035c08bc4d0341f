//! Threads that take, mark and give back memory.

use crate::alloc::Alloc;
use crate::error::Res;
use crate::format::{LINES, Line, MIN_PAGES, PAGE};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::shared::Shared;
use crate::space::Space;
use shuttle::thread;
use std::collections::HashSet;
use std::sync::Arc;

type Memory = Space<Shared>;

fn made() -> Memory {
    let pm = Shared::new(MIN_PAGES * PAGE);
    mkfs(&pm, &MkfsOptions::default()).expect("it is large enough");
    Space {
        pm,
        pages: MIN_PAGES,
        epoch: 2,
        seed: 0,
        is_after_crash: false,
    }
}

/// A thread marks every other line of some pages, and another one gives the rest back. Two more take
/// memory. None is handed out twice, and in the end as much is free as before.
pub(crate) fn memory_is_handed_out_once() {
    let space = Arc::new(made());
    let alloc = Arc::new(Alloc::new(space.pages));
    let free = alloc.free(&space).expect("memory does not fail").lines;
    let lines = alloc.take_lines(&space, 256).expect("there is memory");
    let (kept, returned): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.0 % 2 == 0);
    let start = |work: fn(&Alloc, &Memory, Vec<Line>) -> Res<Vec<Line>>, lines| {
        let (alloc, space) = (Arc::clone(&alloc), Arc::clone(&space));
        thread::spawn(move || work(&alloc, &space, lines).expect("there is memory"))
    };
    let threads = [
        start(mark, kept),
        start(give_back, returned),
        start(take, Vec::new()),
        start(take, Vec::new()),
    ];
    let in_use = threads.map(|thread| thread.join().expect("no thread panics"));
    let mut seen = HashSet::new();
    for line in in_use.iter().flatten() {
        assert!(seen.insert(line.0), "line {} was handed out twice", line.0);
        let freed = alloc.clear_line(&space, *line);
        freed.expect("memory does not fail");
    }
    let left = alloc.free(&space).expect("memory does not fail").lines;
    assert_eq!(left, free);
}

fn mark(alloc: &Alloc, space: &Memory, lines: Vec<Line>) -> Res<Vec<Line>> {
    let mut all = lines.iter();
    all.try_for_each(|line| alloc.mark_line(space, *line))?;
    Ok(lines)
}

fn give_back(alloc: &Alloc, space: &Memory, lines: Vec<Line>) -> Res<Vec<Line>> {
    alloc.abandon_lines(space, lines)?;
    Ok(Vec::new())
}

fn take(alloc: &Alloc, space: &Memory, _: Vec<Line>) -> Res<Vec<Line>> {
    let mut lines = alloc.take_lines(space, 100)?.into_vec();
    let page = alloc.take_page(space)?;
    alloc.mark_page(space, page)?;
    lines.extend((0..LINES).map(|n| Line(page.0 * LINES + n)));
    Ok(lines)
}
