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
//! Code is decoded from its start to its end. Data inside code could hide an instruction; compilers put
//! none there. Targets of computed jumps are unknown; no compiler computes one into the middle of a call.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use std::collections::VecDeque;

/// Bytes of a jump with a distance of 32 bits.
pub(crate) const JUMP_BYTES: usize = 5;
/// Most bytes of a site.
pub(crate) const MAX_BYTES: usize = 24;
/// Neighbours that are considered on each side.
const NEIGHBOURS: usize = 4;
/// Instructions before the `syscall` among which its number is looked for.
const MEMORY: usize = 10;

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

/// Finds the sites of `code`.
pub(crate) fn find(code: &[u8]) -> Found {
    let mut found = Found::default();
    if !code.windows(2).any(|pair| pair == [0x0f, 0x05]) {
        return found;
    }
    let (calls, targets) = decode(code);
    for call in calls {
        match site(&call, &targets) {
            Some(site) => found.sites.push(site),
            None => found.unmovable += 1,
        }
    }
    found
}

/// All `syscall` instructions, and the targets of all branches, in order.
fn decode(code: &[u8]) -> (Vec<Call>, Vec<u64>) {
    let mut calls: Vec<Call> = Vec::new();
    let mut targets = Vec::new();
    let mut recent = VecDeque::with_capacity(MEMORY + 1);
    let mut open = 0; // calls at the end of the list that still lack neighbours
    for instruction in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        for call in calls.iter_mut().rev().take(open) {
            call.after.push(instruction);
        }
        open = calls
            .iter()
            .rev()
            .take(open)
            .filter(|call| call.after.len() < NEIGHBOURS)
            .count();
        if instruction.code() == Code::Syscall {
            calls.push(Call {
                before: recent.iter().copied().collect(),
                syscall: instruction,
                after: Vec::new(),
            });
            open += 1;
        }
        if is_branch(&instruction) {
            targets.push(instruction.near_branch_target());
        }
        recent.push_back(instruction);
        if recent.len() > MEMORY {
            recent.pop_front();
        }
    }
    targets.sort_unstable();
    targets.dedup();
    (calls, targets)
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
fn site(call: &Call, targets: &[u64]) -> Option<Site> {
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
        (JUMP_BYTES..=MAX_BYTES).contains(&bytes) && !any_in(targets, replaced)
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
    use super::*;

    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// `mov eax, 1`
    const SET: [u8; 5] = [0xb8, 1, 0, 0, 0];
    /// `xor eax, eax`
    const CLEAR: [u8; 2] = [0x31, 0xc0];
    /// `cmp rax, -4095`
    const COMPARE: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
    const RETURN: [u8; 1] = [0xc3];

    fn only(parts: &[&[u8]]) -> Found {
        find(&parts.concat())
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
