use super::*;
use proptest::prelude::*;

#[test]
fn the_usual_stacks() {
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
         delay(ssd) > disk(io=pwrite, direct=off, unsafe-no-flush)"
        .parse()
        .unwrap();
    let Module::Journal(journal) = &stack.module else {
        panic!("{stack}");
    };
    assert_eq!(journal.log, Log::External("/log \"1\"".into()));
    assert_eq!(journal.commit, Duration::from_millis(100));
    let options = stack.cache.options(4096);
    assert_eq!((options.blocks, options.dirty_limit), (16384, 4096));
    assert_eq!((options.wave, options.interval), (8, None));
    assert_eq!(options.durable, Durable::Flush);
    assert!(options.optimise.hard && !options.optimise.overlap_merge);
    assert_eq!(stack.delay, Some(Delay::Ssd));
    assert_eq!(stack.disk.io, Io::Pwrite);
    assert!(stack.disk.unsafe_no_flush);
    let again: Stack = stack.to_string().parse().unwrap();
    assert_eq!(again, stack);
}

#[test]
fn errors_say_what_is_known() {
    let error = |text: &str| text.parse::<Stack>().unwrap_err().to_string();
    for (text, known) in [
        ("", "the name of a module is missing"),
        ("ext2 > cache > disk", "uhfs > FORMAT"),
        ("uhfs > ext2 > disk > cache", "uhfs > FORMAT"),
        ("uhfs > ext2 > cache > delay > disk", "one of disk, ssd"),
        ("uhfs > ext2 > cache > delay(tape) > disk", "disk, ssd"),
        ("uhfs > ext2 > log > cache > disk", "trace, async, journal"),
        (
            "uhfs > ext2 > journal(half) > cache > disk",
            "metadata, ordered, full",
        ),
        (
            "uhfs > ext2 > journal(commit=soon) > cache > disk",
            "commit: 'soon' is not a time",
        ),
        (
            "uhfs > ext2 > cache(size=1M) > disk",
            "cache: the option 'size=1M' is unknown",
        ),
        ("uhfs > ext2 > cache(1M) > disk", "at least 4M"),
        ("uhfs > ext2 > cache(8M, dirty=9M) > disk", "at least 4M"),
        ("uhfs > ext2 > cache(99999999T) > disk", "not a size"),
        (
            "uhfs > ext2 > cache(durable=maybe) > disk",
            "auto, flush, fua, unsafe",
        ),
        ("uhfs > ext2 > cache(8M > disk", "',' or ')'"),
        ("uhfs > ext2 > cache > disk(fast)", "unsafe-no-flush"),
        ("uhfs > ext2(4K) > cache > disk", "ext2: the option '4K'"),
        ("uhfs > ext2 > cache > \"disk", "a quote is not closed"),
        (
            "uhfs > ext2 > cache > disk disk",
            "'>' is expected where 'disk' stands",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(known), "{text}: {error}");
    }
    let error = "fast".parse::<Mode>().unwrap_err().to_string();
    assert!(
        error.ends_with("journal-metadata, journal-ordered, journal"),
        "{error}"
    );
}

fn some<T: Clone + std::fmt::Debug + 'static>(
    known: &'static [(&'static str, T)],
) -> impl Strategy<Value = T> {
    prop::sample::select(known).prop_map(|(_, value)| value)
}

fn modules() -> impl Strategy<Value = Module> {
    let log = prop_oneof![
        Just(Log::Internal),
        ".+".prop_map(|path| Log::External(path.into()))
    ];
    let time = (1..100_000u64).prop_map(Duration::from_millis);
    let journal = (some(JOURNALED), log, time)
        .prop_map(|(what, log, commit)| Module::Journal(JournalModule { what, log, commit }));
    prop_oneof![Just(Module::None), Just(Module::Async), journal]
}

fn caches() -> impl Strategy<Value = CacheModule> {
    let sizes = (MIN_CACHE..1 << 40)
        .prop_flat_map(|bytes| (Just(bytes), prop::option::of(MIN_CACHE / 2..bytes)));
    let interval = prop::option::of((1..100_000u64).prop_map(Duration::from_millis));
    (sizes, 1..9999usize, some(DURABLE), interval, some(OPTIMISE)).prop_map(
        |((bytes, dirty_bytes), wave, durable, interval, optimise)| CacheModule {
            bytes,
            dirty_bytes,
            wave,
            durable,
            interval,
            optimise,
        },
    )
}

proptest! {
    #[test]
    fn text_and_value_are_the_same(
        module in modules(),
        cache in caches(),
        (io, direct, unsafe_no_flush) in (some(IO), some(DIRECT), any::<bool>()),
        trace in any::<bool>(),
        delay in proptest::option::of(some(DELAY)),
    ) {
        let disk = DeviceOptions { io, direct, unsafe_no_flush, ..DeviceOptions::default() };
        let stack = Stack { format: "ext2".into(), trace, module, cache, delay, disk };
        prop_assert_eq!(stack.to_string().parse(), Ok(stack));
    }

    #[test]
    fn nonsense_is_refused_without_a_panic(text in ".*") {
        let _ = text.parse::<Stack>();
    }
}
