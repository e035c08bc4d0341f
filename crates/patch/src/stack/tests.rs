use super::layers::MIN_CACHE;
use super::*;
use crate::{Durable, journal};
use medium::block::{Direct, Io};
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn each_mode_has_its_stack() {
    let text = |mode| Stack::new("ext2", mode).to_string();
    assert_eq!(text(Mode::SoftUpdates), "uhfs > ext2 > cache(256M) > disk");
    assert_eq!(
        text(Mode::Async),
        "uhfs > ext2 > async > cache(256M) > disk"
    );
    assert_eq!(
        text(Mode::JournalOrdered),
        "uhfs > ext2 > journal(ordered, internal) > cache(256M) > disk"
    );
    for mode in Mode::ALL {
        let stack: Stack = text(mode).parse().unwrap();
        assert_eq!((&stack, stack.mode()), (&Stack::new("ext2", mode), mode));
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
}

#[test]
fn options_have_units() {
    let stack: Stack = "uhfs>ext2>journal(full,external=\"/log \\\"1\\\"\",commit=100ms) > \
         cache(64M, dirty=16M, wave=8, interval=never, durable=flush, optimise=hard) > \
         delay(ssd) > disk(io=pwrite, direct=off, unsafe-no-flush, /a/b)"
        .parse()
        .unwrap();
    let journal = stack.journal().unwrap();
    assert_eq!(journal.log, LogLocation::External("/log \"1\"".into()));
    assert_eq!(journal.commit, Duration::from_millis(100));
    let options = stack.cache().options(4096);
    assert_eq!((options.blocks, options.dirty_limit), (16384, 4096));
    assert_eq!((options.wave, options.interval), (8, None));
    assert_eq!(options.durable, Durable::Flush);
    assert!(options.optimise.hard && !options.optimise.overlap_merge);
    let [.., Layer::DelayLayer(delay), Layer::DiskLayer(disk)] = stack.layers()[..] else {
        panic!("{stack}");
    };
    assert_eq!(delay.like, Delay::Ssd);
    assert_eq!(disk.options.io, Io::Pwrite);
    assert_eq!(disk.options.direct, Direct::Off);
    assert!(disk.options.unsafe_no_flush);
    assert_eq!(disk.path.as_deref(), Some(Path::new("/a/b")));
    let again: Stack = stack.to_string().parse().unwrap();
    assert_eq!(again, stack);
}

#[test]
fn several_devices_stand_in_brackets() {
    let text = "uhfs > ext2 > trace > trace > journal(full, log=1) > trace > cache(256M) > \
                [delay(ssd) > disk, disk(/log)]";
    let stack: Stack = text.parse().unwrap();
    assert_eq!(stack.to_string(), text);
    assert_eq!((stack.mode(), stack.log_device()), (Mode::Journal, Some(1)));
    let one: Stack = "uhfs > ext2 > cache > [disk]".parse().unwrap();
    assert_eq!(one, Stack::new("ext2", Mode::SoftUpdates));
    assert_eq!(one.log_device(), None);
    let external: Stack = "uhfs > ext2 > journal(external=/l) > cache > disk"
        .parse()
        .unwrap();
    assert_eq!(external.log_device(), Some(1));
}

/// A text, part of its error, and the text from the place on that the caret shows.
const WRONG: &[(&str, &str, &str)] = &[
    ("", "expected the name of a layer", ""),
    (
        "ext2 > cache > disk",
        "uhfs > FORMAT",
        "ext2 > cache > disk",
    ),
    ("uhfs", "the name of a format", ""),
    (
        "uhfs > cache > disk",
        "the name of a format",
        "cache > disk",
    ),
    ("uhfs > ext2", "ext2 stands on a store", ""),
    (
        "uhfs > ext2 > disk > cache",
        "ext2 cannot stand on disk",
        "disk > cache",
    ),
    (
        "uhfs > ext2 > cache > delay > disk",
        "disk|ssd|sata-ssd is missing",
        "delay > disk",
    ),
    (
        "uhfs > ext2 > cache > delay(tape) > disk",
        "one of disk, ssd",
        "tape) > disk",
    ),
    (
        "uhfs > ext2 > log > cache > disk",
        "no layer 'log'; ext2 can stand on trace",
        "log > cache > disk",
    ),
    (
        "uhfs > ext2 > cache",
        "cache stands on a device: '> ' and one of delay",
        "",
    ),
    (
        "uhfs > ext2 > cache > disk > disk",
        "disk stands on nothing",
        "disk",
    ),
    (
        "uhfs > ext2 > cache > disk > [disk]",
        "disk stands on nothing",
        "[disk]",
    ),
    (
        "uhfs > ext2 > cache > cache > disk",
        "cache cannot stand on cache",
        "cache > disk",
    ),
    (
        "uhfs > ext2 > journal > async > cache > disk",
        "it needs an ordered store",
        "async > cache > disk",
    ),
    (
        "uhfs > ext2 > journal > trace > journal > cache > disk",
        "trace cannot stand on journal",
        "journal > cache > disk",
    ),
    (
        "uhfs > ext2 > trace > [cache > disk, cache > disk]",
        "not on several",
        "[cache > disk, cache > disk]",
    ),
    (
        "uhfs > ext2 > journal(half) > cache > disk",
        "metadata|ordered|full",
        "half) > cache > disk",
    ),
    (
        "uhfs > ext2 > journal(commit=soon) > cache > disk",
        "commit: 'soon' is not a time",
        "soon) > cache > disk",
    ),
    (
        "uhfs > ext2 > verify > journal > cache > disk",
        "verify cannot stand on journal",
        "journal > cache > disk",
    ),
    (
        "uhfs > ext2 > verify(every=x) > cache > disk",
        "every: 'x' is not a number",
        "x) > cache > disk",
    ),
    (
        "uhfs > ext2 > cache > partition > disk",
        "partition: NUMBER is missing",
        "partition > disk",
    ),
    (
        "uhfs > ext2 > cache > partition(0) > disk",
        "'0' is not the number of a partition",
        "0) > disk",
    ),
    (
        "uhfs > ext2 > journal(log=1) > cache > disk",
        "only device 0",
        "journal(log=1) > cache > disk",
    ),
    (
        "uhfs > ext2 > journal(log=2) > cache > [disk, disk]",
        "numbers 0 to 1",
        "journal(log=2) > cache > [disk, disk]",
    ),
    (
        "uhfs > ext2 > cache(size=1M) > disk",
        "cache: the option 'size=1M' is unknown",
        "size=1M) > disk",
    ),
    (
        "uhfs > ext2 > cache(1M) > disk",
        "at least 4M",
        "cache(1M) > disk",
    ),
    (
        "uhfs > ext2 > cache(8M, dirty=9M) > disk",
        "at least 4M",
        "cache(8M, dirty=9M) > disk",
    ),
    (
        "uhfs > ext2 > cache(99999999T) > disk",
        "not a size",
        "99999999T) > disk",
    ),
    (
        "uhfs > ext2 > cache(durable=maybe) > disk",
        "auto, flush, fua, unsafe",
        "maybe) > disk",
    ),
    (
        "uhfs > ext2 > cache(8M > disk",
        "',' or ')', found '>'",
        "> disk",
    ),
    (
        "uhfs > ext2 > cache > disk(fast)",
        "unsafe-no-flush",
        "fast)",
    ),
    (
        "uhfs > ext2(4K) > cache > disk",
        "ext2: the option '4K'",
        "4K) > cache > disk",
    ),
    (
        "uhfs > ext2 > cache > \"disk",
        "this quote is not closed",
        "\"disk",
    ),
    (
        "uhfs > ext2 > cache > disk disk",
        "expected '>' or the end, found 'disk'",
        "disk",
    ),
    (
        "uhfs > ext2 > cache > [disk; disk]",
        "expected '>', ',' or ']', found 'disk'",
        "disk]",
    ),
    (
        "uhfs > ext2 > cache > [disk, disk",
        "expected '>', ',' or ']'",
        "",
    ),
];

#[test]
fn errors_show_the_place_and_say_what_is_known() {
    for &(text, known, rest) in WRONG {
        let error = text.parse::<Stack>().unwrap_err();
        assert!(error.what().contains(known), "{text}: {error}");
        assert_eq!(&text[error.at()..], rest, "{error}");
        let shown = error.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        let [_, line, caret] = lines[..] else {
            panic!("three lines: {shown}");
        };
        assert_eq!(line[2..], *text);
        assert_eq!(caret.find('^'), Some(2 + error.at()), "{shown}");
    }
    let error = "fast".parse::<Mode>().unwrap_err().to_string();
    assert!(
        error.ends_with("journal-metadata, journal-ordered, journal"),
        "{error}"
    );
}

#[test]
fn deep_brackets_are_refused() {
    let deep = format!("uhfs > ext2 > {}", "cache > [".repeat(100_000));
    let error = deep.parse::<Stack>().unwrap_err();
    assert!(
        error.what().contains("too many brackets"),
        "{}",
        error.what()
    );
}

#[test]
fn each_layer_has_a_help_text_and_a_name_of_its_own() {
    for kind in KINDS {
        assert!(!kind.about.is_empty(), "{}", kind.name);
        assert!(
            (kind.options)()
                .iter()
                .all(|(form, help)| !form.is_empty() && !help.is_empty())
        );
        let same = KINDS.iter().filter(|other| other.name == kind.name);
        assert_eq!(same.count(), 1, "{}", kind.name);
    }
}

fn journals() -> impl Strategy<Value = Layer> {
    let modes = [
        journal::Mode::Full,
        journal::Mode::Ordered,
        journal::Mode::Metadata,
    ];
    let log = prop_oneof![
        Just(LogLocation::Internal),
        ".+".prop_map(|path| LogLocation::External(path.into())),
        Just(LogLocation::Device(1)),
    ];
    let time = (1..100_000u64).prop_map(Duration::from_millis);
    (prop::sample::select(modes.to_vec()), log, time)
        .prop_map(|(what, log, commit)| JournalLayer { what, log, commit }.into())
}

fn caches() -> impl Strategy<Value = Layer> {
    let sizes = (MIN_CACHE..1 << 40)
        .prop_flat_map(|bytes| (Just(bytes), prop::option::of(MIN_CACHE / 2..bytes)));
    let interval = prop::option::of((1..100_000u64).prop_map(Duration::from_millis));
    let durable = prop::sample::select(vec![
        Durable::Auto,
        Durable::Flush,
        Durable::ForceUnitAccess,
        Durable::Unsafe,
    ]);
    let optimise = prop::sample::select(Optimised::ALL.to_vec());
    (sizes, 1..9999usize, durable, interval, optimise).prop_map(
        |((bytes, dirty_bytes), wave, durable, interval, optimise)| {
            CacheLayer {
                bytes,
                dirty_bytes,
                wave,
                durable,
                interval,
                optimise,
            }
            .into()
        },
    )
}

/// A device: layers down to a disk.
fn devices() -> impl Strategy<Value = Layers> {
    let delay = prop::sample::select(vec![Delay::Disk, Delay::Ssd]);
    let sector = prop::sample::select(vec![512, 4096]);
    let above = prop_oneof![
        delay.prop_map(|like| Layer::from(DelayLayer { like })),
        (1..200u32, sector).prop_map(|(number, sector)| PartitionLayer { number, sector }.into()),
    ];
    let io = prop::sample::select(vec![Io::Auto, Io::Uring, Io::Pwrite]);
    let direct = prop::sample::select(vec![Direct::Auto, Direct::On, Direct::Off]);
    let path = prop::option::of(".*/.*".prop_map(std::path::PathBuf::from));
    let disk = (path, io, direct, any::<bool>()).prop_map(|(path, io, direct, unsafe_no_flush)| {
        let mut disk = DiskLayer {
            path,
            ..DiskLayer::default()
        };
        (disk.options.io, disk.options.direct) = (io, direct);
        disk.options.unsafe_no_flush = unsafe_no_flush;
        Layer::from(disk)
    });
    (prop::collection::vec(above, 0..3), disk).prop_map(|(mut list, disk)| {
        list.push(disk);
        let below = Vec::new();
        Layers { list, below }
    })
}

fn stacks() -> impl Strategy<Value = Stack> {
    let transparent = || prop::collection::vec(Just(Layer::from(TraceLayer)), 0..3);
    let order = prop_oneof![
        Just(None),
        Just(Some(Layer::from(AsyncLayer))),
        journals().prop_map(Some)
    ];
    let ordered = prop_oneof![
        Just(Layer::from(TraceLayer)),
        (0..1000u64).prop_map(|every| VerifyLayer { every }.into()),
    ];
    let above = (transparent(), order, prop::collection::vec(ordered, 0..3));
    let below = prop::collection::vec(devices(), 2..4);
    (above, caches(), below, any::<bool>()).prop_map(
        |((mut list, order, rest), cache, mut below, is_one)| {
            list.extend(order.into_iter().chain(rest));
            list.push(cache);
            let needs_two = |layer: &Layer| match layer {
                Layer::JournalLayer(journal) => journal.log == LogLocation::Device(1),
                _ => false,
            };
            if is_one && !list.iter().any(needs_two) {
                list.extend(below.remove(0).list);
                below.clear();
            }
            Stack {
                format: "ext2".into(),
                layers: Layers { list, below },
            }
        },
    )
}

proptest! {
    #[test]
    fn a_stack_parses_from_its_text(stack in stacks()) {
        prop_assert_eq!(stack.to_string().parse(), Ok(stack));
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in ".*") {
        if let Err(error) = text.parse::<Stack>() {
            prop_assert!(error.at() <= text.len());
            prop_assert_eq!(error.to_string().lines().count(), 3);
        }
    }

    #[test]
    fn words_in_any_order_are_parsed_without_a_panic(
        words in prop::collection::vec(prop::sample::select(vec![
            "uhfs", "ext2", "trace", "async", "journal", "cache", "delay", "disk", "(", ")", "[",
            "]", ",", ">", ">", ">", "=", "\"", "\\", "full", "log", "1", "ssd", "8M", "é",
        ]), 0..30),
        lead in any::<bool>(),
    ) {
        let lead = if lead { "uhfs > ext2 > " } else { "" };
        let text = format!("{lead}{}", words.join(" "));
        match text.parse::<Stack>() {
            Ok(stack) => prop_assert_eq!(stack.to_string().parse(), Ok(stack)),
            Err(error) => prop_assert!(text.is_char_boundary(error.at())),
        }
    }
}
