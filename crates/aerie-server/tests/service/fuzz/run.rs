//! One conversation with a service.

use super::{KINDS, Kind, messages};
use crate::become_user;
use crate::classes::STRANGER;
use crate::peer::Peer;
use crate::world::{World, make};
use aerie_proto::locks::{Ask, Tell};
use aerie_proto::messages::{Bytes, Class, Request};
use aerie_proto::ops;
use aerie_server::Limits;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::OnceLock;
use vfs::{Cookie, Ctx, FileSystem, Ino, NewNode, OpenFlags, SetAttr, XattrMode};

/// A user beside the one of a client that is not trusted.
const OTHER: u32 = 40_004;

/// Contents and names that only the other user may read.
const SECRET: &[u8] = b"a secret of another user";

/// An image with files of the users, and a description of those of the other one.
pub(super) struct Template {
    image: Vec<u8>,
    pub(super) root: u64,
    guarded: String,
    pub(super) inos: Inos,
}

/// Inodes of the image.
#[derive(Clone, Copy)]
pub(super) struct Inos {
    /// `/own` of the stranger, with `file`, `dir` and `link`.
    pub(super) own: Ino,
    pub(super) file: Ino,
    pub(super) link: Ino,
    /// `/shared`, which all may change, and `foreign` in it, of the other user.
    pub(super) shared: Ino,
    pub(super) foreign: Ino,
    /// `/hidden`, of the other user.
    pub(super) hidden: Ino,
}

pub(super) fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let world = World::of_bytes(2 << 20);
        let fs = world.open();
        let inos = populate(&fs);
        let guarded = guarded(&fs, inos);
        drop(fs);
        let image = std::fs::read(world.image()).unwrap();
        let root = world.root;
        Template {
            image,
            root,
            guarded,
            inos,
        }
    })
}

fn populate(fs: &dyn FileSystem) -> Inos {
    let cx = &Ctx::root();
    let owned = |ino: Ino, id: u32, perm: u32| {
        let set = SetAttr {
            perm: Some(perm),
            uid: Some(id),
            gid: Some(id),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set).unwrap();
        ino
    };
    let dir = |above, name: &str, id, perm| {
        let made = fs.mkdir(cx, above, name.as_bytes(), perm).unwrap();
        owned(made.ino, id, perm)
    };
    let own = dir(Ino::ROOT, "own", STRANGER, 0o755);
    let file = owned(make(fs, own, "file", &[7; 5000]).ino, STRANGER, 0o644);
    dir(own, "dir", STRANGER, 0o755);
    let at = vfs::Name::new(own, b"link");
    let link = fs.make(cx, at, &NewNode::symlink(b"target").unwrap());
    let link = link.unwrap().ino;
    let shared = dir(Ino::ROOT, "shared", 0, 0o1777);
    let foreign = owned(make(fs, shared, "foreign", SECRET).ino, OTHER, 0o600);
    fs.setxattr(cx, foreign, b"user.secret", SECRET, XattrMode::Set)
        .unwrap();
    let hidden = dir(Ino::ROOT, "hidden", OTHER, 0o700);
    make(fs, hidden, std::str::from_utf8(SECRET).unwrap(), SECRET);
    let at = vfs::Name::new(hidden, b"link");
    fs.make(cx, at, &NewNode::symlink(SECRET).unwrap()).unwrap();
    Inos {
        own,
        file,
        link,
        shared,
        foreign,
        hidden,
    }
}

/// The files that strangers may not change. All may link a file of their own device.
fn guarded(fs: &dyn FileSystem, inos: Inos) -> String {
    let cx = &Ctx::root();
    let mut seen = String::new();
    let mut file = |ino: Ino| {
        let attr = fs.getattr(cx, ino).unwrap();
        let mut contents = [0; 100];
        fs.open(cx, ino, OpenFlags::READ).unwrap();
        let read = fs.read(cx, ino, 0, &mut contents);
        fs.release(ino);
        let attrs = (attr.perm, attr.uid, attr.gid, attr.size, attr.mtime);
        writeln!(seen, "{attrs:?} {read:?} {contents:?}").unwrap();
    };
    let mut names = Vec::new();
    for (dir, name) in [(inos.shared, &b"foreign"[..]), (inos.hidden, SECRET)] {
        let found = fs.lookup(cx, dir, name).unwrap();
        file(found.ino);
        fs.forget(found.ino, 1);
    }
    for dir in [inos.hidden, Ino::ROOT] {
        let attr = fs.getattr(cx, dir).unwrap();
        writeln!(seen, "{:?}", (attr.perm, attr.uid, attr.gid, attr.mtime)).unwrap();
        let mut sink = |entry: &vfs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        fs.readdir(cx, dir, Cookie(0), &mut sink).unwrap();
    }
    let attributes = fs.listxattr(cx, inos.foreign);
    write!(seen, "{names:?} {attributes:?}").unwrap();
    seen
}

/// Has a conversation, and checks what it leaves. Returns the bytes of all answers.
pub(crate) fn converse(input: &[u8]) -> Vec<u8> {
    let (class, rest) = match input.split_first() {
        Some((class, rest)) => (class % 3, rest),
        None => return Vec::new(),
    };
    let class = [Class::Trusted, Class::Reader, Class::Remote][usize::from(class)];
    let is_stranger = class != Class::Trusted;
    if is_stranger && !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let template = template();
    let world = World::of_image(&template.image, template.root);
    world.set_mode(if class == Class::Remote { 0o600 } else { 0o644 });
    let service = world.serve(Limits::default());
    let answers = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            if is_stranger {
                become_user(STRANGER);
            }
            talk(&world, class, rest)
        });
        client.join().unwrap()
    });
    service.stop();
    world.check();
    let fs = world.open();
    let has = |wanted: &[u8], bytes: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
    assert!(!has(b"a bug of the service", &answers));
    if is_stranger {
        assert_eq!(guarded(&fs, template.inos), template.guarded);
    }
    if class == Class::Remote {
        assert!(has(SECRET, input) || !has(SECRET, &answers));
    }
    answers
}

fn talk(world: &World, class: Class, input: &[u8]) -> Vec<u8> {
    let mut peer = Peer::new(&world.socket()).unwrap();
    assert_eq!(peer.greeting.class, class);
    if class != Class::Remote {
        peer.lock(Ask::Begin);
        let message = peer.told();
        assert!(matches!(message.tell, Tell::Begun { .. }), "{message:?}");
        peer.epoch = message.epoch;
    }
    let mut socket = peer.socket.try_clone().unwrap();
    std::thread::scope(|scope| {
        let answers = scope.spawn(move || {
            let mut bytes = Vec::new();
            let _ = socket.read_to_end(&mut bytes);
            bytes
        });
        for message in messages(input) {
            say(&mut peer, &message);
        }
        let _ = peer.socket.shutdown(Shutdown::Write);
        answers.join().unwrap()
    })
}

fn say(peer: &mut Peer, message: &[u8]) {
    let Some((kind, bytes)) = message.split_first() else {
        return;
    };
    let epoch = peer.epoch;
    let number = |n: usize| bytes.get(n).copied().unwrap_or_default().into();
    match KINDS[usize::from(*kind) % KINDS.len()] {
        Kind::Raw => {
            let len = bytes.len() as u32;
            let frame = [&len.to_le_bytes()[..], bytes].concat();
            let _ = peer.socket.write_all(&frame);
        }
        Kind::Lock => {
            if let Ok(ask) = ops::decode(bytes) {
                peer.lock(ask);
            }
        }
        Kind::Batch => {
            let bytes = Bytes::new(bytes);
            peer.send_request(Request::Batch { epoch, bytes });
        }
        Kind::Call => peer.send_request(Request::Call(Bytes::new(bytes))),
        Kind::Reserve => {
            let (pages, headers) = (number(0), number(1));
            peer.send_request(Request::Reserve { pages, headers });
        }
    }
}
