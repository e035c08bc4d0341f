//! The smallest run of everything: that rows make sense. No figure is judged.

use super::*;

fn smallest(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        disk: dir.to_owned(),
        live: 100,
        operations: 50,
        disk_operations: 10,
        batches: 2,
        tree_nodes: vec![200],
        heap_bytes: 16 << 20,
        pool_bytes: 2 << 20,
        ..Options::default().quick()
    }
}

#[test]
fn the_smallest_run_has_every_row() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = smallest(dir.path());
    let mut steps = 0;
    let report = run(&options, &mut |_| steps += 1).unwrap();
    assert!(steps >= Part::ALL.len());
    let there: Vec<_> = report.rows.iter().map(|row| row.store.as_str()).collect();
    for peer in peers::PEERS {
        let is_missing = report.missing.iter().any(|line| line.contains(peer.name));
        assert!(there.contains(&peer.name) != is_missing, "{}", peer.name);
    }
    for ours in OURS.map(|(name, _)| name).into_iter().chain(LIBRARY) {
        let rows = report.rows.iter().filter(|row| row.store == ours);
        assert_eq!(rows.count(), 3 * 2, "three calls, one and two threads");
    }
    for row in &report.rows {
        assert!(row.us_median > 0.0 && row.ops_per_second > 0.0, "{row:?}");
    }
    assert_eq!(report.commits.len(), 4);
    assert!(report.commits.iter().all(|row| row.ns_median > 0.0));
    assert_eq!(report.logs.len(), 1);
    assert!(report.logs.iter().all(|row| row.ratio() > 0.0));
    assert_eq!(report.truncation.len(), 3 * 3);
    assert_eq!(report.latency.len(), 3 * 2 * 2);
    assert_eq!(report.trees.len(), 1);
    assert!(report.trees[0].inserts_per_save() > 0.0);
    let restart = report.restart.as_ref().unwrap();
    assert!(restart.transactions > 0 && restart.scan_seconds > 0.0);
    let moved: Vec<_> = report.paging.iter().map(|row| row.loaded_per_op).collect();
    assert_eq!(moved.len(), 4 * 2);
    assert!(
        moved[..2].iter().all(|moved| *moved < 0.3),
        "what fits stays: {moved:?}"
    );
    assert!(
        moved[6..].iter().all(|moved| *moved > 0.5),
        "what does not, moves: {moved:?}"
    );
    assert_eq!(report.sections().len(), 3 + 7);
    assert!(report.goals().len() >= 3, "those that need no peer");
    let text = report.to_string();
    assert!(text.contains("mnemosyne, in place") && text.contains("torn bits"));
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["rows"][0]["us_median"].is_number() && json["machine"]["cpu"].is_string());
    assert!(json["rows"][0]["column"].is_null());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn run_rejects_invalid_options() {
    let none = &mut |_: &str| ();
    for options in [
        Options {
            value_bytes: vec![7],
            ..Options::default()
        },
        Options {
            threads: vec![0],
            ..Options::default()
        },
        Options {
            rounds: 0,
            ..Options::default()
        },
    ] {
        assert!(matches!(run(&options, none), Err(Error::Usage(_))));
    }
    assert!("hash".parse::<Part>().is_ok() && "hush".parse::<Part>().is_err());
}
