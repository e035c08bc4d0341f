//! Shrinks a failing script.

use super::Script;

/// Removes operations while `fails` reports that the script fails: first runs of half the
/// script, then shorter ones, until no single operation can be removed. Returns `script` itself
/// if it does not fail.
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
            (1, true) => 1, // one removal may allow another
            _ => run / 2,
        };
    }
    best
}
