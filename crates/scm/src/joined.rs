//! A partition as one memory, which the windows on its classes make together.
//!
//! Guarantees:
//!
//! 1. A load returns what the page had during the load, although its protection may change meanwhile.
//!    So does a read, for each page that it touches.
//! 2. A page that this process may not read is [`MediumError::Denied`]. It stays so until the page has
//!    an identity that the process may read.
//! 3. A store goes to the class that the page has. No one may change the protection of a page during a
//!    store to it: the service changes protection and stores, and others have windows for reading.
//! 4. Loads take no lock after the first use of a class. A class that was denied is not asked for again.

use crate::error::ScmError;
use crate::files::Part;
use crate::format::PAGE_BYTES;
use crate::identity::Identity;
use crate::space::{Source, Window};
use crate::table;
use medium::{MapOptions, MediumError, Pmem, Rule, WORD_BYTES};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Identities whose windows are allocated together.
const PART: usize = 256;
/// Such parts. Pages with higher identities are denied.
const PARTS: usize = 1024;

/// The window on a class; `None` if this process may not read it.
type Slot = OnceLock<Option<Box<Window>>>;

/// A partition as one memory.
pub struct Joined {
    source: Box<dyn Source>,
    options: MapOptions,
    identities: Window,
    pages: u64,
    /// By the numbers of identities.
    windows: Box<[OnceLock<Box<[Slot]>>]>,
    /// The number after the highest identity with a window.
    end: AtomicU32,
    failed: OnceLock<MediumError>,
}

fn unset<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl Joined {
    /// Maps the identity table of a partition of `bytes` bytes; each class is mapped when it is used.
    /// With `options.read_only`, all windows are for reading.
    ///
    /// # Errors
    /// [`ScmError`] of the source, or of the mapping.
    pub fn new(
        source: Box<dyn Source>,
        bytes: u64,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let pages = bytes / PAGE_BYTES;
        Ok(Self {
            identities: Window::identities(&*source, pages, options)?,
            source,
            options: *options,
            pages,
            windows: unset(PARTS),
            end: AtomicU32::new(0),
            failed: OnceLock::new(),
        })
    }

    /// The identity of the page with byte `off`, at this moment.
    ///
    /// # Errors
    /// [`MediumError::OutOfRange`].
    pub fn identity(&self, off: u64) -> Result<Identity, MediumError> {
        match off / PAGE_BYTES < self.pages {
            true => table::identity(self.identities.memory(), off / PAGE_BYTES),
            false => Err(MediumError::OutOfRange { off, len: 1 }),
        }
    }

    /// The window on a class, for the page with byte `off`.
    #[inline]
    fn window(&self, identity: Identity, off: u64) -> Result<&Window, MediumError> {
        let number = identity.raw() as usize;
        let part = self.windows.get(number / PART).and_then(OnceLock::get);
        match part.and_then(|part| part[number % PART].get()) {
            Some(Some(window)) => Ok(window),
            Some(None) => Err(MediumError::Denied { off }),
            None => self.new_window(identity, off),
        }
    }

    #[cold]
    fn new_window(&self, identity: Identity, off: u64) -> Result<&Window, MediumError> {
        let number = identity.raw() as usize;
        let denied = MediumError::Denied { off };
        let part = self.windows.get(number / PART);
        let part = part.filter(|_| identity.is_valid()).ok_or(denied)?;
        let slot = &part.get_or_init(|| unset(PART))[number % PART];
        let window = match Window::new(&*self.source, Part::Class(identity), &self.options) {
            Ok(window) => Some(Box::new(window)),
            Err(ScmError::Denied(_)) => None,
            Err(e) => {
                tracing::warn!("cannot map extents of {identity}: {e}");
                return Err(MediumError::Unreadable { off });
            }
        };
        let window = slot.get_or_init(|| window).as_deref().ok_or(denied)?;
        self.end.fetch_max(identity.raw() + 1, Ordering::AcqRel);
        Ok(window)
    }

    /// Reads bytes of a page, again if its identity has changed meanwhile. A new identity is visible
    /// before the old place is empty. Without another change since then, it was not replaced and
    /// restored in between.
    #[inline]
    fn stable<T>(
        &self,
        off: u64,
        mut read: impl FnMut(&Window) -> Result<T, MediumError>,
    ) -> Result<T, MediumError> {
        let identities = self.identities.memory();
        loop {
            let changes = table::changes(identities, self.pages)?;
            fence(Ordering::Acquire);
            let identity = self.identity(off)?;
            fence(Ordering::Acquire);
            let found = self.window(identity, off).and_then(&mut read);
            fence(Ordering::Acquire);
            let is_same = self.identity(off)? == identity;
            fence(Ordering::Acquire);
            if is_same && table::changes(identities, self.pages)? == changes {
                return found;
            }
        }
    }

    /// Calls `change` for the part of each page: with its window, its offset, and its range of the bytes.
    fn each(&self, off: u64, len: usize, change: impl Fn(&Window, u64, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = off.saturating_add(done as u64);
            let count = (len - done).min((PAGE_BYTES - at % PAGE_BYTES) as usize);
            let window = self.identity(at).and_then(|id| self.window(id, at));
            match window {
                Ok(window) => change(window, at, done..done + count),
                Err(e) => {
                    let _ = self.failed.set(e);
                    return;
                }
            }
            done += count;
        }
    }

    fn all_windows(&self) -> impl Iterator<Item = &Window> {
        let end = self.end.load(Ordering::Acquire) as usize;
        let parts = self.windows.iter().take(end.div_ceil(PART));
        let slots = parts.filter_map(OnceLock::get).flatten();
        slots.filter_map(|slot| slot.get()?.as_deref())
    }
}

impl Pmem for Joined {
    fn len(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.stable(off, |window| window.memory().load(off))
    }

    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        let mut at = off;
        let mut rest = words;
        while !rest.is_empty() {
            let left = (PAGE_BYTES - at % PAGE_BYTES).div_ceil(WORD_BYTES);
            let (part, more) = rest.split_at_mut(rest.len().min(left as usize));
            self.stable(at, |window| window.memory().load_words(at, part))?;
            at = at.saturating_add(part.len() as u64 * WORD_BYTES);
            rest = more;
        }
        Ok(())
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let mut at = off;
        let mut rest = buf;
        while !rest.is_empty() {
            let count = rest.len().min((PAGE_BYTES - at % PAGE_BYTES) as usize);
            let (part, more) = rest.split_at_mut(count);
            self.stable(at, |window| window.memory().read(at, part))?;
            at = at.saturating_add(count as u64);
            rest = more;
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.each(off, bytes.len(), |window, at, part| {
            window.memory().store(at, &bytes[part]);
        });
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.each(off, bytes.len(), |window, at, part| {
            window.memory().store_nt(at, &bytes[part]);
        });
    }

    fn flush(&self, off: u64, len: u64) {
        self.each(off, len as usize, |window, at, part| {
            window.memory().flush(at, part.len() as u64);
        });
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.all_windows()
            .try_for_each(|window| window.memory().fence(rule))?;
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Run, Share};
    use crate::{AccessList, Credentials, Directory, Geometry, Partition, Rights, Store};
    use std::sync::Arc;

    const PAGES: u64 = 64;

    fn identity(group: u32) -> Identity {
        Identity::new(group, Rights::READ).unwrap()
    }

    /// A store with a partition in which all pages have identity 1.
    fn partition() -> (tempfile::TempDir, Arc<Store<Directory>>) {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            pages: PAGES,
            slots: 8,
            only: None,
        };
        let files = Directory::create(dir.path().join("s"), &geometry, &MapOptions::default());
        let store = Store::open(files.unwrap()).unwrap();
        for group in 1..=3 {
            store.set_list(group, AccessList::default()).unwrap();
        }
        store
            .create_partition("p", PAGES, Credentials::own().uid, 0)
            .unwrap();
        let run = Run {
            first: 0,
            pages: PAGES,
        };
        let pages = store.partition("p", &Credentials::own()).unwrap();
        pages.create_extent(run, identity(1)).unwrap();
        (dir, store)
    }

    fn pages(store: &Arc<Store<Directory>>) -> Partition<Directory> {
        store.partition("p", &Credentials::own()).unwrap()
    }

    fn service(store: &Arc<Store<Directory>>) -> Joined {
        let bytes = PAGES * PAGE_BYTES;
        Joined::new(Box::new(pages(store)), bytes, &MapOptions::default()).unwrap()
    }

    /// A process that may not read identity 2.
    struct Reader(Partition<Directory>);

    impl Source for Reader {
        fn share(&self, part: Part) -> Result<(Share, bool), ScmError> {
            match part == Part::Class(identity(2)) {
                true => Err(ScmError::Denied("identity 2".to_owned())),
                false => Ok((self.0.share(part)?, false)),
            }
        }
    }

    fn reader(store: &Arc<Store<Directory>>) -> Joined {
        let bytes = PAGES * PAGE_BYTES;
        let options = MapOptions {
            read_only: true,
            ..MapOptions::default()
        };
        Joined::new(Box::new(Reader(pages(store))), bytes, &options).unwrap()
    }

    fn moved(first: u64) -> Run {
        Run { first, pages: 1 }
    }

    #[test]
    fn stores_and_reads_cross_classes() {
        let (_dir, store) = partition();
        let (memory, reader) = (service(&store), reader(&store));
        pages(&store).protect(moved(1), identity(3)).unwrap();
        let bytes: Vec<u8> = (0..3 * PAGE_BYTES).map(|n| n as u8 | 1).collect();
        memory.store(64, &bytes);
        memory.store_nt(4 * PAGE_BYTES, &bytes);
        memory.flush(64, bytes.len() as u64);
        memory.fence(Rule::DurableBeforeReturn).unwrap();
        for off in [64, 4 * PAGE_BYTES] {
            let mut found = vec![0; bytes.len()];
            reader.read(off, &mut found).unwrap();
            assert!(found == bytes);
        }
        // A page keeps its offset and contents in another class.
        pages(&store).protect(moved(1), identity(1)).unwrap();
        let word = bytes[PAGE_BYTES as usize - 64..].first_chunk().unwrap();
        assert_eq!(reader.load(PAGE_BYTES), Ok(u64::from_le_bytes(*word)));
        let mut words = [0; 16];
        reader.load_words(PAGE_BYTES - 64, &mut words).unwrap();
        for (n, word) in words.into_iter().enumerate() {
            assert_eq!(reader.load(PAGE_BYTES - 64 + n as u64 * 8), Ok(word));
        }
        let end = PAGES * PAGE_BYTES;
        for off in [end - 8, end, 4] {
            assert!(reader.load_words(off, &mut [0; 2]).is_err());
        }
        for off in [end - 4, end, u64::MAX - 3] {
            assert!(reader.read(off, &mut [0; 8]).is_err());
        }
        assert!(memory.load(end).is_err() && memory.load(4).is_err());
        memory.store(end - 4, &[1; 8]);
        assert!(memory.fence(Rule::DurableBeforeReturn).is_err());
    }

    #[test]
    fn pages_of_other_classes_are_denied_until_they_can_be_read() {
        let (_dir, store) = partition();
        let (memory, reader) = (service(&store), reader(&store));
        memory.store_word(2 * PAGE_BYTES + 8, 7);
        assert_eq!(reader.load(2 * PAGE_BYTES + 8), Ok(7));
        pages(&store).protect(moved(2), identity(2)).unwrap();
        let off = 2 * PAGE_BYTES + 8;
        assert_eq!(reader.load(off), Err(MediumError::Denied { off }));
        assert_eq!(memory.load(off), Ok(7));
        let mut two = vec![0; 2 * PAGE_BYTES as usize];
        let denied = reader.read(PAGE_BYTES, &mut two);
        assert!(matches!(denied, Err(MediumError::Denied { .. })));
        pages(&store).free(moved(2)).unwrap();
        assert!(matches!(reader.load(off), Err(MediumError::Denied { .. })));
        pages(&store).create_extent(moved(2), identity(1)).unwrap();
        assert_eq!(reader.load(off), Ok(0));
    }

    #[test]
    fn a_client_joins_the_classes_through_a_passed_connection() {
        let (_dir, store) = partition();
        store.set_list(3, AccessList::of_mode(0, 0, 0o004)).unwrap();
        store.set_access("p", Credentials::own().uid, 3).unwrap();
        pages(&store).protect(moved(1), identity(3)).unwrap();
        service(&store).store_word(PAGE_BYTES, 7);
        let server = crate::Server::without_socket(store.clone()).unwrap();
        let (uid, gid, groups) = (40_000, 40_000, Vec::new());
        let who = Credentials { uid, gid, groups };
        let (connection, _passed) = server.connection(who).unwrap();
        let client = crate::Client::of(connection);
        let memory = client.join("p", &MapOptions::default()).unwrap();
        assert_eq!(memory.load(PAGE_BYTES), Ok(7));
        assert_eq!(memory.load(0), Err(MediumError::Denied { off: 0 }));
        drop(server);
        assert!(client.partitions().is_err());
        assert_eq!(memory.load(PAGE_BYTES), Ok(7));
    }

    #[test]
    fn a_reader_cannot_store() {
        let (_dir, store) = partition();
        let reader = reader(&store);
        reader.load(0).unwrap();
        reader.store_word(0, 7);
        assert!(reader.fence(Rule::DurableBeforeReturn).is_err());
        assert_eq!(service(&store).load(0), Ok(0));
    }

    /// The page is back when the reader looks at its identity again.
    #[test]
    fn a_load_beside_two_moves_is_repeated() {
        let (_dir, store) = partition();
        let (memory, reader) = (service(&store), reader(&store));
        memory.store_word(0, 7);
        let mut loads = Vec::new();
        let loaded = reader.stable(0, |window| {
            let first = loads.is_empty();
            if first {
                pages(&store).protect(moved(0), identity(3)).unwrap();
            }
            let word = window.memory().load(0);
            if first {
                pages(&store).protect(moved(0), identity(1)).unwrap();
            }
            loads.push(word);
            word
        });
        assert_eq!(loaded, Ok(7));
        assert_eq!(loads, [Ok(0), Ok(7)]);
    }

    #[test]
    fn a_load_never_sees_the_hole_of_a_moved_page() {
        let (_dir, store) = partition();
        let (memory, reader) = (service(&store), reader(&store));
        let contents = vec![7; 4 * PAGE_BYTES as usize];
        memory.store(0, &contents);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let pages = pages(&store);
                for n in 0..300 {
                    pages.protect(moved(n % 4), identity(3)).unwrap();
                    pages.protect(moved(n % 4), identity(1)).unwrap();
                }
            });
            let mut found = contents.clone();
            while !mover.is_finished() {
                assert_eq!(reader.load(PAGE_BYTES), Ok(0x0707_0707_0707_0707));
                found.fill(0);
                reader.read(0, &mut found).unwrap();
                assert!(found == contents);
            }
        });
    }
}
