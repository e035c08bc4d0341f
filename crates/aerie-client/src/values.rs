//! Values of a client that maps the memory.

use crate::mapped::{Mapped, Overlay};
use crate::memory::Memory;
use crate::plan::Need;
use aerie_proto::locks::Access;
use aerie_proto::ops::Condition;
use medium::SharedBytes;
use vfs::{Ctx, Errno, Name, Result};

type Value<'a, P> = pxfs::Value<'a, Overlay<P>>;

fn copy<P: Memory>(value: &Value<'_, P>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; value.len() as usize];
    value.read(0, &mut bytes)?;
    Ok(bytes)
}

/// A value under its lock.
enum Found {
    /// In the mapped memory: byte offset, and length.
    InPlace(u64, usize),
    Copied(Vec<u8>),
}

impl<P: Memory> Mapped<P> {
    pub(crate) fn put(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        mode: u32,
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<()> {
        let put = self.change(Need::Put(at), |fs| fs.put(cx, at, mode, value, condition));
        self.or_remote(cx, put, |remote| remote.put(at, mode, value, condition))
    }

    pub(crate) fn get(&self, cx: &Ctx, at: Name<'_>) -> Result<Vec<u8>> {
        let got = self.read_value(cx, at, |value| copy(&value));
        self.or_remote(cx, got, |remote| remote.get(at))
    }

    /// Copies as much of a value as `buf` takes. Returns the length of the value.
    pub(crate) fn get_into(&self, cx: &Ctx, at: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        let got = self.read_value(cx, at, |value| {
            value.read(0, buf)?;
            Ok(value.len() as usize)
        });
        self.or_remote(cx, got, |remote| remote.get_into(at, buf))
    }

    fn read_value<T>(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        mut read: impl FnMut(Value<'_, P>) -> Result<T>,
    ) -> Result<T> {
        let found = self.looked_up(at.dir, |may_read| {
            self.fs()
                .value(cx, at, |value| match may_read(value.ino()) {
                    true => read(value),
                    false => Err(Errno::AGAIN),
                })
        });
        found.unwrap_or_else(|| self.call(Need::Value(at), |fs| fs.value(cx, at, read)))
    }

    /// Runs `run` on a value, which stays locked meanwhile, unless the service has read it. Other calls of this
    /// client can change something else meanwhile.
    pub(crate) fn with_value<T>(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        run: impl FnOnce(SharedBytes<'_>) -> T,
    ) -> Result<T> {
        let access = match self.holds(&Need::Put(at)) {
            true => Access::Exclusive,
            false => Access::Shared,
        };
        let mut run = Some(run);
        let borrowed = self.guarded(Need::Borrow(at, access), |fs| {
            let found = fs.value(cx, at, |value| {
                let len = value.len() as usize;
                if let Some(place) = value.place().filter(|_| !P::IS_PROTECTED) {
                    return Ok(Found::InPlace(place, len));
                }
                copy(&value).map(Found::Copied)
            })?;
            let run = run.take().ok_or(Errno::BUSY)?;
            match found {
                Found::Copied(bytes) => Ok(run(bytes[..].into())),
                Found::InPlace(place, len) => {
                    let memory = fs.memory().base();
                    let bytes = memory.shared_bytes(place, len);
                    let result = run(bytes.map_err(|_| Errno::UCLEAN)?);
                    // A page that was lost reads as zeros.
                    memory.load(place / 8 * 8).map_err(|_| Errno::IO)?;
                    Ok(result)
                }
            }
        });
        match run {
            Some(run) => self.or_remote(cx, borrowed, |remote| {
                remote.get(at).map(|value| run(value[..].into()))
            }),
            None => borrowed,
        }
    }
}
