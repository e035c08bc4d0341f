//! The first inputs: each operation and each call, alone and in a sequence, from clients of each class.

use super::run::{converse, template};
use super::{BETWEEN, Kind};
use aerie_objects::{Kind as Of, Reserve};
use aerie_proto::locks::{Access, Age, Ask, GrantNo, LockId, Mode};
use aerie_proto::messages::{Bytes, Down, HEAD_BYTES, Request, Up, decode, len_of};
use aerie_proto::ops::{
    self, Answers, Batch, Call, Caller, Condition, Data, Name, Op, Operation, Outcome, Read,
};
use std::sync::OnceLock;
use vfs::{
    Cookie, Ctx, Fallocate, Ino, NewNode, OpenFlags, Removal, RenameFlags, SeekKind, SetAttr,
    SetTime, Timestamp, XattrMode,
};

/// The classes, as the first byte of an input says them.
const TRUSTED: u8 = 0;
const READER: u8 = 1;
const REMOTE: u8 = 2;

const RESERVED: [u8; 2] = [20, 4];

fn message(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    [&[kind as u8], bytes].concat()
}

fn conversation(class: u8, messages: &[Vec<u8>]) -> Vec<u8> {
    [vec![class], messages.join(BETWEEN)].concat()
}

/// Operations that succeed, in this order.
fn operations(reserve: &Reserve) -> Vec<Op<'static>> {
    let mut all = of_names(reserve);
    all.extend(of_inodes(reserve));
    all
}

fn at(dir: Ino, name: &[u8]) -> Name<'_> {
    Name { dir, name }
}

fn of_names(reserve: &Reserve) -> Vec<Op<'static>> {
    let inos = template().inos;
    let own = |name| at(inos.own, name);
    let node = (&NewNode::file(0o644)).into();
    let link = (&NewNode::symlink(b"own/file").unwrap()).into();
    let mut objects = reserve.objects(Of::MFile);
    let chosen = objects.next();
    let remove = |name, which| Op::Remove {
        at: own(name),
        which,
        holds: false,
    };
    let rename = |from, to, flags| Op::Rename {
        from: own(from),
        to: at(inos.shared, to),
        flags,
        holds: true,
    };
    let put = |name, data, condition| Op::Put {
        at: own(name),
        mode: 0o600,
        data,
        object: None,
        condition,
    };
    let made = |name, node, object| Op::Make {
        at: own(name),
        node,
        object,
    };
    vec![
        made(b"new", node, None),
        made(b"chosen", node, chosen),
        made(b"symlink", link, objects.next()),
        Op::Tmpfile {
            dir: inos.own,
            mode: 0o600,
            object: objects.next(),
        },
        Op::Link {
            ino: inos.file,
            at: own(b"again"),
        },
        Op::Look { at: own(b"again") },
        rename(b"again", b"moved", RenameFlags::NO_REPLACE),
        rename(b"new", b"moved", RenameFlags::empty()),
        rename(b"chosen", b"moved", RenameFlags::EXCHANGE),
        remove(b"symlink", Removal::Unlink),
        remove(b"dir", Removal::Rmdir),
        put(b"key", Data::Bytes(b"value"), Condition::Absent),
        put(b"key", Data::Bytes(&[3; 5000]), Condition::Is(b"value")),
        put(b"key", Data::Bytes(b""), Condition::Always),
    ]
}

fn of_inodes(reserve: &Reserve) -> Vec<Op<'static>> {
    let ino = template().inos.file;
    let name = b"user.name".as_slice();
    let set = SetAttr {
        perm: Some(0o640),
        size: Some(3000),
        mtime: Some(SetTime::At(Timestamp(-5))),
        ..SetAttr::default()
    };
    let write = |off, data| Op::Write { ino, off, data };
    let allocate = |kind, off, len| Op::Allocate {
        ino,
        kind,
        off,
        len,
    };
    let mut all = vec![
        Op::SetAttr { ino, set },
        Op::Open {
            ino,
            flags: OpenFlags::READ | OpenFlags::WRITE,
        },
        write(9, Data::Bytes(b"contents")),
        write(1 << 30, Data::Bytes(b"far away")),
        allocate(Fallocate::Allocate { keep_size: true }, 8000, 9000),
        allocate(Fallocate::PunchHole, 4096, 5000),
        allocate(Fallocate::ZeroRange { keep_size: false }, 1, 20_000),
        Op::SetXattr {
            ino,
            name,
            value: b"value",
            mode: XattrMode::Set,
        },
        Op::RemoveXattr { ino, name },
        Op::Access { ino },
        Op::Touch { ino },
        Op::Hold { ino },
        Op::Release { ino, count: 1 },
    ];
    let pages: Vec<u64> = reserve.pages().take(2).collect();
    if let [one, two] = pages[..] {
        let pages = vec![one, two];
        let len = 8192;
        all.insert(3, write(1 << 20, Data::Stored { len, pages }));
    }
    all
}

fn reads() -> Vec<Read<'static>> {
    let inos = template().inos;
    let ino = inos.file;
    let name = b"user.secret".as_slice();
    let list = |dir, with_attributes| Read::List {
        dir,
        after: Cookie(0),
        bytes: 1000,
        with_attributes,
    };
    let value = |at| Read::Value {
        at,
        off: 1,
        len: 4999,
    };
    let bytes = |ino| Read::Read {
        ino,
        off: 0,
        len: 5000,
    };
    let seek = |kind| Read::Seek { ino, off: 1, kind };
    vec![
        Read::Lookup(at(Ino::ROOT, b"hidden")),
        Read::Lookup(at(inos.shared, b"foreign")),
        Read::GetAttr(ino),
        list(inos.own, true),
        list(Ino::ROOT, false),
        Read::ReadLink(inos.link),
        bytes(ino),
        value(at(inos.own, b"file")),
        seek(SeekKind::Data),
        seek(SeekKind::Hole),
        Read::ListXattr(ino),
        Read::StatFs,
        Read::ByNumber(inos.foreign),
        // The others fail.
        list(inos.hidden, true),
        bytes(inos.foreign),
        value(at(inos.shared, b"foreign")),
        Read::GetXattr {
            ino: inos.foreign,
            name,
        },
    ]
}

fn operation(op: Op<'_>) -> Operation<'_> {
    let time = Timestamp(1_700_000_000_000_000_000);
    let caller = None;
    Operation { caller, time, op }
}

fn batch(all: &[Op<'_>]) -> Vec<u8> {
    let mut batch = Batch::default();
    for op in all {
        batch.push(&operation(op.clone()));
    }
    message(Kind::Batch, batch.bytes())
}

/// Messages to the lock service: two that lock all, also a file with a second name, and some others.
fn locks() -> Vec<Vec<u8>> {
    let lock = LockId(template().root);
    let file = LockId(template().inos.file.0);
    let of = |lock, mode, uses| Ask::Request {
        lock,
        mode,
        age: Age::default(),
        uses,
    };
    let request = |mode, uses| of(lock, mode, uses);
    let shared = Mode::tree(Access::Shared);
    let grant = GrantNo(3);
    let mode = Mode::intent(Access::Shared);
    let all = [
        request(Mode::tree(Access::Exclusive), Vec::new()),
        of(file, Mode::explicit(Access::Exclusive), Vec::new()),
        request(shared, vec![(lock, shared), (LockId(64), shared)]),
        Ask::Convert { lock, grant, mode },
        Ask::Release { lock, grant },
        Ask::Renew,
        Ask::Begin,
    ];
    let lock = |ask| message(Kind::Lock, &ops::encode(ask));
    all.iter().map(lock).collect()
}

/// A message as it is on the wire.
fn raw() -> Vec<u8> {
    let call = ops::encode(&Call::Read {
        caller: Some(Caller::from(&Ctx::root())),
        read: Read::StatFs,
    });
    let request = Request::Call(Bytes::new(&call));
    message(Kind::Raw, &ops::encode(&Up::Ask { number: 1, request }))
}

/// Conversations of a client that has locked all, and has a reserve.
fn of_batches(class: u8) -> Vec<Vec<u8>> {
    let all = operations(reserve());
    let mut begin = locks()[..2].to_vec();
    begin.push(message(Kind::Reserve, &RESERVED));
    let with = |more: &[Vec<u8>]| conversation(class, &[&begin[..], more].concat());
    let mut inputs: Vec<_> = all.chunks(1).map(|one| with(&[batch(one)])).collect();
    inputs.push(with(&[batch(&all)]));
    inputs.push(with(&locks()[2..]));
    inputs
}

fn of_calls() -> Vec<Vec<u8>> {
    let change = |op| Call::Change(operation(op));
    let caller = None;
    let read = |read| Call::Read {
        caller: caller.clone(),
        read,
    };
    let mut all: Vec<_> = operations(&Reserve::default())
        .into_iter()
        .map(change)
        .collect();
    let reads: Vec<_> = reads().into_iter().map(read).collect();
    // The file must be open.
    let opened = all.iter().position(|call| is_open(call)).unwrap();
    all.splice(opened + 1..opened + 1, reads);
    let all: Vec<_> = all
        .iter()
        .map(|call| message(Kind::Call, &ops::encode(call)))
        .collect();
    let open = all[opened].clone();
    let alone = |one: &Vec<u8>| conversation(REMOTE, &[open.clone(), one.clone()]);
    let mut inputs: Vec<_> = all.iter().map(alone).collect();
    inputs.push(conversation(REMOTE, &all));
    inputs
}

fn is_open(call: &Call<'_>) -> bool {
    matches!(call, Call::Change(operation) if matches!(operation.op, Op::Open { .. }))
}

/// All of them.
pub(super) fn all() -> Vec<Vec<u8>> {
    let mut all = of_batches(TRUSTED);
    all.extend(of_batches(READER));
    all.extend(of_calls());
    all.push(conversation(REMOTE, &[raw()]));
    all
}

fn answers(input: &[u8]) -> Vec<Result<Vec<u8>, String>> {
    let mut found = Vec::new();
    let bytes = converse(input);
    let mut rest = &bytes[..];
    while let Some((head, next)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let (frame, next) = next.split_at(len_of(*head).unwrap());
        if let Down::Reply { result, .. } = decode(frame).unwrap() {
            found.push(result.map(|bytes| bytes.into_vec()));
        }
        rest = next;
    }
    found
}

/// The pages and headers that the first client of the image gets.
fn reserve() -> &'static Reserve {
    static RESERVE: OnceLock<Reserve> = OnceLock::new();
    RESERVE.get_or_init(|| {
        let asks = conversation(TRUSTED, &[message(Kind::Reserve, &RESERVED)]);
        let reply = answers(&asks).remove(0).unwrap();
        ops::decode(&reply).unwrap()
    })
}

/// The operations of the seeds reach what they are meant for.
pub(super) fn accepted() {
    if !rustix::process::geteuid().is_root() {
        return skip::test("needs root, for clients of other users");
    }
    for class in [TRUSTED, READER] {
        let inputs = of_batches(class);
        let replies = answers(&inputs[inputs.len() - 2]);
        let answers: Answers = ops::decode(replies[1].as_ref().unwrap()).unwrap();
        let refused: Vec<_> = answers.refused.iter().map(|one| &one.why).collect();
        assert_eq!(answers.count as usize, operations(reserve()).len());
        // Only trusted clients store contents, touch files.
        let expected = if class == TRUSTED { 0 } else { 2 };
        assert_eq!(refused.len(), expected, "{refused:?}");
    }
    let inputs = of_calls();
    let replies = answers(inputs.last().unwrap());
    let outcome = |reply: &Result<Vec<u8>, String>| ops::decode(reply.as_ref().unwrap()).unwrap();
    let outcomes: Vec<Outcome> = replies.iter().map(outcome).collect();
    let failed: Vec<_> = outcomes
        .iter()
        .filter_map(|one| one.as_ref().err())
        .collect();
    // Four reads of the other user's, and a touch.
    assert_eq!(failed, [&13, &9, &13, &13, &1]);
}
