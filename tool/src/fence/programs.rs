// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs, for the running kernel: what they read lies where its BTF says. They are
//! assembled here because the user's machine has no compiler, and a compiled program would need
//! the same places patched in.
//!
//! # Why no change goes uncounted
//! A hook runs at the entry of a function of the kernel. Programs at the exit do not do: when
//! another tracer comes to the same function or leaves it, the kernel has the tasks that are inside
//! skip them.
//!
//! - `userfaultfd_unmap_prep` marks the unmap of watched memory as in flight, and
//!   `move_page_tables` moves pages before `mremap_userfaultfd_prep` marks. The caller of each holds
//!   the mmap lock for writing until it has marked. So a reader of [`MOVES`] takes the lock.
//! - `userfaultfd_remove` marks a call that empties memory, and returns only after the process has
//!   read the event; the effect follows. So the event itself tells the process in time, and there is
//!   no hook.
//!
//! The kernel skips a program on a processor where it has preempted a task inside that program.
//! Such a task cannot leave the processor (migration is disabled). So [`at_switches`] counts the
//! processors on which a task is switched out that cannot leave.

use super::btf::{Btf, FUNCTION, TYPEDEF, VARIABLE};
use super::code::{Alu::*, Code, If, Register, Size::*};
use anyhow::{Result, bail};
use rdmamr_fence::{GAPS, LINE, LINES, MOVES, OPEN};
use std::os::fd::{AsRawFd, BorrowedFd};

/// How the kernel enters a program.
pub const AT_SWITCH: u32 = 23;
pub const AT_ENTRY: u32 = 24;

/// A program, and the entry of BTF that it is attached to.
pub struct Program {
    pub name: &'static str,
    pub target: u32,
    pub how: u32,
    pub code: Code,
}

const TASK: &str = "task_struct";
const VMA: &str = "vm_area_struct";
const MOVE: &str = "pagetable_move_control";
const THIS_CPU_PTR: i32 = 154;

/// The functions at whose entries a change begins.
const HOOKS: [&str; 2] = ["userfaultfd_unmap_prep", "move_page_tables"];

/// The programs that count changes, each on the line of the process that has the memory. That need
/// not be the one that runs.
pub fn hooks(btf: &Btf, counters: BorrowedFd) -> Result<Vec<Program>> {
    let hook = |name: &'static str| {
        let target = btf.id(FUNCTION, name)?;
        let mut code = Code::default();
        // r1: the first argument, then what it leads to.
        code.load(U64, 1, 1, 0);
        if !btf.takes(target, 0, "mm_struct") {
            if btf.takes(target, 0, MOVE) {
                code.load(U64, 1, 1, btf.field(MOVE, "old")?);
            } else if !btf.takes(target, 0, VMA) {
                bail!("this kernel's {name} takes something else");
            }
            // No userfaultfd watches this mapping.
            let context =
                btf.field(VMA, "vm_userfaultfd_ctx")? + btf.field("vm_userfaultfd_ctx", "ctx")?;
            code.load(U64, 2, 1, context);
            code.jump_if(If::Equal, 2, 0, "out");
            code.load(U64, 1, 1, btf.field(VMA, "vm_mm")?);
            // It never is, but the verifier of later kernels wants to know.
            code.jump_if(If::Equal, 1, 0, "out");
        }
        code.load(U64, 1, 1, btf.field("mm_struct", "owner")?);
        // The last task of this memory is on its way out.
        code.jump_if(If::Equal, 1, 0, "out");
        code.load(U32, 1, 1, btf.field(TASK, "tgid")?);
        line(&mut code, 1, LINES);
        code.alu(Add, 1, LINE as i32);
        code.address_of_element(2, counters.as_raw_fd());
        code.alu_by(Add, 2, 1);
        code.alu(Set, 3, 1);
        code.fetch_add(2, MOVES as i16, 3);
        code.end("out");
        Ok(Program {
            name,
            target,
            how: AT_ENTRY,
            code,
        })
    };
    HOOKS.into_iter().map(hook).collect()
}

/// Makes a number the offset of its line, one of `lines`, a power of two.
fn line(code: &mut Code, register: Register, lines: u32) {
    code.alu(And, register, lines as i32 - 1);
    code.alu(ShiftLeft, register, LINE.trailing_zeros() as i32);
}

/// A program for the kernel's switches from one task to another.
fn at_switch(btf: &Btf, name: &'static str, code: Code) -> Result<Program> {
    let target = btf.id(TYPEDEF, "btf_trace_sched_switch")?;
    // Behind the unused data and "preempted".
    if !(2..=3).all(|parameter| btf.takes(target, parameter, TASK)) {
        bail!("this kernel's sched_switch passes something else");
    }
    Ok(Program {
        name,
        target,
        how: AT_SWITCH,
        code,
    })
}

/// Stores in the element of `seen` how many times migration is disabled inside such a program, as
/// a bit, for a thread that has called sleep: that thread itself has not disabled it.
pub fn measuring(btf: &Btf, thread: i32, seen: BorrowedFd) -> Result<Program> {
    let mut code = Code::default();
    code.load(U64, 2, 1, 0);
    code.jump_if(If::NotEqual, 2, 0, "out");
    code.load(U64, 1, 1, 8);
    code.load(U32, 2, 1, btf.field(TASK, "pid")?);
    code.jump_if(If::NotEqual, 2, thread, "out");
    code.load(U16, 1, 1, btf.field(TASK, "migration_disabled")?);
    code.alu(And, 1, 63);
    code.alu(Set, 2, 1);
    code.alu_by(ShiftLeft, 2, 1);
    code.address_of_element(1, seen.as_raw_fd());
    code.load(U64, 3, 1, 0);
    code.alu_by(Or, 2, 3);
    code.store(1, 0, 2);
    code.end("out");
    at_switch(btf, "measuring", code)
}

/// The state of a processor, on its line of a map of this program's own: 0 or 1, whether a task is
/// switched out there that cannot leave; [`BROKEN`] if the kernel's numbers were impossible.
const BROKEN: i32 = 2;

/// Keeps [`OPEN`] and [`GAPS`]. The kernel runs it with interrupts disabled, so that it is never
/// skipped, and is alone on its processor. It runs before the next task, whose calls may be skipped,
/// and again before a task that was switched out comes back.
///
/// `depth` is how many times the kernel disables migration around this program itself: once on
/// kernels whose tracepoints can be preempted, else 0.
pub fn at_switches(
    btf: &Btf,
    depth: i32,
    counters: BorrowedFd,
    processors: BorrowedFd,
    lines: u32,
) -> Result<Program> {
    let disabled = btf.field(TASK, "migration_disabled")?;
    let mut code = Code::default();
    code.alu_by(Set, 6, 1);
    code.address_of_variable(1, btf.id(VARIABLE, "runqueues")?);
    code.call(THIS_CPU_PTR);
    // r7: the tasks of this processor that cannot leave it.
    code.load(U32, 7, 0, btf.field("rq", "nr_pinned")?);
    code.load(U32, 8, 0, btf.field("rq", "cpu")?);
    line(&mut code, 8, lines);
    code.address_of_element(9, processors.as_raw_fd());
    code.alu_by(Add, 9, 8);
    code.load(U64, 8, 9, 0);
    code.jump_if(If::Equal, 8, BROKEN, "out");
    if depth > 0 {
        // Less the previous task if only this program's run keeps it.
        code.load(U64, 1, 6, 8);
        code.load(U16, 1, 1, disabled);
        code.jump_if(If::Less, 1, depth, "impossible");
        code.jump_if(If::NotEqual, 1, depth, "next");
        code.alu(Add, 7, -1);
        code.label("next");
    }
    // Less the next task, which is about to run. Most often there is none at all, and that task is
    // in no cache yet.
    code.jump_if(If::Equal, 7, 0, "compare");
    code.load(U64, 2, 6, 16);
    code.load(U16, 2, 2, disabled);
    code.jump_if(If::Equal, 2, 0, "count");
    code.alu(Add, 7, -1);
    code.label("count");
    code.jump_if(If::Less, 7, 0, "impossible");
    code.jump_if(If::Equal, 7, 0, "compare");
    code.alu(Set, 7, 1);
    code.label("compare");
    code.jump_if_same(7, 8, "out");
    code.store(9, 0, 7);
    code.address_of_element(1, counters.as_raw_fd());
    code.jump_if(If::NotEqual, 7, 0, "raise");
    code.alu(Set, 2, -1);
    code.fetch_add(1, OPEN as i16, 2);
    code.jump("out");
    // The state stays broken, so that OPEN is never lowered again.
    code.label("impossible");
    code.alu(Set, 7, BROKEN);
    code.store(9, 0, 7);
    code.address_of_element(1, counters.as_raw_fd());
    code.label("raise");
    code.alu(Set, 2, 1);
    code.fetch_add(1, OPEN as i16, 2);
    code.alu(Set, 2, 1);
    code.fetch_add(1, GAPS as i16, 2);
    code.end("out");
    at_switch(btf, "switches", code)
}
