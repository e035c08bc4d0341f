//! Objects that have lost their names while they are in use.

use super::clients::{client, service};
use oracle::ModelFs;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, OpenFlags, RenameFlags};

const ROOT: Ino = Ino::ROOT;

/// A removed directory that is still referenced gets no entries.
fn no_names_in_a_removed_directory(fs: &dyn FileSystem) {
    let cx = &Ctx::root();
    let dir = fs.mkdir(cx, ROOT, b"dir", 0o755).unwrap().ino;
    let file = fs.create(cx, ROOT, b"file", 0o644).unwrap().ino;
    let other = fs.mkdir(cx, ROOT, b"other", 0o755).unwrap().ino;
    fs.rmdir(cx, ROOT, b"dir").unwrap();
    let gone = Err(Errno::NOENT);
    for name in [&b"file"[..], b"other"] {
        let to = Name::new(dir, b"moved");
        let moved = fs.rename(cx, Name::new(ROOT, name), to, RenameFlags::empty());
        assert_eq!(moved, gone);
    }
    let linked = fs.link(cx, file, dir, b"link").map(drop);
    assert_eq!(linked, gone);
    assert_eq!(fs.create(cx, dir, b"new", 0o644).map(drop), gone);
    assert_eq!(fs.mkdir(cx, dir, b"new", 0o755).map(drop), gone);
    for ino in [dir, file, other] {
        fs.forget(ino, 1);
    }
}

#[test]
fn removed_directories_get_no_entries() {
    no_names_in_a_removed_directory(&ModelFs::default());
    let alone = service(1_000);
    no_names_in_a_removed_directory(&*alone);
    assert_eq!(alone.audit(), []);
    for is_trusted in [true, false] {
        let service = service(1_000);
        let client = client(&service, is_trusted);
        no_names_in_a_removed_directory(&client);
        client.sync().unwrap();
        assert_eq!(service.nameless(), []);
        drop(client);
        assert_eq!(service.audit(), []);
    }
}

/// The client holds the file once for each name that it has made.
#[test]
fn a_file_with_many_names_ends_with_its_last_one() {
    for is_trusted in [true, false] {
        let service = service(1_000);
        let client = client(&service, is_trusted);
        let cx = &Ctx::root();
        let file = client.create(cx, ROOT, b"0", 0o644).unwrap().ino;
        let names = [b"1", b"2", b"3"];
        for name in names {
            client.link(cx, file, ROOT, name).unwrap();
        }
        client.sync().unwrap();
        for name in names.into_iter().chain([b"0"]) {
            client.unlink(cx, ROOT, name).unwrap();
        }
        client.sync().unwrap();
        assert_eq!(service.nameless(), [file]);
        client.forget(file, 1 + names.len() as u64);
        client.sync().unwrap();
        assert_eq!(service.nameless(), [], "trusted: {is_trusted}");
        drop(client);
        assert_eq!(service.audit(), []);
    }
}

/// A file that a client has opened twice loses its name in this way.
type Loss = fn(&dyn FileSystem) -> vfs::Result<()>;

const LOSSES: [Loss; 2] = [
    |fs| fs.unlink(&Ctx::root(), ROOT, b"open"),
    |fs| {
        let [from, to] = [&b"other"[..], b"open"].map(|name| Name::new(ROOT, name));
        fs.rename(&Ctx::root(), from, to, RenameFlags::empty())
    },
];

/// The client reads it after the ship, and the service deletes it after the last release, during the session.
#[test]
fn a_file_that_a_client_has_open_lives_until_the_client_closes_it() {
    let cases = [true, false].map(|is_trusted| LOSSES.map(|loss| (is_trusted, loss)));
    for (is_trusted, loss) in cases.into_iter().flatten() {
        let service = service(1_000);
        let cx = &Ctx::root();
        for name in [&b"open"[..], b"other"] {
            let file = service.create(cx, ROOT, name, 0o644).unwrap().ino;
            service.write(cx, file, 0, b"contents").unwrap();
            service.forget(file, 1);
        }
        let client = client(&service, is_trusted);
        let file = client.lookup(cx, ROOT, b"open").unwrap().ino;
        for flags in [OpenFlags::READ, OpenFlags::READ | OpenFlags::WRITE] {
            client.open(cx, file, flags).unwrap();
        }
        loss(&client).unwrap();
        client.sync().unwrap();
        let mut contents = [0; 8];
        for _ in 0..2 {
            assert_eq!(client.read(cx, file, 0, &mut contents), Ok(8));
            assert_eq!(&contents, b"contents");
            client.release(file);
            client.sync().unwrap();
            assert_eq!(service.nameless(), [file]);
        }
        client.forget(file, 1);
        client.sync().unwrap();
        assert_eq!(service.nameless(), [], "trusted: {is_trusted}");
        drop(client);
        assert_eq!(service.audit(), []);
    }
}
