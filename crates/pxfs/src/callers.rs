//! The callers of operations and reads, as the service sees them.
//!
//! A trusted client acts for any user. Another one acts for its own, and may claim that a file which is open permits
//! a call ([`Ctx::checked`]). The claim counts where it gives the user nothing that the user does not have:
//!
//! - the owner opens a file or lists a directory, since the owner may change the mode;
//! - the session cuts a file that it has opened for writing, or lists a directory that it has opened.

use crate::apply::{Run, refused};
use crate::fs::Pxfs;
use crate::seeded::{Bug, hit};
use crate::session::Session;
use aerie_objects::Load;
use aerie_proto::ops::{Caller, Op, Read};
use medium::Pmem;
use vfs::{Ctx, Errno, OpenFlags, SetAttr, perm};

impl<P: Pmem> Pxfs<P> {
    /// The caller of an operation. A client that is not trusted may claim that an open file permits the
    /// operation to its user (`checked`).
    pub(crate) fn caller(&self, session: &Session, caller: Option<&Caller>) -> Run<Ctx> {
        let Some(caller) = caller else {
            return Ok(session.who.ctx());
        };
        let own = &session.who;
        let is_own = caller.checked
            && (caller.uid, caller.gid) == (own.uid, own.gid)
            && (caller.groups.is_empty() || caller.groups == own.groups);
        if !session.is_trusted && is_own {
            return Ok(Ctx {
                checked: true,
                drops_set_id: caller.drops_set_id,
                ..own.ctx()
            });
        }
        if !session.is_trusted && !hit(Bug::AnyCaller) {
            let why = "the client may not act for another user";
            return Err(refused(Errno::PERM, why));
        }
        Ok(Ctx {
            groups: caller.groups.clone(),
            checked: caller.checked,
            drops_set_id: caller.drops_set_id,
            ..Ctx::somewhere(caller.uid, caller.gid)
        })
    }

    /// The caller without a claim that is wrong, or that does not matter. An owner may open a file whatever its
    /// mode says, since the owner may change the mode. A file that is open for writing can be cut.
    pub(crate) fn permitted<M: Load>(
        &self,
        memory: &M,
        session: &Session,
        cx: Ctx,
        op: &Op<'_>,
    ) -> Run<Ctx> {
        if session.is_trusted || !cx.checked || hit(Bug::ClaimBelieved) {
            return Ok(cx);
        }
        let checked = match op {
            Op::Open { ino, .. } => self.inode(memory, *ino)?.attr.uid == cx.uid,
            Op::SetAttr { ino, set } => {
                let inode = self.inode(memory, *ino)?;
                let unchecked = session.who.ctx();
                let perm = perm::perm_after_write(&unchecked, &inode.attr);
                let cut = SetAttr {
                    size: set.size,
                    perm: set.perm.filter(|wanted| *wanted == perm),
                    ..SetAttr::default()
                };
                *set == cut
                    && set.size.is_some()
                    && self
                        .must_be_open(session, inode.object, OpenFlags::WRITE)
                        .is_ok()
            }
            _ => false,
        };
        // The kernel would drop the bits with the truncation that these permit.
        Ok(Ctx {
            checked,
            drops_set_id: cx.drops_set_id || checked,
            ..cx
        })
    }

    /// The caller of a read. A client that is not trusted lists a directory that it has opened, or its user
    /// owns, whatever the mode says. No other claim that an open file permits the read matters.
    pub(crate) fn reader(&self, session: &Session, cx: Ctx, read: &Read<'_>) -> Run<Ctx> {
        if session.is_trusted || !cx.checked {
            return Ok(cx);
        }
        let checked = match read {
            Read::List { dir, .. } => {
                let dir = self.inode(self.store.memory(), *dir)?;
                let opened = self.must_be_open(session, dir.object, OpenFlags::READ);
                dir.attr.uid == cx.uid || opened.is_ok()
            }
            _ => false,
        };
        Ok(Ctx { checked, ..cx })
    }
}
