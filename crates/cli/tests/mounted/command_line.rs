//! Names, arguments, exit codes.

use crate::fixture::{Fixture, finish, run, selvedge, stderr, stdout};
use engines::Engine;
use mnemosyne::memory::{DirectoryOptions, DurableMemory, Layout, Options};
use mnemosyne::tx::Stop;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::{Command, Stdio};

/// The program under another name.
fn called(place: &Fixture, name: &str) -> Command {
    let link = place.path(name);
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_selvedge"), &link).unwrap();
    }
    let mut command = Command::new(link);
    command.stdin(Stdio::null());
    command
}

#[test]
fn programs_named_as_helpers_of_mount_fsck_and_mkfs_work() {
    let place = Fixture::new();
    let file = File::create(place.image()).unwrap();
    file.set_len(4 << 20).unwrap();
    for mkfs in ["mkfs.bpfs", "mkfs.soupfs", "mkfs.selvedge"] {
        finish(0, called(&place, mkfs).args(["-f", place.image_str()]));
    }
    for fsck in ["fsck.selvedge", "fsck.fuse.selvedge"] {
        for flags in [&["-a"][..], &["-p"], &["-y"], &["-n", "-f"], &["-C0", "-r"]] {
            finish(0, called(&place, fsck).args(flags).arg(place.image()));
        }
    }
    // As mount(8) calls its helpers.
    for mount in ["mount.selvedge", "mount.fuse.selvedge"] {
        let options = "rw,noatime,_netdev,nofail,x-systemd.automount,user=root";
        let mut helper = called(&place, mount);
        helper.args([
            place.image_str(),
            place.dir_str(),
            "-n",
            "-v",
            "-o",
            options,
        ]);
        finish(0, helper.args(["-t", "fuse.selvedge"]));
        fs::write(place.dir().join(mount), "").unwrap();
        place.umount();
        // As umount(8) calls its helper.
        place.mount(&[]);
        let mut umount = called(&place, "umount.fuse.selvedge");
        let flags = ["-f", "-n", "-r", "-v", "-t", "fuse.selvedge"];
        finish(0, umount.arg(place.dir()).args(flags));
        assert!(!place.is_mounted());
        let mut fake = called(&place, mount);
        finish(0, fake.args([place.image_str(), place.dir_str(), "-f"]));
        assert!(!place.is_mounted());
    }
}

#[test]
fn mount_options_that_are_unknown_are_named() {
    let place = Fixture::with_image();
    let mount = |code, args: &[&str]| {
        let first = ["mount", place.image_str(), place.dir_str()];
        run(code, &[&first, args].concat())
    };
    let refused = mount(1, &["-o", "ro,data=journal"]);
    assert!(
        stderr(&refused).contains("'data=journal'"),
        "{}",
        stderr(&refused)
    );
    mount(0, &["-s", "-o", "ro,data=journal"]);
    place.umount();
    mount(1, &["--no-such-flag"]);
    mount(1, &["-t", "ext4"]);
    assert!(!place.is_mounted());
}

#[test]
fn mounts_that_fail_exit_with_32_and_leave_no_server() {
    let place = Fixture::with_image();
    let missing = run(32, &["mount", "/no/such/image", place.dir_str()]);
    assert!(
        stderr(&missing).contains("/no/such/image"),
        "{}",
        stderr(&missing)
    );
    let no_dir = run(32, &["mount", place.image_str(), "/no/such/dir"]);
    assert!(
        stderr(&no_dir).contains("/no/such/dir"),
        "{}",
        stderr(&no_dir)
    );
    fs::write(place.path("zeros"), [0; 1 << 20]).unwrap();
    let zeros = place.path("zeros");
    let other = finish(32, selvedge().arg("mount").arg(&zeros).arg(place.dir()));
    assert!(
        stderr(&other).contains("no file system of a known type"),
        "{}",
        stderr(&other)
    );
    assert_eq!(stderr(&other).lines().count(), 1);
    // Nobody holds the image.
    place.fsck();
}

#[test]
fn mkfs_does_not_overwrite_known_formats() {
    let place = Fixture::new();
    let file = File::create(place.image()).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&[0x53, 0xef], 0x438).unwrap();
    let refused = run(1, &["mkfs", place.image_str()]);
    assert!(stderr(&refused).contains("ext4"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    run(0, &["mkfs", "--force", place.image_str()]);
    let refused = run(1, &["mkfs", "--size", "8M", place.image_str()]);
    assert!(stderr(&refused).contains("BPFS"), "{}", stderr(&refused));
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    run(0, &["mkfs", "--force", "--size", "8M", place.image_str()]);
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    run(1, &["mkfs", "--force", "--size", "8191", place.image_str()]);
    run(1, &["mkfs", "--force", "--size", "512K", place.image_str()]);
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    let missing = finish(1, selvedge().arg("mkfs").arg(place.path("missing")));
    assert!(stderr(&missing).contains("--size"), "{}", stderr(&missing));
    run(2, &["mkfs", "--size", "many", place.image_str()]);
}

#[test]
fn mkfs_loses_nothing_and_leaves_nothing_when_it_fails() {
    let place = Fixture::new();
    let file = File::create(place.image()).unwrap();
    file.write_all_at(b"a letter", 0).unwrap();
    file.set_len(4 << 20).unwrap();
    let refused = run(1, &["mkfs", "--size", "8M", place.image_str()]);
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    // More than any file can have.
    let size = (i64::MAX as u64 / 4096 * 4096).to_string();
    run(1, &["mkfs", "--force", "--size", &size, place.image_str()]);
    assert!(fs::read(place.image()).unwrap().starts_with(b"a letter"));
    let new = place.path("new");
    finish(1, selvedge().args(["mkfs", "--size", &size]).arg(&new));
    assert!(!new.exists());
    let odd = finish(1, selvedge().args(["mkfs", "--size", "8388609"]).arg(&new));
    assert!(stderr(&odd).contains("--size"), "{}", stderr(&odd));
    assert!(!new.exists());
    run(0, &["mkfs", "--size", "4M", place.image_str()]);
}

#[test]
fn a_preallocated_image_takes_its_space_at_once() {
    let place = Fixture::new();
    let mkfs = ["mkfs", "--size", "8M", place.image_str()];
    run(0, &[&mkfs[..], &["--preallocate"]].concat());
    let taken = || fs::metadata(place.image()).unwrap().blocks() * 512;
    assert!(taken() >= 8 << 20, "{}", taken());
    run(0, &[&mkfs[..], &["--force"]].concat());
    assert!(taken() < 8 << 20, "{}", taken());
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for args in [
        &["crash", "test", "--threads", "0"][..],
        &["crash", "test", "--max-failures", "0"],
        &["crash", "test", "--ops", "4"],
        &["bench", "micro", "--rounds", "0"],
        &["bench", "scaling", "--rounds", "0"],
        &["bench", "scan", "--files", "0"],
        &["bench", "workloads", "--workload", "dhcp"],
        &["bench", "mounted", "--files", "0"],
        &["bench", "memory", "--rounds", "0"],
        &["bench", "memory", "--part", "hush"],
        &["heap", "dump", ".", "--json", "--block", "0"],
    ] {
        run(2, args);
    }
}

#[test]
fn fsck_exits_as_its_manual_says() {
    let place = Fixture::with_image();
    run(16, &["fsck"]);
    run(16, &["fsck", "--repair-everything", place.image_str()]);
    run(8, &["fsck", "/no/such/image"]);
    fs::write(place.path("zeros"), [0; 1 << 20]).unwrap();
    finish(8, selvedge().arg("fsck").arg(place.path("zeros")));
    let clean = run(0, &["fsck", "--json", place.image_str()]);
    let clean: serde_json::Value = serde_json::from_str(&stdout(&clean)).unwrap();
    assert_eq!(clean["clean"], true);

    // The root record, made to point past the end.
    let file = File::options().write(true).open(place.image()).unwrap();
    file.write_all_at(&[0xff; 6], bpfs::format::at::SUPER_ROOT + 1)
        .unwrap();
    let bad = run(4, &["fsck", "--json", place.image_str()]);
    let bad: serde_json::Value = serde_json::from_str(&stdout(&bad)).unwrap();
    assert_eq!(bad["clean"], false);
    assert!(bad["findings"].as_array().is_some_and(|f| !f.is_empty()));
    run(4, &["fsck", "-n", place.image_str()]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    finish(8, selvedge().args(["fsck", place.image_str()]).stdout(full));
}

#[test]
fn fsck_waits_for_an_image_that_is_being_released() {
    let place = Fixture::with_image();
    let server = File::open(place.image()).unwrap();
    server.lock().unwrap();
    let mut fsck = selvedge()
        .args(["fsck", place.image_str()])
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(server);
    assert_eq!(fsck.wait().unwrap().code(), Some(0));
}

#[test]
fn info_describes_the_image() {
    let place = Fixture::with_image();
    let json = run(0, &["info", "--json", place.image_str()]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(json["type"], "bpfs");
    assert_eq!(json["size_bytes"], 64 << 20);
    assert_eq!(json["durability"], "process");
    assert_eq!(json["guarantees"]["durable"], "at-return");
    assert!(json["blocks_free"].as_u64().is_some_and(|n| n > 16_000));
    let text = stdout(&run(0, &["info", place.image_str()]));
    assert!(
        text.contains("64.00 MiB") && text.contains("not a crash of the machine"),
        "{text}"
    );
    run(1, &["info", "/no/such/image"]);
}

#[test]
fn info_of_a_mounted_image_shows_the_options_in_force() {
    let place = Fixture::with_image();
    let unmounted = stdout(&run(0, &["info", place.image_str()]));
    assert!(
        unmounted.contains("a mount would use process"),
        "{unmounted}"
    );
    let before = stdout(&run(0, &["info", "--json", place.image_str()]));
    let before: serde_json::Value = serde_json::from_str(&before).unwrap();
    for durability in ["process", "msync"] {
        place.mount(&["--durability", durability]);
        let text = stdout(&run(0, &["info", place.image_str()]));
        let in_force = format!("in force is {durability}:");
        assert!(
            text.contains(&in_force) && text.contains(" (selvedge)"),
            "{text}"
        );
        let json = run(0, &["info", "--json", place.image_str()]);
        let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
        assert_eq!(json["mounted_on"], place.dir_str());
        assert_eq!(json["durability"], durability);
        assert!(json["process"].is_u64());
        assert_eq!(json["guarantees"]["durable"], "at-return");
        let keys = [
            "type",
            "version",
            "uuid",
            "mode",
            "size_bytes",
            "block_bytes",
            "blocks",
        ];
        for key in keys {
            assert_eq!(json[key], before[key], "{key}");
        }
        assert!(json["blocks_free"].as_u64() <= before["blocks_free"].as_u64());
        place.umount();
    }
    // A process that keeps a file open without a mount of it reports nothing.
    let file = File::open(place.image()).unwrap();
    file.lock().unwrap();
    run(1, &["info", place.image_str()]);
}

#[test]
fn dump_shows_an_inode_by_number_and_by_path() {
    let place = Fixture::with_image();
    place.mount(&[]);
    fs::create_dir(place.dir().join("d")).unwrap();
    fs::write(place.dir().join("d/file"), [1; 10_000]).unwrap();
    let ino = fs::metadata(place.dir().join("d/file")).unwrap().ino();
    place.umount();
    let dump = |code, args: &[&str]| {
        let first = ["dump", place.image_str()];
        stdout(&run(code, &[&first, args].concat()))
    };
    let by_path = dump(0, &["--path", "/d/file"]);
    assert!(by_path.contains("10000"), "{by_path}");
    assert_eq!(dump(0, &["--inode", &ino.to_string()]), by_path);
    assert!(!dump(0, &[]).is_empty());
    dump(1, &["--path", "/none"]);
    dump(1, &["--inode", "999999"]);
    dump(2, &["--inode", "1", "--path", "/"]);
}

/// Durable memory with logs that are soon made.
fn with_short_logs() -> DirectoryOptions {
    DirectoryOptions {
        layout: Layout {
            log_bytes: 64 << 10,
            ..Layout::default()
        },
        ..DirectoryOptions::default()
    }
}

/// Makes durable memory with a block that a root points to and one that nothing points to.
/// Returns where they are, and their bytes.
fn with_two_blocks(path: &str) -> [(u64, u64); 2] {
    let store =
        DurableMemory::open_directory(path, &with_short_logs(), Options::default()).unwrap();
    let made = store.session().run(|tx| {
        let (rooted, lost) = (tx.alloc(100)?, tx.alloc(20_000)?);
        assert!(tx.set_root("letters", 42, rooted)?);
        let sizes = [tx.size_of(rooted)?, tx.size_of(lost)?];
        Ok::<_, Stop<()>>([(rooted, sizes[0]), (lost, sizes[1])])
    });
    made.unwrap()
}

/// The output of `selvedge heap`, as text and in JSON.
fn told_of_heap(what: &str, path: &str) -> (String, serde_json::Value) {
    let text = stdout(&run(0, &["heap", what, path]));
    let json = stdout(&run(0, &["heap", what, path, "--json"]));
    (text, serde_json::from_str(&json).unwrap())
}

#[test]
fn heap_info_shows_regions_roots_and_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let [(rooted, short), (lost, long)] = with_two_blocks(path);
    let (text, json) = told_of_heap("info", path);
    assert_eq!(json["directory"], path);
    let region = &json["regions"][0];
    assert_eq!(region["kind"], "heap");
    let slot = region["slot"].as_u64().unwrap();
    let start = region["offset"].as_u64().unwrap();
    let bytes = region["bytes"].as_u64().unwrap();
    for (off, len) in [(rooted, short), (lost, long)] {
        assert!(off > start && off + len <= start + bytes, "{json}");
    }
    let root = serde_json::json!({
        "name": "letters",
        "layout": "000000000000002a",
        "offset": rooted,
    });
    assert_eq!(json["roots"], serde_json::json!([root]));
    let heap = &json["heap"];
    assert_eq!(heap["bytes"], bytes);
    let allocated = short + long;
    assert_eq!(heap["allocated_bytes"], allocated);
    assert_eq!(heap["blocks"], 2);
    assert_eq!(heap["sizes"][short.to_string()], 1);
    assert_eq!(heap["sizes"][long.to_string()], 1);
    for line in [
        path.to_owned(),
        format!("region {slot} at {start:#x}: {bytes} bytes, heap"),
        format!("root \"letters\" at {rooted:#x}, layout 000000000000002a"),
        format!("heap: {bytes} bytes, {allocated} of them in 2 blocks"),
        format!("  1 of {short} bytes"),
        format!("  1 of {long} bytes"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn heap_dump_lists_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let [(rooted, short), (lost, long)] = with_two_blocks(path);
    let (text, json) = told_of_heap("dump", path);
    let blocks = json.as_array().unwrap();
    assert_eq!((blocks.len(), text.lines().count()), (2, 2), "{text}");
    for (off, bytes, is_reached) in [(rooted, short, true), (lost, long, false)] {
        let block = serde_json::json!({"offset": off, "bytes": bytes, "reached": is_reached});
        assert!(blocks.contains(&block), "{json}");
        let note = match is_reached {
            true => "",
            false => "  nothing points to it",
        };
        let line = format!("{off:#014x} {bytes:>12}{note}");
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn heap_check_names_the_damage_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    run(8, &["heap", "check", &format!("{path}/none")]);
    let store =
        DurableMemory::open_directory(path, &with_short_logs(), Options::default()).unwrap();
    let lost = store
        .session()
        .run(|tx| Ok::<_, Stop<()>>(tx.alloc(20_000)?));
    drop(store);
    let check =
        |code, flags: &[&str]| stdout(&run(code, &[&["heap", "check", path], flags].concat()));
    let text = check(4, &[]);
    assert!(text.contains("1 of 1 block lost"), "{text}");
    // The heap's segment, which begins with its signature.
    let heap = File::options()
        .write(true)
        .open(dir.path().join("region-0000"));
    heap.unwrap().write_all_at(&[0], 0).unwrap();
    let text = check(4, &[]);
    let expected = "error: M12: region-0000 at 0x0, segment: ";
    assert!(
        text.contains(expected) && text.contains("restore"),
        "{text}"
    );
    assert!(lost.is_ok() && text.contains("1 error"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&check(4, &["--json"])).unwrap();
    assert_eq!(json["clean"], false);
    let finding = &json["findings"][0];
    assert_eq!(finding["invariant"], "M12");
    assert_eq!(finding["file"], "region-0000");
    assert_eq!(
        (&finding["structure"], &finding["offset"]),
        (&"segment".into(), &0.into())
    );
    assert!(finding["what"].is_string() && finding["way_out"].is_string());
}

/// After a crash of the machine, programs are refused: the check says so, and what to do.
#[test]
fn heap_check_reports_a_crash_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    drop(DurableMemory::open_directory(path, &with_short_logs(), Options::default()).unwrap());
    let note = "selvedge boot 00000000-0000-0000-0000-000000000000\n";
    std::fs::write(dir.path().join("boot"), note).unwrap();
    let text = stdout(&run(4, &["heap", "check", path]));
    for part in [
        "error: boot: boot at 0x0, ",
        "--accept-loss",
        "ACCEPT_LOSS=1",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let json = stdout(&run(4, &["heap", "check", path, "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["clean"], false);
    assert_eq!(json["findings"][0]["invariant"], "boot");
    run(1, &["heap", "repair", path, "--accept-loss"]);
    run(0, &["heap", "check", path]);
}

/// Nothing is given up without consent, and what is, is named.
#[test]
fn heap_repair_lists_the_lost_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    with_two_blocks(path);
    let repair =
        |code, flags: &[&str]| stdout(&run(code, &[&["heap", "repair", path], flags].concat()));
    assert_eq!(repair(0, &[]), format!("{path}: nothing to repair\n"));
    let store =
        DurableMemory::open_directory(path, &with_short_logs(), Options::default()).unwrap();
    let named = store
        .session()
        .run(|tx| Ok::<_, Stop<()>>(tx.set_root("nowhere", 1, 1 << 30)?));
    assert!(named.unwrap());
    drop(store);
    let check = stdout(&run(4, &["heap", "check", path]));
    assert!(
        check.contains("M16") && check.contains("heap repair"),
        "{check}"
    );
    let text = repair(4, &[]);
    assert!(
        text.contains("to be lost: M16: the root \"nowhere\""),
        "{text}"
    );
    assert!(text.contains("not changed"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&repair(1, &["--accept-loss", "--json"])).unwrap();
    assert_eq!(json["losses"][0]["invariant"], "M16");
    assert_eq!(
        repair(0, &["--accept-loss"]),
        format!("{path}: nothing to repair\n")
    );
}

#[test]
fn guarantees_are_listed_for_every_engine() {
    let json = run(0, &["guarantees", "--json"]);
    let json: Vec<serde_json::Value> = serde_json::from_str(&stdout(&json)).unwrap();
    let listed: Vec<&str> = json.iter().filter_map(|row| row["name"].as_str()).collect();
    let promised = engines::all().iter();
    let promised = promised.flat_map(|engine| engine.guarantees().unwrap());
    let promised: Vec<_> = promised.map(|promise| promise.name).collect();
    assert_eq!(listed, promised);
    let text = stdout(&run(0, &["guarantees"]));
    for engine in engines::all() {
        assert!(text.contains(engine.name()), "{text}");
        for mode in engine.modes() {
            let row = format!("{} (mode={mode})", engine.name());
            assert!(text.contains(&row), "{row}: {text}");
        }
    }
    for note in ["up to 1 MiB", "through mmap"] {
        assert!(text.contains(note), "{text}");
    }
}

#[test]
fn stacks_are_listed_and_explained_and_errors_show_their_place() {
    let list = stdout(&run(0, &["stack"]));
    for kind in patch::stack::KINDS {
        assert!(list.contains(kind.about), "{list}");
    }
    let text = "uhfs > ext2 > journal(full, log=1) > cache(8M) > [disk, disk(/log)]";
    let explained = stdout(&run(0, &["stack", text]));
    assert!(
        explained.starts_with(&format!("{text}\nmode: journal\n")),
        "{explained}"
    );
    assert!(explained.contains("device number 1"), "{explained}");
    let wrong = stderr(&run(1, &["stack", "uhfs > ext2 > cahce > disk"]));
    let [said, line, caret] = wrong.lines().collect::<Vec<_>>()[..] else {
        panic!("{wrong}");
    };
    assert!(said.contains("no layer 'cahce'"), "{wrong}");
    assert_eq!(line.find("cahce"), caret.find('^'), "{wrong}");
}

#[test]
fn heap_commands_reserve_as_many_addresses_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    drop(
        DurableMemory::open_directory(dir.path(), &with_short_logs(), Options::default()).unwrap(),
    );
    let limited = |code, bytes: Option<&str>, what: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 16777216; exec \"$0\" heap \"$1\" \"$2\""]);
        shell
            .args([env!("CARGO_BIN_EXE_selvedge"), what])
            .arg(dir.path());
        shell.envs(bytes.map(|bytes| ("SELVEDGE_BYTES", bytes)));
        stderr(&finish(code, &mut shell))
    };
    for what in ["check", "repair"] {
        let refused = limited(8, None, what);
        assert!(refused.contains("set SELVEDGE_BYTES to fewer"), "{refused}");
        limited(0, Some("1073741824"), what);
        let refused = limited(8, Some("1G"), what);
        assert!(refused.contains("not a multiple of 2097152"), "{refused}");
    }
}

#[test]
fn completions_and_manual_pages_have_options_and_promises() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(0, &["completions", shell]));
        assert!(script.contains("simulate-power-cut"), "{shell}");
    }
    let place = Fixture::new();
    let man = place.path("man");
    finish(0, selvedge().arg("manpages").arg(&man));
    let promises = fs::read_to_string(man.join("selvedge-guarantees.8")).unwrap();
    let promises = promises.replace('\\', "");
    for engine in engines::all() {
        for promise in engine.guarantees().unwrap() {
            assert!(promises.contains(&promise.name), "{promises}");
        }
    }
    let pages = [
        "",
        "-mkfs",
        "-mount",
        "-umount",
        "-fsck",
        "-info",
        "-guarantees",
    ];
    for page in pages {
        let page = man.join(format!("selvedge{page}.8"));
        let text = fs::read_to_string(&page).unwrap();
        assert!(
            text.contains(".TH") && text.contains("SYNOPSIS"),
            "{}",
            page.display()
        );
    }
}

/// Manual pages, each with a part of its synopsis and values that its options list.
fn pages_with_values() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|w| (*w).into()).collect() };
    let modes = |listed: &[&dyn Engine]| -> Vec<String> {
        let modes = listed.iter().flat_map(|engine| engine.modes());
        modes.map(str::to_owned).collect()
    };
    let measured = |listed: Vec<bench::Engine>| -> Vec<String> {
        listed.iter().map(ToString::to_string).collect()
    };
    let all = engines::all();
    let drawn = all.iter().copied().filter(|engine| engine.has_graph());
    let drawn = modes(&drawn.collect::<Vec<_>>());
    let mounted = [words(&names_of_engines()), modes(all), words(&["msync"])];
    let of_all = measured(bench::Engine::all());
    let of_bytes = measured(bench::bytes::engines());
    let stored = measured(bench::Engine::stored());
    let models = words(&["words", "lines", "waves"]);
    vec![
        ("mount", "[--type <TYPE>]", mounted.concat()),
        ("mkfs", "[--mode <MODE>]", modes(&[engines::default()])),
        (
            "graph",
            "--script <FILE>",
            [drawn, words(&["dot"])].concat(),
        ),
        ("crash-test", "[--model <MODEL>]", models),
        (
            "bench-memory",
            "[--part <PART>]",
            words(&["hash", "paging"]),
        ),
        ("bench-bytes", "[--type <TYPE>]", of_bytes),
        ("bench-micro", "[--type <TYPE>]", of_all.clone()),
        ("bench-scaling", "[--type <TYPE>]", of_all),
        (
            "bench-workloads",
            "[--workload <NAME>]",
            words(&["fileserver-1k", "postmark"]),
        ),
        ("bench-mounted", "[--type <TYPE>]", stored),
        (
            "bench-fs",
            "[--workload <NAME>]",
            words(&["untar", "rollback"]),
        ),
    ]
}

fn names_of_engines() -> Vec<&'static str> {
    engines::all().iter().map(|engine| engine.name()).collect()
}

#[test]
fn manual_pages_list_the_values_of_options() {
    let place = Fixture::new();
    let man = place.path("man");
    finish(0, selvedge().arg("manpages").arg(&man));
    for (page, synopsis, values) in pages_with_values() {
        assert!(!values.is_empty(), "{page}");
        let text = fs::read_to_string(man.join(format!("selvedge-{page}.8"))).unwrap();
        let text = text.replace("\\-", "-");
        assert!(text.contains(synopsis), "{page}: {text}");
        assert!(text.contains("Possible values"), "{page}: {text}");
        for value in values {
            assert!(text.contains(&value), "{page}: {value}: {text}");
        }
    }
    // Also what is not listed is taken, by the names of mount(8).
    let refused = run(
        1,
        &["mount", "-t", "ext4", place.image_str(), place.dir_str()],
    );
    let listed = format!("not one of {}\n", names_of_engines().join(", "));
    assert!(stderr(&refused).contains(&listed), "{refused:?}");
}

#[test]
fn a_reader_that_closes_early_is_not_an_error() {
    let mut child = selvedge()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}
