//! The work of threads of clients under their locks.

use crate::clerk::Host as _;
use crate::clerk::{LockError, Scope, Want};
use crate::world::{Change, DIRS, FILE, OTHER, ROOT, TheClerk};
use aerie_proto::locks::Access;
use aerie_server::locks::Objects as _;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::thread;

/// A kind of call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// Uses a file.
    File,
    /// Uses a file below a hierarchical lock of its directory.
    Within,
    /// Uses a directory and its files.
    Tree,
    /// Uses two files at a time.
    Both,
    /// Adds a file to the second directory, or removes it.
    Link,
    /// Looks at a directory on a path that is not true any more.
    Moved,
    /// Uses a file under a pass, and ships while there are no passes.
    Pass,
    /// Gives back locks.
    Idle,
}

pub(crate) const ALL: [Call; 8] = [
    Call::File,
    Call::Within,
    Call::Tree,
    Call::Both,
    Call::Link,
    Call::Moved,
    Call::Pass,
    Call::Idle,
];

fn access() -> Access {
    match thread_rng().gen_bool(0.6) {
        true => Access::Exclusive,
        false => Access::Shared,
    }
}

/// Makes a call of a thread.
pub(crate) fn call(clerk: &TheClerk, thread: u64, call: Call) -> Result<(), LockError> {
    match call {
        Call::File => file(clerk, thread, Scope::Object),
        Call::Within => file(clerk, thread, Scope::Within(1)),
        Call::Tree => tree(clerk, thread),
        Call::Both => both(clerk, thread),
        Call::Link => link(clerk, thread),
        Call::Moved => moved(clerk),
        Call::Pass => {
            pass(clerk, thread)?;
            if thread_rng().gen_bool(0.3) {
                clerk.quietly(|| clerk.host().ship(FILE));
            }
            Ok(())
        }
        Call::Idle => {
            clerk.release_unused(clerk.host().now());
            Ok(())
        }
    }
}

fn file(clerk: &TheClerk, thread: u64, scope: Scope) -> Result<(), LockError> {
    let rng = &mut thread_rng();
    let dir = DIRS[usize::from(rng.gen_bool(0.3))];
    let file = if dir == DIRS[0] && rng.gen_bool(0.3) {
        OTHER
    } else {
        FILE
    };
    let (path, access) = ([ROOT, dir, file], access());
    let host = clerk.host();
    // An object with several memberships has its own lock, and can be named without a path.
    let is_alone = host.tree().membership_count(file) > 1 && rng.gen_bool(0.5);
    let path = if is_alone { &path[2..] } else { &path[..] };
    let want = Want {
        path,
        access,
        scope,
    };
    let _guard = match rng.gen_bool(0.5) {
        true => clerk.lock_briefly(&[want])?,
        false => clerk.lock(want)?,
    };
    // The file may have been removed from the directory meanwhile.
    let is_same = !is_alone || host.tree().membership_count(file) > 1;
    if is_same && host.tree().is_member(dir, file) && host.enter(thread, &[file], access) {
        work(clerk, thread, &[path], access);
    }
    Ok(())
}

/// One directory seems to be in the other one. A look finds that it is not.
fn moved(clerk: &TheClerk) -> Result<(), LockError> {
    let [one, other] = DIRS;
    let path = match thread_rng().gen_bool(0.5) {
        true => [ROOT, one, other],
        false => [ROOT, other, one],
    };
    let want = Want {
        path: &path,
        access: Access::Shared,
        scope: Scope::Object,
    };
    // Another thread may name them in the other order.
    clerk.lock_all(&[want]).map(drop)
}

/// Uses a file of the first directory under a pass, if there is one, or else under a guard, so that the
/// next one gets a pass.
fn pass(clerk: &TheClerk, thread: u64) -> Result<(), LockError> {
    let (host, access) = (clerk.host(), access());
    let file = [FILE, OTHER][usize::from(thread_rng().gen_bool(0.5))];
    let pass = match thread_rng().gen_bool(0.5) {
        true => clerk.pass_soon(),
        false => clerk.pass(),
    };
    let Some(pass) = pass else {
        return self::file(clerk, thread, Scope::Within(1));
    };
    let above = |object| match object {
        ROOT => None,
        FILE if host.tree().membership_count(FILE) != 1 => None,
        FILE | OTHER => Some(DIRS[0]),
        _ => Some(ROOT),
    };
    // The lock of a file with two names may have been reached through the other directory.
    let is_permitted = above(file).is_some() && pass.permits(file, access, false, above);
    if is_permitted && host.enter_beside(thread, &[file], access) {
        work(clerk, thread, &[&[ROOT, DIRS[0], file]], access);
    }
    pass.release()
}

/// Is in the objects for a while, and leaves them.
fn work(clerk: &TheClerk, thread: u64, paths: &[&[crate::world::LockId]], access: Access) {
    thread::yield_now();
    let write = |path: &&[_]| Change {
        path: path.to_vec(),
        link: None,
    };
    let changes = match access {
        Access::Shared => Vec::new(),
        Access::Exclusive => paths.iter().map(write).collect(),
    };
    clerk.host().leave(thread, changes);
}

fn tree(clerk: &TheClerk, thread: u64) -> Result<(), LockError> {
    let (path, access) = ([ROOT, DIRS[0]], access());
    let _guard = clerk.lock(Want {
        path: &path,
        access,
        scope: Scope::Tree,
    })?;
    let file = [ROOT, DIRS[0], FILE];
    let other = [ROOT, DIRS[0], OTHER];
    let mut paths: Vec<&[_]> = vec![&path, &other];
    if clerk.host().tree().membership_count(FILE) == 1 {
        paths.push(&file);
    }
    let objects: Vec<_> = paths.iter().map(|path| path[path.len() - 1]).collect();
    if clerk.host().enter(thread, &objects, access) {
        work(clerk, thread, &paths, access);
    }
    Ok(())
}

fn both(clerk: &TheClerk, thread: u64) -> Result<(), LockError> {
    let (file, other) = ([ROOT, DIRS[0], FILE], [ROOT, DIRS[0], OTHER]);
    let access = access();
    let paths: [&[_]; 2] = [&other, &file];
    let _guard = clerk.lock_all(&paths.map(|path| Want {
        path,
        access,
        scope: Scope::Object,
    }))?;
    if clerk.host().enter(thread, &[FILE, OTHER], access) {
        work(clerk, thread, &paths, access);
    }
    Ok(())
}

fn link(clerk: &TheClerk, thread: u64) -> Result<(), LockError> {
    let access = Access::Exclusive;
    let host = clerk.host();
    let is_linked = host.tree().is_member(DIRS[1], FILE);
    let (old, new) = ([ROOT, DIRS[0], FILE], [ROOT, DIRS[1], FILE]);
    // The lock of the new directory is for its members, too.
    let path: &[_] = if is_linked { &new } else { &old };
    let wants = [
        (&[ROOT, DIRS[1]] as &[_], Scope::Members),
        (path, Scope::Object),
    ];
    let _guard = clerk.lock_all(&wants.map(|(path, scope)| Want {
        path,
        access,
        scope,
    }))?;
    if host.tree().is_member(DIRS[1], FILE) != is_linked {
        return Ok(());
    }
    if host.enter(thread, &[DIRS[1], FILE], access) {
        let path = path.to_vec();
        let link = Some(!is_linked);
        host.leave(thread, vec![Change { path, link }]);
        host.ship(FILE);
    }
    Ok(())
}
