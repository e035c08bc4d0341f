//! Calls that return more than once: the begin of a transaction, for each attempt, and
//! `selvedge_try`, after a failure.
//!
//! Each call saves the registers that a call preserves, the return address, and the control words
//! of floating point. The copy is not on the stack, since later calls overwrite that place.

use std::arch::naked_asm;

/// The saved state of a call, to return from it again.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct JumpBuffer {
    /// The stack pointer after the return.
    pub cfa: u64,
    rbx: u64,
    rbp: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    /// The return address.
    rip: u64,
    mxcsr: u32,
    x87_control: u32,
}

impl JumpBuffer {
    /// Whether the same call in the same frame filled both.
    pub(crate) fn is_place_of(&self, other: &Self) -> bool {
        (self.cfa, self.rip) == (other.cfa, other.rip)
    }
}

/// Calls `$function` with the argument and a buffer, through which the call can return again.
macro_rules! with_buffer {
    ($function:path) => {
        ::std::arch::naked_asm!(
        ".cfi_startproc",
        "lea rax, [rsp + 8]",
        "sub rsp, 72", // the buffer; the stack is a multiple of 16 again
        ".cfi_adjust_cfa_offset 72",
        "mov [rsp], rax",
        "mov [rsp + 8], rbx",
        "mov [rsp + 16], rbp",
        "mov [rsp + 24], r12",
        "mov [rsp + 32], r13",
        "mov [rsp + 40], r14",
        "mov [rsp + 48], r15",
        "mov rax, [rsp + 72]",
        "mov [rsp + 56], rax",
        "stmxcsr [rsp + 64]",
        "fnstcw [rsp + 68]",
        "mov rsi, rsp",
        "call {function}",
        "add rsp, 72",
        ".cfi_adjust_cfa_offset -72",
        "ret",
        ".cfi_endproc",
        function = sym $function,
        )
    };
}
pub(crate) use with_buffer;

/// Returns again, with `code`, from the call that filled `buffer`.
///
/// # Safety
/// The frame of that call's caller must still exist, and no frame in between may have a destructor
/// to run.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn jump(code: u32, buffer: *const JumpBuffer) -> ! {
    naked_asm!(
        "mov eax, edi",
        "mov rcx, [rsi]",
        "mov rbx, [rsi + 8]",
        "mov rbp, [rsi + 16]",
        "mov r12, [rsi + 24]",
        "mov r13, [rsi + 32]",
        "mov r14, [rsi + 40]",
        "mov r15, [rsi + 48]",
        "mov rdx, [rsi + 56]",
        "ldmxcsr [rsi + 64]",
        "fldcw [rsi + 68]",
        "mov rsp, rcx",
        "jmp rdx",
    )
}
