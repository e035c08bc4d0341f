//! Rows, counters and JSON of short runs.

use super::*;

fn quick(types: Vec<Engine>, dirs: Vec<PathBuf>) -> Report {
    let options = Options {
        types,
        dirs,
        with_tmpfs: false,
        with_ext4: false,
        rounds: 1,
    };
    run(&options).unwrap()
}

#[test]
fn every_target_has_every_operation() {
    let dir = tempfile::tempdir().unwrap();
    let report = quick(vec![Engine::baseline()], vec![dir.path().into()]);
    assert_eq!(report.matrix().targets.len(), 2);
    for target in report.matrix().targets {
        for op in Op::ALL {
            let row = report.matrix().at(target, op.name()).unwrap();
            assert!(row.ns_median > 0.0, "{target} {}", op.name());
            assert_eq!(row.bytes, None);
        }
    }
    // The directory is as it was.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn counters_belong_to_engines() {
    let report = quick(vec!["bpfs".parse().unwrap()], Vec::new());
    for op in Op::ALL {
        let row = report.matrix().at("bpfs", op.name()).unwrap();
        let (flushes, fences, bytes) = (
            row.flushes.unwrap(),
            row.fences.unwrap(),
            row.bytes.unwrap(),
        );
        match op {
            Op::Open => assert_eq!((fences, bytes), (0.0, 0.0)),
            Op::ReadSeq | Op::ReadRand => assert!(bytes <= 8.0, "{bytes}"),
            // Durable at return: something is flushed (or streamed) and fenced.
            Op::Create
            | Op::Unlink
            | Op::Mkdir
            | Op::Rmdir
            | Op::WriteSeq
            | Op::WriteRand
            | Op::Append
            | Op::Overwrite8
            | Op::Overwrite4k
            | Op::Rename
            | Op::RenameCross
            | Op::WriteFsync => assert!(fences >= 1.0 && flushes + bytes >= 1.0, "{}", op.name()),
        }
        if matches!(
            op,
            Op::WriteSeq | Op::WriteRand | Op::Append | Op::WriteFsync
        ) {
            assert!(bytes >= 4096.0, "{}: {bytes}", op.name());
        }
    }
    assert!(
        report
            .matrix()
            .at("bpfs", "overwrite-8b")
            .unwrap()
            .bytes
            .unwrap()
            < 64.0
    );
}

#[test]
fn json_is_rows() {
    let report = quick(vec![Engine::baseline()], Vec::new());
    let json = serde_json::to_value(&report).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.len(), Op::ALL.len());
    let keys: Vec<_> = rows[0].as_object().unwrap().keys().cloned().collect();
    let expected = [
        "target",
        "op",
        "ns_median",
        "ns_p99",
        "flushes",
        "fences",
        "bytes",
    ];
    assert!(
        expected.iter().all(|k| keys.contains(&k.to_string())),
        "{keys:?}"
    );
    assert!(rows[0]["bytes"].is_null() && rows[0]["ns_median"].is_number());
}

#[test]
fn nothing_to_measure_is_an_error() {
    let options = Options {
        types: Vec::new(),
        with_tmpfs: false,
        ..Options::default()
    };
    assert!(matches!(run(&options), Err(Error::Usage(_))));
}
