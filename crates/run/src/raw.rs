//! Instructions at which a signal or a fault finds this library, and where the execution continues then.
//!
//! Guarantees:
//!
//! 1. A system call of this library goes to the kernel: its instruction is never replaced.
//! 2. A call that may wait ends when a signal of the program arrives ([`syscall_unless_signal`]).
//! 3. A probe of memory that is not accessible fails, and the program sees no fault.

use crate::abi::PENDING;
use std::arch::naked_asm;

/// Puts the number and the arguments of a call, which a function got in `rdi` and `rsi`, where the kernel reads
/// them.
macro_rules! arguments {
    () => {
        concat!(
            "mov rax, rdi\n",
            "mov r11, rsi\n",
            "mov rdi, qword ptr [r11]\n",
            "mov rsi, qword ptr [r11 + 8]\n",
            "mov rdx, qword ptr [r11 + 16]\n",
            "mov r10, qword ptr [r11 + 24]\n",
            "mov r8, qword ptr [r11 + 32]\n",
            "mov r9, qword ptr [r11 + 40]",
        )
    };
}

/// Executes a system call. The instruction is never replaced.
#[unsafe(naked)]
extern "C" fn kernel(_number: u64, _args: *const [u64; 6]) -> i64 {
    naked_asm!(
        arguments!(),
        ".hidden selvedge_run_syscall",
        ".globl selvedge_run_syscall",
        "selvedge_run_syscall:",
        "syscall",
        "ret",
    )
}

/// As [`kernel`]. Returns [`SIGNALLED`] if a signal waits, or arrives before the call has ended.
#[unsafe(naked)]
extern "C" fn kernel_unless_signal(_number: u64, _args: *const [u64; 6]) -> i64 {
    naked_asm!(
        arguments!(),
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        ".hidden selvedge_run_wait",
        ".globl selvedge_run_wait",
        "selvedge_run_wait:",
        "cmp dword ptr fs:[r11 + {pending}], 0",
        "jne selvedge_run_wait_fails",
        // To repeat the call after a signal, the kernel continues at this instruction.
        ".hidden selvedge_run_wait_call",
        ".globl selvedge_run_wait_call",
        "selvedge_run_wait_call:",
        "syscall",
        "ret",
        ".hidden selvedge_run_wait_fails",
        ".globl selvedge_run_wait_fails",
        "selvedge_run_wait_fails:",
        "mov rax, {signalled}",
        "ret",
        pending = const PENDING,
        signalled = const SIGNALLED,
    )
}

/// No result of a call: the kernel itself uses the number for calls that it repeats.
const SIGNALLED: i64 = -512;

/// As [`syscall`]. `None`: a signal waits, and the call has had no effect.
///
/// # Safety
/// As for the call itself.
pub(crate) unsafe fn syscall_unless_signal(number: i64, args: [u64; 6]) -> Option<i64> {
    Some(kernel_unless_signal(number as u64, &args)).filter(|result| *result != SIGNALLED)
}

/// Executes a system call, and returns the value that the kernel returns.
///
/// # Safety
/// As for the call itself.
pub(crate) unsafe fn syscall(number: i64, args: [u64; 6]) -> i64 {
    kernel(number as u64, &args)
}

/// Whether a `syscall` instruction at this address must stay: the library calls the kernel by it.
pub(crate) fn must_stay(at: usize) -> bool {
    [label(Label::Syscall), label(Label::WaitCall)].contains(&at)
}

/// An address in the code of this library.
pub(crate) fn own_code() -> usize {
    label(Label::Syscall)
}

/// Whether a fault at this address is that of a bad path in [`entry`]. If so, the execution continues at
/// the address returned.
pub(crate) fn filter_continues(at: usize) -> Option<usize> {
    let read = label(Label::Filter)..label(Label::FilterEnd);
    read.contains(&at).then(|| label(Label::FilterPass))
}

/// Whether a fault at this address is that of a probe. If so, the execution continues at the address
/// returned.
pub(crate) fn probe_continues(at: usize) -> Option<usize> {
    let probe = label(Label::Probe)..label(Label::ProbeFails);
    probe.contains(&at).then(|| label(Label::ProbeFails))
}

/// Whether a signal at this address arrives before a call of [`syscall_unless_signal`] has had an effect. If
/// so, the execution continues at the address returned.
pub(crate) fn wait_continues(at: usize) -> Option<usize> {
    let before = label(Label::Wait)..=label(Label::WaitCall);
    before.contains(&at).then(|| label(Label::WaitFails))
}

#[derive(Clone, Copy)]
enum Label {
    Wait,
    WaitCall,
    WaitFails,
    Syscall,
    Filter,
    FilterEnd,
    FilterPass,
    Probe,
    ProbeFails,
}

fn label(which: Label) -> usize {
    unsafe extern "C" {
        static selvedge_run_wait: u8;
        static selvedge_run_wait_call: u8;
        static selvedge_run_wait_fails: u8;
        static selvedge_run_syscall: u8;
        static selvedge_run_filter: u8;
        static selvedge_run_filter_end: u8;
        static selvedge_run_filter_pass: u8;
        static selvedge_run_probe: u8;
        static selvedge_run_probe_fails: u8;
    }
    let address = match which {
        Label::Wait => &raw const selvedge_run_wait,
        Label::WaitCall => &raw const selvedge_run_wait_call,
        Label::WaitFails => &raw const selvedge_run_wait_fails,
        Label::Syscall => &raw const selvedge_run_syscall,
        Label::Filter => &raw const selvedge_run_filter,
        Label::FilterEnd => &raw const selvedge_run_filter_end,
        Label::FilterPass => &raw const selvedge_run_filter_pass,
        Label::Probe => &raw const selvedge_run_probe,
        Label::ProbeFails => &raw const selvedge_run_probe_fails,
    };
    address as usize
}

/// Touches a byte in each page from `start` to before `end`. Returns 0 if one is not accessible.
#[unsafe(naked)]
pub(crate) extern "C" fn probe(_start: usize, _end: usize, _write: u32) -> u32 {
    naked_asm!(
        "2:",
        "cmp rdi, rsi",
        "jae 4f",
        ".hidden selvedge_run_probe",
        ".globl selvedge_run_probe",
        "selvedge_run_probe:",
        "mov al, byte ptr [rdi]",
        "test edx, edx",
        "je 3f",
        "lock or byte ptr [rdi], 0",
        "3:",
        "or rdi, 4095",
        "inc rdi",
        "jne 2b",
        ".hidden selvedge_run_probe_fails",
        ".globl selvedge_run_probe_fails",
        "selvedge_run_probe_fails:",
        "xor eax, eax",
        "ret",
        "4:",
        "mov eax, 1",
        "ret",
    )
}

/// Returns from a signal handler.
#[unsafe(naked)]
pub(crate) extern "C" fn restore() {
    naked_asm!("mov eax, 15", "syscall")
}
