//! Shrinking a failing script.

use super::Script;

/// Removes operations for as long as `fails` still says that the script fails: first
/// runs of half the script, then of ever fewer, until no single one can go. Returns
/// `script` itself if that does not fail.
pub fn shrink(script: &Script, fails: &mut dyn FnMut(&Script) -> bool) -> Script {
    let mut best = script.clone();
    let mut run = best.ops.len().div_ceil(2);
    while run > 0 {
        let mut removed = false;
        let mut at = 0;
        while at < best.ops.len() {
            let mut ops = best.ops.clone();
            ops.drain(at..(at + run).min(ops.len()));
            let shorter = Script { ops };
            if fails(&shorter) {
                best = shorter;
                removed = true;
            } else {
                at += run;
            }
        }
        run = match (run, removed) {
            (1, true) => 1, // what one removal allows may be another
            _ => run / 2,
        };
    }
    best
}
