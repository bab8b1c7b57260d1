// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processors on which the threads run, and the NUMA node from which they allocate: the node
//! from which the registering thread would.
//!
//! A thread starts with the policy of the registering thread, and the policy of a mapping applies
//! whichever thread makes the page. There remains the default of both policies, "the node of the
//! thread that makes the page": then each thread must run on the node of the registering thread, or
//! prefer that node. Also, a processor clears the memory of its own node faster. So if a program has
//! bound parts of the memory to several nodes, the threads populate as many parts at once.

use super::pages::samples;
use core::ffi::c_int;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::proc::{decimal, each_line};
use rdmamr_sys::text::Text;

/// One bit for each processor, or node: as many as the largest kernel configuration has.
type Mask = [u64; 128];
type Nodes = [u64; 16];
const NODES: usize = 8 * size_of::<Nodes>();

/// set_mempolicy(2); libc names only some.
const MPOL_F_ADDR: c_int = 1 << 1;
const MPOL_LOCAL: c_int = 4;

/// The most parts in which memory is populated at once.
pub const PARTS: usize = 8;

/// Where the threads of a registration run.
pub struct Place {
    /// The processors of the registering thread.
    allowed: Mask,
    /// The processors that they may use, if not those of the registering thread.
    processors: Option<Mask>,
    /// How many threads beside the registering one find a processor. More threads would only slow
    /// each other down.
    pub helpers: usize,
    /// The node to allocate from if the thread runs on another.
    node: Option<u32>,
}

impl Place {
    /// The place for this many threads that populate memory at this address.
    pub fn of(address: u64, threads: usize) -> Place {
        let allowed = allowed();
        let mode = |address, flags| policy(address, flags).map(|(mode, _)| mode);
        let of_memory = mode(address, MPOL_F_ADDR);
        let policy = match of_memory {
            Some(libc::MPOL_DEFAULT) => mode(0, 0),
            other => other,
        };
        let is_local = matches!(policy, Some(libc::MPOL_DEFAULT | MPOL_LOCAL));
        let node = this_node().filter(|_| is_local);
        let near = node.and_then(|node| processors_of(node, &allowed));
        // The registering thread runs on one of the processors.
        let spare = |processors: &Mask| count(processors).saturating_sub(1);
        // Only the policy of a mapping leaves no choice: it overrides that of a thread.
        let must = of_memory != Some(libc::MPOL_DEFAULT);
        let processors = near.filter(|near| must || spare(near) >= threads);
        Place {
            helpers: spare(processors.as_ref().unwrap_or(&allowed)),
            allowed,
            processors,
            node,
        }
    }

    /// Moves this thread to the place.
    pub fn go(&self) {
        if let Some(processors) = &self.processors {
            run_on(processors);
        }
        if let Some(node) = self.node {
            prefer(node);
        }
    }

    /// Moves this thread to the only node from which the memory at an address comes, if the policy of
    /// the memory names one and that many threads have room there.
    pub fn go_near(&self, address: u64, threads: usize) {
        if let Some(node) = bound_to(address) {
            let near = processors_of(node, &self.allowed);
            let near = near.filter(|near| count(near) >= threads);
            run_on(near.as_ref().unwrap_or(&self.allowed));
        }
    }
}

/// To how many nodes the policies of its mappings bind the memory, by samples; at least 1, at most
/// [`PARTS`].
pub fn parts(pages: PageRange) -> usize {
    let mut nodes: Nodes = [0; 16];
    for node in samples(pages, 4 * PARTS as u64).filter_map(bound_to) {
        set(&mut nodes, node as usize);
    }
    count(&nodes).clamp(1, PARTS)
}

/// The only node from which the memory at an address comes, by the policy of its mapping.
fn bound_to(address: u64) -> Option<u32> {
    let (mode, nodes) = policy(address, MPOL_F_ADDR)?;
    let names_one = matches!(mode, libc::MPOL_BIND | libc::MPOL_PREFERRED) && count(&nodes) == 1;
    let word = nodes.iter().position(|&word| word != 0)?;
    names_one.then(|| 64 * word as u32 + nodes[word].trailing_zeros())
}

/// Lets this thread run on these processors only.
fn run_on(processors: &Mask) {
    let (this_thread, size, from) = (0usize, size_of::<Mask>(), processors.as_ptr());
    // SAFETY: the mask is readable.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, this_thread, size, from) };
}

fn set(mask: &mut [u64], bit: usize) {
    if let Some(word) = mask.get_mut(bit / 64) {
        *word |= 1 << (bit % 64);
    }
}

fn count(mask: &[u64]) -> usize {
    mask.iter().map(|word| word.count_ones() as usize).sum()
}

/// The processors that this thread may use.
fn allowed() -> Mask {
    let mut mask: Mask = [0; 128];
    let (this_thread, size, to) = (0usize, size_of::<Mask>(), mask.as_mut_ptr());
    // SAFETY: the mask is writable.
    unsafe { libc::syscall(libc::SYS_sched_getaffinity, this_thread, size, to) };
    mask
}

/// The allowed processors of a node; `None` if there are none, or if these are all the allowed ones.
fn processors_of(node: u32, allowed: &Mask) -> Option<Mask> {
    let mut near: Mask = [0; 128];
    let mut path = Text::<64>::new();
    let path = path.set(format_args!("/sys/devices/system/node/node{node}/cpulist"))?;
    let _ = each_line(path, |line| {
        add_list(&mut near, line);
        false
    });
    for (word, allowed) in near.iter_mut().zip(allowed) {
        *word &= allowed;
    }
    (count(&near) > 0 && near != *allowed).then_some(near)
}

/// Adds a list such as "0-3,8,10-11".
fn add_list(mask: &mut Mask, list: &[u8]) {
    for range in list.split(|&byte| byte == b',') {
        let mut ends = range.splitn(2, |&byte| byte == b'-').map(decimal);
        let (Some(first), last) = (ends.next(), ends.next()) else {
            continue;
        };
        let last = last.unwrap_or(first).min(64 * mask.len() as u64 - 1);
        for bit in first..=last {
            set(mask, bit as usize);
        }
    }
}

/// The policy of the memory at an address, or of this thread, and the nodes that it names. `None`
/// without NUMA.
fn policy(address: u64, flags: c_int) -> Option<(c_int, Nodes)> {
    let (mut policy, mut nodes): (c_int, Nodes) = (0, [0; 16]);
    let (to, mask) = (&raw mut policy, nodes.as_mut_ptr());
    // SAFETY: the policy and the mask are writable.
    let failed =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, to, mask, NODES, address, flags) } != 0;
    // The higher bits are flags of the policy.
    let policy = match policy & 0xff {
        // Without a node, preferred means local.
        libc::MPOL_PREFERRED if count(&nodes) == 0 => MPOL_LOCAL,
        policy => policy,
    };
    (!failed).then_some((policy, nodes))
}

fn this_node() -> Option<u32> {
    let mut node = 0u32;
    let nothing = 0usize;
    // SAFETY: the node is writable, and the call writes nothing else.
    let failed = unsafe { libc::syscall(libc::SYS_getcpu, nothing, &raw mut node, nothing) } != 0;
    (!failed).then_some(node)
}

/// Makes this thread allocate from that node while it has free pages, wherever the thread runs.
fn prefer(node: u32) {
    let mut mask: Nodes = [0; 16];
    set(&mut mask, node as usize);
    let (preferred, from) = (libc::MPOL_PREFERRED, mask.as_ptr());
    // SAFETY: the mask is readable.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, preferred, from, NODES) };
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        let mut mask: Mask = [0; 128];
        add_list(&mut mask, b"0-3,8,70-71");
        assert_eq!((mask[0], mask[1], count(&mask)), (0x10f, 0xc0, 7));
    }

    #[test]
    fn a_machine_with_one_node_leaves_the_threads_alone() {
        let here = 0u8;
        let place = Place::of((&raw const here).addr() as u64, 1);
        assert_eq!(place.helpers, count(&allowed()) - 1);
    }
}
