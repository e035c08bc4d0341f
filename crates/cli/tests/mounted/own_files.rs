//! Files whose names the server chooses, in a directory that others can write to.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, wait_for};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

const SECRET: &str = "for root's eyes";

/// An ext2 image, and a file that the server must leave alone.
fn place_with_secret() -> Fixture {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    fs::write(place.path("secret"), SECRET).unwrap();
    place
}

fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|made| made.is_file() && made.mode() & 0o7777 == 0o600)
}

fn check_secret(place: &Fixture) {
    assert_eq!(fs::read_to_string(place.path("secret")).unwrap(), SECRET);
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A server that loses its power at SIGUSR1.
fn serve(place: &Fixture) -> Server {
    place.serve(&["--simulate-power-cut=seed=1"])
}

#[test]
fn a_planted_link_or_pipe_is_replaced_by_the_drawing() {
    let place = place_with_secret();
    let picture = place.path("image.graph.svg");
    for plant in [
        &|| symlink(place.path("secret"), &picture).unwrap(),
        &|| {
            fifo(&picture);
        },
    ] as [&dyn Fn(); 2]
    {
        plant();
        let server = place.serve(&[]);
        server.signal("USR2");
        wait_for("the drawing", || is_private(&picture));
        assert!(fs::read_to_string(&picture).unwrap().contains("</svg>"));
        check_secret(&place);
        place.umount();
        fs::remove_file(&picture).unwrap();
    }
}

#[test]
fn a_planted_link_or_pipe_is_replaced_by_the_report() {
    let place = place_with_secret();
    let report = place.path("image.power-cut.json");
    for plant in [&|| symlink(place.path("secret"), &report).unwrap(), &|| {
        fifo(&report);
    }] as [&dyn Fn(); 2]
    {
        plant();
        let mut server = serve(&place);
        server.signal("USR1");
        wait_for("the report", || is_private(&report));
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(json["seed"], 1);
        check_secret(&place);
        place.umount();
        assert_eq!(server.wait(), Some(0));
        fs::remove_file(&report).unwrap();
    }
}

#[test]
fn a_report_or_log_that_is_not_a_regular_file_is_refused() {
    let place = place_with_secret();
    let (link, pipe) = (place.path("link"), place.path("pipe"));
    symlink(place.path("secret"), &link).unwrap();
    fifo(&pipe);
    for path in [&link, &pipe] {
        let report = format!("--simulate-power-cut=report={}", path.display());
        for args in [&[report.as_str()][..], &["--log", path.to_str().unwrap()]] {
            let mut mount = selvedge();
            mount.args(["mount", place.image_str(), place.dir_str()]);
            let refused = stderr(&finish(32, mount.args(args)));
            assert!(refused.contains(path.to_str().unwrap()), "{refused}");
            assert!(!place.is_mounted());
        }
    }
    check_secret(&place);
    place.mount(&["--log", place.path("log").to_str().unwrap()]);
    assert!(is_private(&place.path("log")));
    place.umount();
}
