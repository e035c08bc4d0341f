//! Finds the `syscall` instructions of machine code, and the instructions beside each that can move.
//!
//! A jump takes five bytes and a `syscall` two, so a jump to other code replaces neighbours of the
//! instruction too. A *site* is a run of whole instructions around one `syscall`:
//!
//! 1. It has at least [`JUMP_BYTES`] bytes.
//! 2. Its instructions do the same at any address: none is a branch or refers to memory by its own address.
//! 3. No branch of the code leads into its replaced bytes, except to its first one. A branch to the
//!    `syscall` of a site whose jump ends before it is harmless: it executes the instruction itself.
//!
//! Functions with a `syscall` are decoded from their start to their end. Bytes outside of functions can be data, which may
//! look like a call: those of libcrypto do, and linkers can put constants into the segment of the code. They stay as they
//! are. Targets of computed jumps are unknown; no compiler computes one into the middle of a call.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use std::ops::Range;

/// Bytes of a jump with a distance of 32 bits.
pub(crate) const JUMP_BYTES: usize = 5;
/// Most bytes of a site.
pub(crate) const MAX_BYTES: usize = 24;
/// Neighbours that are considered on each side.
const NEIGHBOURS: usize = 4;
/// Instructions before the `syscall` among which its number is looked for.
const MEMORY: usize = 10;
/// Bytes after the end of a function in which its `syscall` can be.
const BEYOND: usize = 16;
/// Bytes on each side of a `syscall` in which its neighbours are, and all short branches to them.
const AROUND: usize = 512;
// No instruction has more than 15 bytes, and a short branch leads at most 128 further.
const _: () = assert!((MEMORY + NEIGHBOURS) * 15 + 128 + 15 <= AROUND);

/// A `syscall` with the neighbours that move with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// Offset of the first byte of the site.
    pub(crate) start: u32,
    /// Bytes of the site before the `syscall`.
    pub(crate) before: u8,
    /// Bytes of the site after it.
    pub(crate) after: u8,
    /// Number of the call, if it is a constant; otherwise [`ANY`].
    pub(crate) number: u16,
}

/// The number of a call that is computed.
pub(crate) const ANY: u16 = u16::MAX;

/// All sites, and the number of `syscall` instructions that have none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sites: Vec<Site>,
    pub(crate) unmovable: usize,
}

/// A `syscall` with the instructions around it.
struct Call {
    before: Vec<Instruction>,
    syscall: Instruction,
    after: Vec<Instruction>,
}

/// Finds the sites of the functions of `code`, which are in the order of their starts. Only those with a `syscall`, and those
/// beside them, are decoded. Other bytes may be data.
pub(crate) fn find(code: &[u8], functions: &[Range<u32>]) -> Found {
    let mut found = Found::default();
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else {
        return found;
    };
    let Some(code) = code.get(..code.len().min(last.end as usize + BEYOND)) else {
        return found;
    };
    let mut places: Vec<usize> = memchr::memmem::find_iter(code, &[0x0f, 0x05]).collect();
    places.retain(|place| end_before(functions, *place).is_some_and(|end| *place < end + BEYOND));
    let mut decoded = Decoded::default();
    for part in parts(code.len(), functions, &places) {
        decoded.add(code, part);
    }
    decoded.calls.retain(|call| is_code(functions, call));
    if decoded.calls.is_empty() {
        return found;
    }
    let targets = decoded.near(code, first.start as usize, functions);
    for call in decoded.calls {
        match site(&call, &targets, functions) {
            Some(site) => found.sites.push(site),
            None => found.unmovable += 1,
        }
    }
    found
}

/// The end of the last function that begins at the offset or before it.
fn end_before(functions: &[Range<u32>], at: usize) -> Option<usize> {
    let after = functions.partition_point(|function| function.start as usize <= at);
    let before = after.checked_sub(1)?;
    Some(functions[before].end as usize)
}

/// Whether a call is inside of a function, or its code goes on to it: libc says that `clone` ends before its `syscall`. Bytes
/// after the end of other functions can be data.
fn is_code(functions: &[Range<u32>], call: &Call) -> bool {
    let at = call.syscall.ip() as usize;
    end_before(functions, at).is_some_and(|end| {
        let mut beyond = call.before.iter().rev();
        let goes_on = |one: &Instruction| one.flow_control() == FlowControl::Next;
        let is_last = |one: &&Instruction| one.next_ip() as usize <= end;
        at < end
            || at < end + BEYOND
                && beyond
                    .find(|one| is_last(one) || !goes_on(one))
                    .is_some_and(goes_on)
    })
}

/// Runs of whole functions that have the places, which are after the start of one, and [`AROUND`] bytes on both sides.
fn parts(code_bytes: usize, functions: &[Range<u32>], places: &[usize]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for place in places {
        let start = |n: usize| functions[n].start as usize;
        let before = functions.partition_point(|one| one.start as usize + AROUND <= *place);
        let after = functions.partition_point(|one| (one.start as usize) < *place + AROUND);
        let begin = start(before.saturating_sub(1));
        let end = match after < functions.len() {
            true => start(after),
            false => code_bytes,
        };
        let end = end.min(code_bytes);
        match parts.last_mut() {
            Some(last) if begin <= last.end => last.end = last.end.max(end),
            _ => parts.push(begin..end),
        }
    }
    parts
}

/// Calls and branches of the decoded parts of a code.
#[derive(Default)]
struct Decoded {
    calls: Vec<Call>,
    /// Targets of branches.
    targets: Vec<u64>,
}

impl Decoded {
    /// Decodes a part.
    fn add(&mut self, code: &[u8], part: Range<usize>) {
        let calls = &mut self.calls;
        let mut recent = [Instruction::default(); MEMORY];
        let mut open = 0; // calls at the end of the list that still lack neighbours
        let ip = part.start as u64;
        let decoder = Decoder::with_ip(64, &code[part], ip, DecoderOptions::NONE);
        for (count, next) in decoder.into_iter().enumerate() {
            let place = count % MEMORY; // of the oldest one
            if open > 0 {
                let last = calls.len() - open;
                let open_calls = calls[last..].iter_mut();
                open_calls.for_each(|call| call.after.push(next));
                let lacks = |call: &&Call| call.after.len() < NEIGHBOURS;
                open = calls[last..].iter().filter(lacks).count();
            }
            // One with a prefix has more bytes, which no trampoline expects.
            if next.code() == Code::Syscall && next.len() == 2 {
                let (newer, older) = recent.split_at(place);
                let before = older.iter().chain(newer);
                calls.push(Call {
                    before: before.skip(MEMORY.saturating_sub(count)).copied().collect(),
                    syscall: next,
                    after: Vec::new(),
                });
                open += 1;
            }
            if is_branch(&next) {
                self.targets.push(next.near_branch_target());
            }
            recent[place] = next;
        }
    }

    /// The targets of branches near the calls, in order, and functions, to which pointers may lead. A branch from elsewhere has a distance of 32 bits after the bytes
    /// of its operation. Other bytes may look like one: then a target is too much, and a site may be given up.
    fn near(&self, code: &[u8], first: usize, functions: &[Range<u32>]) -> Vec<u64> {
        let mut is_near = vec![false; code.len() / AROUND + 3];
        for call in &self.calls {
            let block = call.syscall.ip() as usize / AROUND;
            is_near[block.saturating_sub(1)..block + 2].fill(true);
        }
        let is_near = |target: &u64| is_near.get(*target as usize / AROUND) == Some(&true);
        let all = &code[first..];
        let calls_and_jumps = memchr::memchr2_iter(0xe8, 0xe9, all).map(|at| at + 1);
        let conditional = memchr::memchr_iter(0x0f, all)
            .filter(|at| all.get(at + 1).is_some_and(|byte| byte & 0xf0 == 0x80))
            .map(|at| at + 2);
        let transactions = memchr::memmem::find_iter(all, &[0xc7, 0xf8]).map(|at| at + 2);
        let distances = calls_and_jumps.chain(conditional).chain(transactions);
        let far = distances.filter_map(|at| {
            let distance = i32::from_le_bytes(*all.get(at..)?.first_chunk()?);
            ((first + at) as u64 + 4).checked_add_signed(distance.into())
        });
        let all = self.targets.iter().copied().chain(far);
        let all = all.chain(functions.iter().map(|one| u64::from(one.start)));
        let mut targets: Vec<u64> = all.filter(is_near).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }
}

fn is_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

/// Whether the instruction does the same at any address, and the next one follows it.
fn can_move(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
        && !instruction.is_ip_rel_memory_operand()
        && instruction.code() != Code::INVALID
}

/// The site of a call with the fewest bytes. Neighbours before the `syscall` are preferred.
fn site(call: &Call, targets: &[u64], functions: &[Range<u32>]) -> Option<Site> {
    let at = call.syscall.ip();
    let end = call.syscall.next_ip();
    let starts = call
        .before
        .iter()
        .rev()
        .take(NEIGHBOURS)
        .take_while(|one| can_move(one));
    let starts: Vec<u64> = std::iter::once(at)
        .chain(starts.map(Instruction::ip))
        .collect();
    let ends = call.after.iter().take_while(|one| can_move(one));
    let ends: Vec<u64> = std::iter::once(end)
        .chain(ends.map(Instruction::next_ip))
        .collect();
    let windows = ends
        .iter()
        .flat_map(|end| starts.iter().map(move |start| (*start, *end)));
    let usable = |&(start, end): &(u64, u64)| {
        let bytes = (end - start) as usize;
        let replaced = start + 1..start + JUMP_BYTES as u64;
        (JUMP_BYTES..=MAX_BYTES).contains(&bytes)
            && !any_in(targets, replaced)
            && !leaves(functions, start as usize)
    };
    let (start, end_of_site) = windows
        .filter(usable)
        .min_by_key(|(start, end)| end - start)?;
    Some(Site {
        start: u32::try_from(start).ok()?,
        before: (at - start) as u8,
        after: (end_of_site - end) as u8,
        number: number(call, targets),
    })
}

/// Whether a jump at this place would reach over the end of the function that has it. There can be data.
fn leaves(functions: &[Range<u32>], start: usize) -> bool {
    let is_over = |end: usize| start < end && end < start + JUMP_BYTES;
    end_before(functions, start).is_some_and(is_over)
}

/// Whether a target is in the range.
fn any_in(targets: &[u64], range: std::ops::Range<u64>) -> bool {
    let first = targets.partition_point(|target| *target < range.start);
    targets.get(first).is_some_and(|target| *target < range.end)
}

/// The constant that the code before a call puts into `eax`.
fn number(call: &Call, targets: &[u64]) -> u16 {
    for one in call.before.iter().rev() {
        let is_constant = one.code() == Code::Mov_r32_imm32 && one.op0_register() == Register::EAX;
        let is_zero = one.mnemonic() == Mnemonic::Xor
            && one.op0_register() == Register::EAX
            && one.op1_register() == Register::EAX;
        if any_in(targets, one.next_ip()..call.syscall.ip() + 1) {
            return ANY;
        }
        if is_constant {
            return u16::try_from(one.immediate32()).unwrap_or(ANY);
        }
        if is_zero {
            return 0;
        }
        let writes = one.op_count() > 0
            && one.op0_kind() == OpKind::Register
            && one.op0_register().full_register() == Register::RAX;
        if writes || one.flow_control() != FlowControl::Next {
            return ANY;
        }
    }
    ANY
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)] // one function

    use super::*;

    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// `mov eax, 1`
    const SET: [u8; 5] = [0xb8, 1, 0, 0, 0];
    /// `xor eax, eax`
    const CLEAR: [u8; 2] = [0x31, 0xc0];
    /// `cmp rax, -4095`
    const COMPARE: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
    const RETURN: [u8; 1] = [0xc3];

    fn whole(code: &[u8]) -> Found {
        find(code, &[0..code.len() as u32])
    }

    fn only(parts: &[&[u8]]) -> Found {
        whole(&parts.concat())
    }

    fn site(start: u32, before: u8, after: u8, number: u16) -> Found {
        let site = Site {
            start,
            before,
            after,
            number,
        };
        Found {
            sites: vec![site],
            unmovable: 0,
        }
    }

    #[test]
    fn a_jump_replaces_the_instruction_that_sets_the_number() {
        let found = only(&[&RETURN, &SET, &SYSCALL, &RETURN]);
        assert_eq!(found, site(1, 5, 0, 1));
    }

    #[test]
    fn a_short_instruction_before_is_not_enough() {
        let found = only(&[&RETURN, &CLEAR, &SYSCALL, &COMPARE, &RETURN]);
        assert_eq!(found, site(3, 0, 6, 0));
    }

    #[test]
    fn a_branch_into_replaced_bytes_prevents_it() {
        let to_compare = [0xeb, 2]; // jmp over the syscall
        let found = only(&[&to_compare, &SYSCALL, &COMPARE, &RETURN]);
        assert_eq!(
            found,
            Found {
                sites: Vec::new(),
                unmovable: 1
            }
        );
        let to_syscall = [0xeb, 0];
        let found = only(&[&to_syscall, &SYSCALL, &COMPARE, &RETURN]);
        assert_eq!(found, site(2, 0, 6, ANY));
    }

    #[test]
    fn a_jump_does_not_reach_into_the_next_function() {
        let code = [&CLEAR[..], &SYSCALL, &COMPARE, &RETURN].concat();
        assert_eq!(whole(&code), site(2, 0, 6, 0));
        let unmovable = Found {
            sites: Vec::new(),
            unmovable: 1,
        };
        assert_eq!(find(&code, &[0..4, 4..11]), unmovable);
    }

    #[test]
    fn data_beside_functions_are_left_alone() {
        let code = [&SET[..], &SYSCALL, &RETURN].concat();
        let data = [&code[..], &code, &code].concat();
        assert_eq!(find(&data, &[8..16]), site(8, 5, 0, 1));
        assert_eq!(find(&data, &[]), Found::default());
        // The code goes on after the end of the function, or not.
        assert_eq!(find(&data, &[8..13]), site(8, 5, 0, 1));
        let data = [&RETURN[..], &SET, &SYSCALL, &RETURN].concat();
        assert_eq!(find(&data, &[0..1]), Found::default());
    }

    #[test]
    fn a_jump_does_not_reach_into_data_after_a_function() {
        let code = [&CLEAR[..], &SYSCALL, &COMPARE, &RETURN].concat();
        let unmovable = Found {
            sites: Vec::new(),
            unmovable: 1,
        };
        assert_eq!(find(&code, &[0..4]), unmovable);
        assert_eq!(find(&code, &[0..10]), site(2, 0, 6, 0));
    }

    #[test]
    fn a_call_with_a_prefix_stays() {
        let found = only(&[&SET, &[0x48], &SYSCALL, &RETURN]);
        assert_eq!(found, Found::default());
    }

    #[test]
    fn a_number_is_unknown_if_a_branch_skips_its_instruction() {
        let to_syscall = [0xeb, 5]; // jmp over `mov eax, 1`
        let found = only(&[&to_syscall, &SET, &SYSCALL, &RETURN]);
        assert_eq!(found, site(2, 5, 0, ANY));
    }

    #[test]
    fn instructions_that_depend_on_their_address_stay() {
        let load = [0x8b, 0x05, 0, 0, 0, 0]; // mov eax, [rip]
        let found = only(&[&load, &SYSCALL, &RETURN]);
        assert_eq!(
            found,
            Found {
                sites: Vec::new(),
                unmovable: 1
            }
        );
    }

    #[test]
    fn data_that_looks_like_the_instruction_is_none() {
        let constant = [0xb8, 0x0f, 0x05, 0x0f, 0x05]; // mov eax, 0x50f050f
        assert_eq!(only(&[&constant, &RETURN]), Found::default());
    }
}
