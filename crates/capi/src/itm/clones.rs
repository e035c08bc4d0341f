//! Functions and their transactional clones, for calls through pointers.

use super::_ITM_changeTransactionMode;
use crate::fatal::die;
use libc::c_void;
use parking_lot::RwLock;
use std::ffi::CStr;

/// A function and its clone.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Pair {
    function: usize,
    clone: usize,
}

/// The table of clones of a program or library.
struct Table {
    address: usize,
    /// Sorted by function.
    pairs: Vec<Pair>,
}

static TABLES: RwLock<Vec<Table>> = RwLock::new(Vec::new());

/// Registers the table of a program or library that was loaded.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_registerTMCloneTable(table: *const Pair, count: usize) {
    // SAFETY: the caller has a table of `count` pairs.
    let mut pairs = unsafe { std::slice::from_raw_parts(table, count) }.to_vec();
    pairs.sort_by_key(|pair| pair.function);
    let address = table as usize;
    TABLES.write().push(Table { address, pairs });
}

/// Removes the table of a program or library that is unloaded.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_deregisterTMCloneTable(table: *const Pair) {
    TABLES.write().retain(|t| t.address != table as usize);
}

fn clone_of(function: *const c_void) -> Option<*const c_void> {
    let function = function as usize;
    TABLES.read().iter().find_map(|table| {
        let found = table
            .pairs
            .binary_search_by_key(&function, |pair| pair.function);
        found.ok().map(|n| table.pairs[n].clone as *const c_void)
    })
}

/// The clone of a function. The process ends if there is none.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_getTMCloneSafe(function: *const c_void) -> *const c_void {
    clone_of(function).unwrap_or_else(|| {
        die(format_args!(
            "a transaction calls {}, which has no transactional clone: declare it \
             transaction_safe where it is defined, and build that with -fgnu-tm",
            name(function)
        ))
    })
}

/// The clone of a function, for a transaction that may become irrevocable. The process ends if
/// there is none.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_getTMCloneOrIrrevocable(
    function: *const c_void,
) -> *const c_void {
    clone_of(function).unwrap_or_else(|| {
        _ITM_changeTransactionMode(0);
        function
    })
}

/// The name of a function, or its address if no symbol has it.
fn name(function: *const c_void) -> String {
    // SAFETY: zeros are a `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable; the address is not accessed.
    if unsafe { libc::dladdr(function, &mut info) } != 0 && !info.dli_sname.is_null() {
        // SAFETY: the name of a symbol of a loaded program or library.
        let name = unsafe { CStr::from_ptr(info.dli_sname) };
        return name.to_string_lossy().into_owned();
    }
    format!("the function at {function:p}")
}
