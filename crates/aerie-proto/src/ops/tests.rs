//! Encodings of operations and batches.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use vfs::SetTime;

fn object(kind: u64) -> ObjectId {
    ObjectId::from_bits(7 << 12 | kind).unwrap()
}

/// An operation of each kind on names.
fn all() -> Vec<Op<'static>> {
    let ino = Ino(object(2).to_bits());
    let name = b"name".as_slice();
    let at = Name {
        dir: Ino::ROOT,
        name,
    };
    let node = Node {
        kind: FileType::Symlink,
        mode: 0o777,
        rdev: 0,
        target: b"target",
    };
    let object = Some(object(2));
    vec![
        Op::Make { at, node, object },
        Op::Tmpfile {
            dir: Ino::ROOT,
            mode: 0o600,
            object: None,
        },
        Op::Link { ino, at },
        Op::Remove {
            at,
            which: Removal::Unlink,
            holds: true,
        },
        Op::Rename {
            from: at,
            to: at,
            flags: RenameFlags::EXCHANGE,
            holds: false,
        },
        Op::Look { at },
        Op::Put {
            at,
            mode: 0o600,
            data: Data::Bytes(b"value"),
            object,
            condition: Condition::Is(b"old"),
        },
    ]
}

/// Those on an inode.
fn all_of_inodes() -> Vec<Op<'static>> {
    let ino = Ino(object(2).to_bits());
    let name = b"name".as_slice();
    let set = SetAttr {
        perm: Some(0o600),
        mtime: Some(SetTime::At(Timestamp(-5))),
        ..SetAttr::default()
    };
    let pages = vec![4096, 1 << 40];
    vec![
        Op::SetAttr { ino, set },
        Op::Open {
            ino,
            flags: OpenFlags::READ,
        },
        Op::Write {
            ino,
            off: 9,
            data: Data::Bytes(b"contents"),
        },
        Op::Write {
            ino,
            off: 9,
            data: Data::Stored { len: 5000, pages },
        },
        Op::Allocate {
            ino,
            kind: Fallocate::PunchHole,
            off: 1,
            len: 2,
        },
        Op::SetXattr {
            ino,
            name,
            value: b"",
            mode: XattrMode::Create,
        },
        Op::RemoveXattr { ino, name },
        Op::Access { ino },
        Op::Touch { ino },
        Op::Hold { ino },
        Op::Release { ino, count: 3 },
        Op::Return { pages: vec![4096] },
    ]
}

fn batch() -> (Vec<Operation<'static>>, Batch) {
    let callers = [None, Some(Caller::from(&Ctx::user(7, 8)))];
    let caller = |n: usize| callers[n % 2].clone();
    let time = Timestamp(1_700_000_000_000_000_000);
    let with_caller = |(n, op)| Operation {
        caller: caller(n),
        time,
        op,
    };
    let wanted: Vec<_> = all()
        .into_iter()
        .chain(all_of_inodes())
        .enumerate()
        .map(with_caller)
        .collect();
    let mut batch = Batch::default();
    wanted.iter().for_each(|operation| batch.push(operation));
    (wanted, batch)
}

#[test]
fn a_batch_is_read_as_it_was_built() {
    let (wanted, batch) = batch();
    let found: Vec<_> = operations(batch.bytes()).map(Result::unwrap).collect();
    assert_eq!(found, wanted);
    assert_eq!(batch.count() as usize, wanted.len());
}

#[test]
fn a_torn_batch_is_read_up_to_its_last_whole_operation() {
    let (wanted, whole) = batch();
    for len in 0..whole.bytes().len() {
        let found: Vec<_> = operations(&whole.bytes()[..len]).collect();
        let good = found.iter().take_while(|one| one.is_ok()).count();
        assert!(
            found
                .iter()
                .map_while(|one| one.as_ref().ok())
                .eq(&wanted[..good])
        );
        assert!(found.len() - good <= 1 && good < wanted.len());
    }
}

#[test]
fn messages_take_all_bytes() {
    let mut bytes = encode(&Reply::Offset(5));
    assert_eq!(decode(&bytes), Ok(Reply::Offset(5)));
    bytes.push(0);
    assert!(decode::<Reply>(&bytes).is_err());
}

/// A list that takes more memory than a client may have of the service.
#[test]
fn lists_have_a_bounded_length() {
    let list = |len: usize| encode(&vec![0u8; len]);
    let groups = |len| [&[1, 1][..], &list(len), &[0, 0]].concat();
    assert!(decode::<Caller>(&groups(crate::LIST_MAX)).is_ok());
    let refused = decode::<Caller>(&groups(crate::LIST_MAX + 1));
    assert!(refused.is_err());
    // The number of the kind, and what comes before the list.
    let stored = |len| [&[1, 0][..], &list(len)].concat();
    assert!(decode::<Data<'_>>(&stored(crate::LIST_MAX)).is_ok());
    assert!(decode::<Data<'_>>(&stored(crate::LIST_MAX + 1)).is_err());
    let returned = encode(&Op::Return { pages: vec![] });
    let returned = |len| [&returned[..1], &list(len)].concat();
    assert!(decode::<Op<'_>>(&returned(crate::LIST_MAX)).is_ok());
    assert!(decode::<Op<'_>>(&returned(crate::LIST_MAX + 1)).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(
        mut bytes in vec(any::<u8>(), 0..400),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        is_damaged in any::<bool>(),
    ) {
        if is_damaged {
            bytes = batch().1.bytes().to_vec();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        prop_assert!(operations(&bytes).count() <= bytes.len());
        let _ = decode::<Call<'_>>(&bytes);
        let _ = decode::<Answers>(&bytes);
    }
}
