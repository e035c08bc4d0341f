//! The way from a replaced `syscall` instruction into this library and back, for Linux on x86-64.
//!
//! Guarantees, to the code around a replaced instruction:
//!
//! 1. All registers except `rax`, `rcx`, `r11` and the flags keep their values, vector registers too.
//! 2. Nothing below the stack pointer and above its red zone is changed. The handler runs on a stack of its
//!    own, one for each thread, since some stacks of programs are small.
//! 3. A call that needs no answer here costs a few nanoseconds: [`entry`] compares its descriptors with
//!    [`FDS`] and its path with [`PREFIX`], and the kernel executes it where it stands. So calls that
//!    return twice, or on another stack, work.
//! 4. A call made while the thread is inside the handler goes to the kernel ([`Thread::inside`]).
//!
//! Thread-local storage is a block of static TLS, which assembler can address. The kernel's view of a bad
//! path is kept: a fault while [`entry`] reads it makes the call go to the kernel (see `signals`).

use std::arch::{global_asm, naked_asm};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// System calls that have a class.
pub(crate) const CALLS: usize = 512;
/// Descriptors of the store are below this number.
pub(crate) const FD_LIMIT: usize = 1 << 16;
/// Most bytes of the path of the mount point.
pub(crate) const PREFIX_MAX: usize = 4096;
/// Bytes of the stack of the handler.
const STACK_BYTES: usize = 512 << 10;
/// Room for the vector registers: 2432 bytes in the compact form.
const AREA_BYTES: usize = 4096;
/// The parts of the processor's state that compiled code may change: SSE, AVX and AVX-512.
const STATE: u32 = 0xe6;

/// Class of a call: the registers that decide whether it can be about the store.
pub(crate) const PASS: u8 = 0;
/// A descriptor in `rdi`.
pub(crate) const FD: u8 = 1;
/// Descriptors in `rdi` and `rsi`.
pub(crate) const FD_AND_SECOND: u8 = 2;
/// Descriptors in `rdi` and `rdx`.
pub(crate) const FD_AND_THIRD: u8 = 3;
/// A descriptor in `r8`.
pub(crate) const FD_FIFTH: u8 = 4;
/// A path in `rdi`.
pub(crate) const PATH: u8 = 5;
/// A directory in `rdi` and a path in `rsi`.
pub(crate) const AT: u8 = 6;
/// The handler decides.
pub(crate) const ALWAYS: u8 = 7;
/// The end of a thread: its stack is freed.
pub(crate) const EXIT: u8 = 8;
/// A call that makes or receives descriptors: of interest only inside the handler.
pub(crate) const MAKES: u8 = 9;

/// The class of each system call.
pub(crate) static CLASSES: [AtomicU8; CALLS] = [const { AtomicU8::new(PASS) }; CALLS];
/// For each descriptor its open file description in the store plus one, [`OWN`], or 0.
pub(crate) static FDS: [AtomicU32; FD_LIMIT] = [const { AtomicU32::new(0) }; FD_LIMIT];
/// The entry of a descriptor that belongs to this library.
pub(crate) const OWN: u32 = u32::MAX;
/// The path of the mount point, without a slash at its end, followed by 0.
pub(crate) static PREFIX: [AtomicU8; PREFIX_MAX] = [const { AtomicU8::new(0) }; PREFIX_MAX];
/// Whether a path that is relative to the working directory can be in the store.
pub(crate) static CWD_REACHES: AtomicU32 = AtomicU32::new(0);

/// The addresses of the functions that get the program's calls, and those of this library.
static HANDLE: AtomicUsize = AtomicUsize::new(0);
static HANDLE_OWN: AtomicUsize = AtomicUsize::new(0);
/// The signals that a thread blocks during a call at most: a fault of a blocked signal ends the process, and probes
/// rely on them.
pub(crate) static ALL_BUT_FAULTS: u64 = !(1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1));
/// Whether the process has had a descriptor of the store.
pub(crate) static HAS_FILES: AtomicU32 = AtomicU32::new(0);

/// A working directory and an umask (`process::place`).
#[repr(C)]
pub(crate) struct Surroundings {
    /// The description of the working directory in the store, plus 1, or 0.
    pub(crate) cwd: AtomicU32,
    /// Where the working directory is if `cwd` is 0: above the mount point, as the number of bytes of its path
    /// before the rest; in the mount; or elsewhere, 0.
    pub(crate) outside: AtomicUsize,
    pub(crate) umask: AtomicU32,
}

/// The state of a thread. A child of `vfork` has that of its parent, which waits.
#[repr(C)]
pub(crate) struct Thread {
    /// Not 0 while the thread is in the handler.
    pub(crate) inside: AtomicU32,
    /// The signal that waits for the end of the handler, or 0.
    pub(crate) pending: AtomicU32,
    /// The end of the handler's stack, or 0.
    stack: AtomicU64,
    /// The descriptors of a child of `vfork`: an address of a table like [`FDS`], or 0.
    pub(crate) fds: AtomicU64,
    /// The blocked signals before `pending` arrived.
    pub(crate) mask: AtomicU64,
    /// The memory for the environment of an `execve`, or 0.
    pub(crate) environment: AtomicU64,
    /// The id of the thread, or 0 if it is unknown yet.
    pub(crate) id: AtomicU32,
    /// How often an `execve` was made again after signals.
    pub(crate) attempts: AtomicU32,
    /// The start and the end of the thread's alternative stack while a handler runs there, or 0.
    pub(crate) other_stack: [AtomicU64; 2],
    /// The signals that such a handler blocks, while it makes a call.
    pub(crate) outer_mask: AtomicU64,
    /// Those of a child of `vfork`.
    pub(crate) surroundings: Surroundings,
    /// The `siginfo_t` of the signal.
    pub(crate) info: [AtomicU64; 16],
}

impl Thread {
    /// Whether a handler runs on the thread's alternative stack.
    pub(crate) fn is_on_other_stack(&self) -> bool {
        self.other_stack[1].load(Relaxed) != 0
    }
}

const INSIDE: usize = std::mem::offset_of!(Thread, inside);
pub(crate) const PENDING: usize = std::mem::offset_of!(Thread, pending);
const STACK: usize = std::mem::offset_of!(Thread, stack);
const TABLE: usize = std::mem::offset_of!(Thread, fds);
const MASK: usize = std::mem::offset_of!(Thread, mask);
const OTHER_START: usize = std::mem::offset_of!(Thread, other_stack);
const OTHER_END: usize = OTHER_START + size_of::<AtomicU64>();
const OUTER_MASK: usize = std::mem::offset_of!(Thread, outer_mask);
const INFO: usize = std::mem::offset_of!(Thread, info);

global_asm!(
    ".section .tbss, \"awT\", @nobits",
    ".balign 16",
    ".hidden selvedge_run_thread",
    ".globl selvedge_run_thread",
    ".type selvedge_run_thread, @object",
    ".size selvedge_run_thread, {bytes}",
    "selvedge_run_thread: .zero {bytes}",
    ".text",
    bytes = const size_of::<Thread>(),
);

/// The distance from the thread pointer to the block of [`Thread`].
#[unsafe(naked)]
extern "C" fn thread_offset() -> u64 {
    naked_asm!(
        "mov rax, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "ret"
    )
}

#[unsafe(naked)]
extern "C" fn thread_address() -> *const Thread {
    naked_asm!(
        "mov rax, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "add rax, qword ptr fs:[0]",
        "ret"
    )
}

/// The state of the calling thread. It must not be kept beyond the thread's end.
pub(crate) fn thread() -> &'static Thread {
    // SAFETY: the address is that of the thread's static TLS, zeroed at its start; all fields are atomics,
    // for which all bits 0 is a valid value.
    unsafe { &*thread_address() }
}

/// The state of a thread to be started, by its thread pointer.
///
/// # Safety
/// `pointer` is the thread pointer of a thread that libc has prepared and that has not ended.
pub(crate) unsafe fn thread_of(pointer: u64) -> &'static Thread {
    // SAFETY: the block lies at the same distance from every thread pointer.
    unsafe { &*((pointer.wrapping_add(thread_offset())) as *const Thread) }
}

/// The registers of a call.
#[repr(C)]
pub(crate) struct Frame {
    /// `rax`: the number of the call; after it, its result.
    pub(crate) rax: u64,
    /// The arguments, in their order: `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    pub(crate) args: [u64; 6],
    /// 1 if `rax` is the result, 0 if the kernel is to execute the call, 2 if the handler is to get it again
    /// after the signal that waits.
    pub(crate) done: u64,
}

/// A function that gets calls.
pub(crate) type Handler = extern "C" fn(&mut Frame);

/// Sets the functions that get calls: those of the program, and those of this library.
pub(crate) fn start(handle: Handler, handle_own: Handler) {
    HANDLE.store(handle as usize, Relaxed);
    HANDLE_OWN.store(handle_own as usize, Relaxed);
}

/// The code to which trampolines call. It returns with the carry flag set if `rax` has the result.
#[allow(clippy::too_many_lines)] // one sequence of instructions
#[unsafe(naked)]
pub(crate) extern "C" fn entry() {
    naked_asm!(
        "cmp rax, {calls}",
        "jae 9f",
        "lea rcx, [rip + {classes}]",
        "movzx ecx, byte ptr [rcx + rax]",
        "test ecx, ecx",
        "je 9f",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "cmp dword ptr fs:[r11 + {inside}], 0",
        "jne {within}",
        "cmp ecx, {always}",
        "je {answer}",
        "ja 70f",
        // In a child of `vfork`, and until its parent has noticed that it is gone.
        "cmp qword ptr fs:[r11 + {table}], 0",
        "jne {answer}",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rbx",
        "lea r11, [rip + {fds}]",
        "cmp ecx, {path}",
        "je 50f",
        "cmp ecx, {at}",
        "je 51f",
        // Descriptors.
        "mov ebx, edi",
        "cmp ecx, {fifth}",
        "cmove ebx, r8d",
        "cmp ebx, {limit}",
        "jae 20f",
        "cmp dword ptr [r11 + rbx * 4], 0",
        "jne 40f",
        "20:",
        "mov ebx, esi",
        "cmp ecx, {second}",
        "je 21f",
        "mov ebx, edx",
        "cmp ecx, {third}",
        "jne 80f",
        "21:",
        "cmp ebx, {limit}",
        "jae 80f",
        "cmp dword ptr [r11 + rbx * 4], 0",
        "je 80f",
        "40:",
        "pop rbx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp {answer}",
        // Paths: rsi, relative to the directory edi.
        "50:",
        "mov rsi, rdi",
        "mov edi, -100",
        "51:",
        "test rsi, rsi",
        "je 60f",
        ".hidden selvedge_run_filter",
        ".globl selvedge_run_filter",
        "selvedge_run_filter:",
        "cmp byte ptr [rsi], 0x2f",
        "jne 60f",
        "lea rdx, [rip + {prefix}]",
        "mov r11, rsi",
        "52:",
        "mov bl, byte ptr [rdx]",
        "test bl, bl",
        "je 53f",
        "cmp bl, byte ptr [rsi]",
        "jne 54f",
        "inc rdx",
        "inc rsi",
        "jmp 52b",
        // Another path. A process with files of the store may name them by /dev/fd or /proc.
        "54:",
        "cmp dword ptr [rip + {has_files}], 0",
        "je 80f",
        "mov bl, byte ptr [r11 + 1]",
        "cmp bl, 0x64",
        "je 40b",
        "cmp bl, 0x70",
        "je 40b",
        "jmp 80f",
        "53:",
        "mov bl, byte ptr [rsi]",
        ".hidden selvedge_run_filter_end",
        ".globl selvedge_run_filter_end",
        "selvedge_run_filter_end:",
        "test bl, bl",
        "je 40b",
        "cmp bl, 0x2f",
        "je 40b",
        "jmp 80f",
        "60:",
        "cmp edi, -100",
        "je 61f",
        "cmp edi, {limit}",
        "jae 80f",
        "mov edi, edi",
        "cmp dword ptr [r11 + rdi * 4], 0",
        "jne 40b",
        "jmp 80f",
        "61:",
        "cmp dword ptr [rip + {cwd_reaches}], 0",
        "jne 40b",
        ".hidden selvedge_run_filter_pass",
        ".globl selvedge_run_filter_pass",
        "selvedge_run_filter_pass:",
        "80:",
        "pop rbx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "9:",
        "clc",
        "ret",
        // The end of a thread.
        "70:",
        "cmp ecx, {exit}",
        "jne 9b",
        // A child of `vfork` has left a table.
        "cmp qword ptr fs:[r11 + {table}], 0",
        "je 71f",
        "call {answer}",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "71:",
        "mov rsi, qword ptr fs:[r11 + {stack}]",
        "test rsi, rsi",
        "je 9b",
        "mov qword ptr fs:[r11 + {stack}], 0",
        "push rdi",
        "lea rdi, [rsi - {stack_bytes}]",
        "mov esi, {stack_bytes}",
        "mov eax, 11", // munmap
        "syscall",
        "pop rdi",
        "mov eax, 60",
        "clc",
        "ret",
        calls = const CALLS,
        classes = sym CLASSES,
        inside = const INSIDE,
        within = sym within,
        answer = sym answer,
        always = const ALWAYS,
        exit = const EXIT,
        fds = sym FDS,
        table = const TABLE,
        path = const PATH,
        at = const AT,
        fifth = const FD_FIFTH,
        second = const FD_AND_SECOND,
        third = const FD_AND_THIRD,
        limit = const FD_LIMIT,
        prefix = sym PREFIX,
        cwd_reaches = sym CWD_REACHES,
        has_files = sym HAS_FILES,
        stack = const STACK,
        stack_bytes = const STACK_BYTES,
    )
}

/// Saves the registers of a call that a system call of [`answer`] needs.
macro_rules! save {
    () => {
        "push rcx\npush rax\npush rdi\npush rsi\npush rdx\npush r10"
    };
}

/// Restores what `save` has saved.
macro_rules! restore {
    () => {
        "pop r10\npop rdx\npop rsi\npop rdi\npop rax\npop rcx"
    };
}

/// Runs the handler on the thread's stack for it. `rcx` and `r11` are free.
#[allow(clippy::too_many_lines)] // one sequence of instructions
#[unsafe(naked)]
extern "C" fn answer() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "mov rcx, qword ptr fs:[r11 + {stack}]",
        "test rcx, rcx",
        "je 5f",
        "2:",
        "cmp qword ptr fs:[r11 + {other_end}], 0",
        "jne 8f",
        "4:",
        "mov dword ptr fs:[r11 + {inside}], 1",
        "mov rsp, rcx",
        "push 0",
        "push r9",
        "push r8",
        "push r10",
        "push rdx",
        "push rsi",
        "push rdi",
        "push rax",
        "mov rdi, rsp",
        // xrstor requires zeros in the reserved bytes of the header, which xsavec leaves as they are. A
        // signal whose frame lay here while `rsp` was above the area has left others.
        "sub rsp, {area}",
        "mov qword ptr [rsp + 528], 0",
        "mov qword ptr [rsp + 536], 0",
        "mov qword ptr [rsp + 544], 0",
        "mov qword ptr [rsp + 552], 0",
        "mov qword ptr [rsp + 560], 0",
        "mov qword ptr [rsp + 568], 0",
        "mov eax, {state}",
        "xor edx, edx",
        "xsavec [rsp]",
        "call qword ptr [rip + {handle}]",
        "mov eax, {state}",
        "xor edx, edx",
        "xrstor [rsp]",
        "add rsp, {area}",
        "pop rax",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "pop r9",
        "pop rcx",
        "mov rsp, rbp",
        "pop rbp",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "mov dword ptr fs:[r11 + {inside}], 0",
        "cmp qword ptr fs:[r11 + {other_end}], 0",
        "jne 10f",
        "cmp dword ptr fs:[r11 + {pending}], 0",
        "jne 7f",
        "3:",
        "test ecx, 2",
        "jne {again}",
        "bt ecx, 0",
        "ret",
        // The first call of a thread: mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE,
        // MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0).
        "5:",
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push r9",
        "mov eax, 9",
        "xor edi, edi",
        "mov esi, {stack_bytes}",
        "mov edx, 3",
        "mov r10d, 0x4022",
        "mov r8, -1",
        "xor r9d, r9d",
        "syscall",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "xor ecx, ecx",
        "cmp rax, -4095",
        "jae 6f",
        "lea rcx, [rax + {stack_bytes}]",
        "mov qword ptr fs:[r11 + {stack}], rcx",
        "6:",
        "pop r9",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "test rcx, rcx",
        "jne 2b",
        "pop rbp",
        "clc",
        "ret",
        // A handler on the alternative stack makes the call. Away from that stack a signal would start at its
        // end again, over the handler's frames: signals are blocked meanwhile.
        "8:",
        "cmp rsp, qword ptr fs:[r11 + {other_start}]",
        "jb 12f",
        "cmp rsp, qword ptr fs:[r11 + {other_end}]",
        "jae 12f",
        save!(),
        "xor edi, edi", // SIG_BLOCK
        "lea rsi, [rip + {all}]",
        "mov rdx, qword ptr fs:[0]",
        "lea rdx, [rdx + r11 + {outer}]",
        "mov r10d, 8",
        "mov eax, 14", // rt_sigprocmask
        "syscall",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        restore!(),
        "jmp 4b",
        // The handler has jumped out.
        "12:",
        "mov qword ptr fs:[r11 + {other_end}], 0",
        "jmp 4b",
        // Such a call ends: the handler's mask is the one to restore.
        "10:",
        "push rcx",
        "mov rcx, qword ptr fs:[r11 + {outer}]",
        "mov qword ptr fs:[r11 + {mask}], rcx",
        "pop rcx",
        "jmp 7f",
        // A signal may have waited: queue it again, then unblock. Its handler runs inside the last call.
        "7:",
        save!(),
        "cmp dword ptr fs:[r11 + {pending}], 0",
        "je 13f",
        "mov eax, 39", // getpid
        "syscall",
        "mov rdi, rax",
        "mov eax, 186", // gettid
        "syscall",
        "mov rsi, rax",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "mov r10, qword ptr fs:[0]",
        "lea r10, [r10 + r11 + {info}]",
        "mov edx, dword ptr fs:[r11 + {pending}]",
        "mov eax, 297", // rt_tgsigqueueinfo
        "syscall",
        "mov r11, qword ptr [rip + selvedge_run_thread@GOTTPOFF]",
        "mov dword ptr fs:[r11 + {pending}], 0",
        "13:",
        "mov rsi, qword ptr fs:[0]",
        "lea rsi, [rsi + r11 + {mask}]",
        "mov edi, 2",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, 14", // rt_sigprocmask
        "syscall",
        restore!(),
        "jmp 3b",
        stack = const STACK,
        inside = const INSIDE,
        pending = const PENDING,
        info = const INFO,
        mask = const MASK,
        area = const AREA_BYTES,
        state = const STATE,
        stack_bytes = const STACK_BYTES,
        handle = sym HANDLE,
        again = sym answer,
        other_start = const OTHER_START,
        other_end = const OTHER_END,
        outer = const OUTER_MASK,
        all = sym ALL_BUT_FAULTS,
    )
}

/// Runs the handler of calls that this library makes itself, on the present stack.
#[unsafe(naked)]
extern "C" fn within() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "and rsp, -16",
        "push 0",
        "push r9",
        "push r8",
        "push r10",
        "push rdx",
        "push rsi",
        "push rdi",
        "push rax",
        "mov rdi, rsp",
        "sub rsp, 512",
        "fxsave64 [rsp]",
        "call qword ptr [rip + {handle}]",
        "fxrstor64 [rsp]",
        "add rsp, 512",
        "pop rax",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "pop r9",
        "pop rcx",
        "mov rsp, rbp",
        "pop rbp",
        "bt ecx, 0",
        "ret",
        handle = sym HANDLE_OWN,
    )
}
