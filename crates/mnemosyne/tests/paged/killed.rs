//! A process whose durable memory is larger than its pool is killed repeatedly.
//!
//! The test starts this program again, as the process that is killed. So it has its own harness.

mod setup;

use crate::setup::{BLOCKS, Setup, open, table, value, write};
use libtest_mimic::{Arguments, Trial};
use mnemosyne::memory::Backing;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The first argument of the process that is killed; the directory and its pool follow.
const COUNT: &str = "count-until-killed";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, disk, pool] = &arguments[..]
        && first == COUNT
    {
        count_until_killed(Path::new(disk), Path::new(pool));
    }
    let test = Trial::test("committed_transactions_survive_kills", || {
        committed_transactions_survive_kills();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

/// Checks the blocks that earlier processes left, and continues.
fn count_until_killed(disk: &Path, pool: &Path) -> ! {
    let memory = open(disk, Some(pool)).unwrap();
    let mut session = memory.session();
    let table = table(&mut session, 0).unwrap();
    let pm = memory.backing().pmem();
    // Step n stores n in block n * 7 modulo their number, so the last step determines all values.
    let values = || (0..BLOCKS).map(|n| (value(pm, table + n * 8), n));
    let (last, _) = values().max().unwrap();
    for (found, n) in values() {
        assert!(
            found == 0 || found * 7 % BLOCKS == n,
            "{found} in block {n}"
        );
        let expected = (0..=last)
            .rev()
            .take(BLOCKS as usize)
            .find(|step| step * 7 % BLOCKS == n);
        assert_eq!(found, expected.unwrap_or(0));
    }
    println!("{last}");
    for step in last + 1.. {
        write(&mut session, table + step * 7 % BLOCKS * 8, step).unwrap();
        println!("{step}");
    }
    unreachable!("it is killed");
}

fn committed_transactions_survive_kills() {
    let setup = Setup::new();
    let mut seen = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(COUNT)
            .args([setup.disk(), setup.pool()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut steps = lines.map(|line| line.unwrap().parse::<u64>().unwrap());
        let found = steps.next().expect("a directory that can be opened");
        assert!(found >= seen, "{found} of {seen}");
        let target = found + 100 + round * 97;
        seen = steps.find(|step| *step >= target).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(seen > 2500, "all of them came and went");
    drop(setup.open());
}
