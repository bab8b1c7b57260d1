// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot of the cache: a region that the kernel has registered, a further handle of such a region,
//! or a monitored range (memory that is only watched). And the key by which a registration finds it.
//!
//! The memory of slots is never unmapped, and every field is atomic. If a thread reads a slot while the slot
//! becomes another region's, the values are inconsistent. That is harmless, because the slot's
//! state (`state.rs`) shows it.

use crate::region::state::State;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use rdmamr_abi::rdma_core::{IBV_MR_TYPE_MR, ibv_mr};
use rdmamr_abi::uapi::ib_uverbs_reg_mr_resp;
use rdmamr_mr::Request;
use rdmamr_next::Pd;
use rdmamr_policy::{OF_GPU, Range};
use rdmamr_stats::{Counter, counter};
use rdmamr_sys::pages::{PageRange, page_size};

/// The number of words of the `struct ibv_mr` in a slot, including the fields that libibverbs and
/// the providers store behind it (`mr/object.rs`).
const OBJECT: usize = 9;
/// The indices of `context`, `pd`, `addr` and `length` among these words.
const CONTEXT: usize = 0;
const PD: usize = 1;
const ADDR: usize = 2;
const LENGTH: usize = 3;
const HANDLE_AND_LKEY: usize = 4;

/// The object's offset in its slot. It puts all fields that a hit touches into one cache line. With
/// 100 000 regions a hit then has two cache misses, the table's and this one; with two lines it had
/// three.
pub const OBJECT_OFFSET: usize = core::mem::offset_of!(Slot, object);

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// The number of a slot, or none. It is stored as the number plus one, so that zeroed memory links
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u32);

impl Link {
    pub const NONE: Link = Link(0);

    #[inline(always)]
    pub fn to(id: Id) -> Link {
        Link(id.0 + 1)
    }

    #[inline(always)]
    pub fn id(self) -> Option<Id> {
        self.0.checked_sub(1).map(Id)
    }

    /// The link as a bit field of a larger word.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The link that `bits` gave.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Link {
        Link(bits)
    }
}

/// A link that threads share. Its accesses are relaxed: another atomic orders them.
#[repr(transparent)]
pub struct AtomicLink(AtomicU32);

impl AtomicLink {
    #[inline(always)]
    pub fn load(&self) -> Link {
        Link(self.0.load(Relaxed))
    }

    #[inline(always)]
    pub fn store(&self, link: Link) {
        self.0.store(link.0, Relaxed);
    }
}

/// Why a region is invalidated or deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cause {
    Flush,
    Watermark,
    Linger,
    Pressure,
    Hook,
    Event,
    /// A change under way, or the end of a watch nearby: the cache cannot keep the region.
    Uncertain,
}

impl Cause {
    /// Each cause with the counter of the regions that it ends.
    const ALL: [(Cause, Counter); 7] = [
        (Cause::Flush, counter!(flushed_flush)),
        (Cause::Watermark, counter!(flushed_watermark)),
        (Cause::Linger, counter!(flushed_linger)),
        (Cause::Pressure, counter!(flushed_pressure)),
        (Cause::Hook, counter!(flushed_hook)),
        (Cause::Event, counter!(flushed_event)),
        (Cause::Uncertain, counter!(flushed_fence)),
    ];

    /// The cause as [`Slot::cause`] stores it; 0 means no cause.
    pub fn in_word(self) -> u32 {
        self as u32 + 1
    }
}

/// The bits that the address of a region's first page may have. The bits above are 0 in user space,
/// and the bits below are 0 in the address of a page.
const START: u64 = (1 << (u64::BITS - ABOVE)) - (1 << 12);
const ABOVE: u32 = 8;

/// The largest number of a domain that those other bits hold. It also stands for all larger
/// numbers: the cache keeps no region of such a domain. The kernel gives a domain the smallest
/// number that is free in its file.
const LARGE: u32 = (1 << (ABOVE + 12)) - 1;

/// A protection domain, as a region stores it. The address alone may by now be that of another
/// domain: a provider frees a parent domain without a call that reaches the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// The address of the program's object.
    pub pd: u64,
    /// The address of its device's object.
    context: u64,
    /// The kernel's number of the domain in its device's file, as a region's `start` holds it.
    number: u64,
}

impl Domain {
    /// No domain, for a monitored range.
    pub const NONE: Domain = Domain {
        pd: 0,
        context: 0,
        number: 0,
    };

    #[inline(always)]
    pub fn of(pd: Pd) -> Domain {
        Domain::new(pd.address(), pd.context().addr(), pd.handle())
    }

    /// The domain at an address, with its device's address and the kernel's number.
    #[inline(always)]
    pub fn new(pd: usize, context: usize, handle: u32) -> Domain {
        Domain {
            pd: pd as u64,
            context: context as u64,
            number: u64::from(handle.min(LARGE)).rotate_right(ABOVE),
        }
    }
}

/// The properties that a registration asks for. A region serves if it has these, and at most `spare`
/// bytes more behind its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupKey {
    pub domain: Domain,
    pub page_range: PageRange,
    pub access: u32,
    /// At most [`rdmamr_policy::spare`].
    pub spare: u64,
    /// A region serves only if it has no user.
    pub exclusive: bool,
    /// A region serves only if it is of the GPU's allocation of this number; 0 for other memory.
    pub allocation: u64,
}

impl LookupKey {
    /// Whether a region can hold the memory's address and the domain's number.
    pub fn can_be_kept(&self) -> bool {
        self.page_range.start & !START == 0 && self.domain.number != !START
    }
}

/// A range in the form that the rule of `src/policy/` takes.
#[inline(always)]
pub fn range(pd: u64, page_range: PageRange, access: u32) -> Range {
    Range {
        pd,
        start: page_range.start,
        end: page_range.end,
        access,
    }
}

/// A slot. Zeroed memory is a free slot. A slot is three cache lines long. If its length were a
/// power of two, the slots' first lines, which are all that a hit needs, would compete for a
/// quarter of the processor's cache.
#[repr(C, align(64))]
pub struct Slot {
    pub state: State,
    /// The first page. The bits that no such address has hold the number of the domain.
    start: AtomicU64,
    pages: AtomicU32,
    access: AtomicU32,
    /// When a user last released the region, or the kernel last refused to deregister it, by the cache's
    /// clock; [`NEVER`] before that.
    pub released: AtomicU32,
    /// The number of registrations that the slot's own handle has served after the first. The count
    /// needs no locked instruction, because one thread at a time holds that handle.
    hits: AtomicU32,
    /// The `struct ibv_mr` that the program sees.
    object: [AtomicU64; OBJECT],

    /// In a further handle: the slot of its region.
    pub owner: AtomicLink,
    /// While the slot is free or the region is evicted: the next slot in that list.
    pub next: AtomicLink,
    /// Why the region was invalidated, or else why it ends: [`Cause::in_word`]; 0 before that.
    pub cause: AtomicU32,
    /// How often the kernel has refused to deregister the region.
    pub refusals: AtomicU32,
    /// The region's device: the address of a `Device`, and the file descriptor of its kernel
    /// context.
    pub device: AtomicUsize,
    pub fd: AtomicI32,
    /// The kernel's handle of the region.
    pub kernel_handle: AtomicU32,
    /// The region's neighbours in the tree (`find/tree.rs`): the one above it, and those below it,
    /// which start before it and after it.
    pub parent: AtomicLink,
    pub children: [AtomicLink; 2],
    /// [`WATCHED`] if memory may be watched for the region, [`UNWATCHING`], or 0.
    watched: AtomicU32,
    /// In a remotely accessible region: when a user first released it, as the cleaner has found;
    /// `NEVER` before that.
    pub first_released: AtomicU32,
    /// The greatest end of this region and those below it in the tree.
    pub greatest_end: AtomicU64,
    /// In a region of a GPU's memory: the number of the allocation.
    pub allocation: AtomicU64,
    /// Not 0 if the region has had several users at once.
    pub was_shared: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 192 && OBJECT_OFFSET + (LENGTH + 1) * 8 == 64);

/// Stands in `fd` if there is nothing to deregister by it: no region yet or any more, or one that the
/// cache must leave, since the number may mean another file by now.
pub const NO_FILE: i32 = -1;

/// A time of the cache's clock that stands for none. A region that is released at that very tick,
/// one in 2^32, counts as released when it is released again.
pub const NEVER: u32 = 0;

/// Values of `Slot::watched`. `UNWATCHING`: the region ends, and a thread that does not hold the
/// lock ends its watch.
const WATCHED: u32 = 1;
const UNWATCHING: u32 = 2;

impl Slot {
    /// Prepares the slot for a region, or for a monitored range, which has no domain and no access.
    pub fn set(&self, page_range: PageRange, domain: Domain, access: u32) {
        self.state.before_fields();
        self.start
            .store(page_range.start & START | domain.number, Relaxed);
        self.pages.store(page_range.pages() as u32, Relaxed);
        self.object[CONTEXT].store(domain.context, Relaxed);
        self.object[PD].store(domain.pd, Relaxed);
        self.access.store(access, Relaxed);
        // Cleared, because ibv_close_device would otherwise find this region by the device of the
        // slot's last region.
        self.device.store(0, Relaxed);
        self.cause.store(0, Relaxed);
        self.hits.store(0, Relaxed);
        self.refusals.store(0, Relaxed);
        self.released.store(NEVER, Relaxed);
        self.first_released.store(NEVER, Relaxed);
        self.watched.store(0, Relaxed);
        self.fd.store(NO_FILE, Relaxed);
        self.allocation.store(0, Relaxed);
        self.was_shared.store(0, Relaxed);
    }

    /// Counts a registration that the slot's own handle serves. True if the 32-bit count wrapped to
    /// 0, which takes an hour of hits.
    #[inline(always)]
    pub fn count_hit(&self) -> bool {
        let hits = self.hits.load(Relaxed).wrapping_add(1);
        self.hits.store(hits, Relaxed);
        hits == 0
    }

    /// Returns the count of hits and clears it. The caller counts these hits elsewhere.
    pub fn forget_hits(&self) -> u64 {
        self.hits.swap(0, Relaxed).into()
    }

    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed).into()
    }

    /// The pages that the region covers.
    #[inline(always)]
    pub fn page_range(&self) -> PageRange {
        let start = self.start.load(Relaxed) & START;
        let end = start + u64::from(self.pages.load(Relaxed)) * page_size();
        PageRange { start, end }
    }

    /// From now on userfaultfd may watch memory in the chunks of the region for it.
    pub fn set_watched(&self) {
        self.watched.store(WATCHED, Relaxed);
    }

    /// Whether memory may be watched for the region, or is just about to be watched no more. False
    /// before it is watched.
    pub fn is_watched(&self) -> bool {
        self.watched.load(Relaxed) != 0
    }

    /// A thread is about to end the watch. Under the cache's lock.
    pub fn begin_unwatching(&self) {
        self.watched.store(UNWATCHING, Relaxed);
    }

    /// Whether a thread ends the watch.
    pub fn is_unwatching(&self) -> bool {
        self.watched.load(Relaxed) == UNWATCHING
    }

    /// The address of the protection domain.
    #[inline(always)]
    pub fn pd(&self) -> u64 {
        self.object[PD].load(Relaxed)
    }

    /// Whether the region belongs to this domain of the kernel, whatever the address of the domain.
    #[inline(always)]
    pub fn is_of(&self, domain: Domain) -> bool {
        let number = (self.start.load(Relaxed) ^ domain.number) & !START;
        let context = self.object[CONTEXT].load(Relaxed) ^ domain.context;
        number | context == 0
    }

    #[inline(always)]
    pub fn access(&self) -> u32 {
        self.access.load(Relaxed)
    }

    pub fn lkey(&self) -> u32 {
        const _: () = assert!(core::mem::offset_of!(ibv_mr, lkey) == HANDLE_AND_LKEY * 8 + 4);
        let words = self.object[HANDLE_AND_LKEY].load(Relaxed).to_ne_bytes();
        u32::from_ne_bytes([words[4], words[5], words[6], words[7]])
    }

    /// Whether the cache must not deregister the region: the kernel has ended it, or the cache has
    /// abandoned it, for example because the program closed the device while the region was in use.
    pub fn has_no_file(&self) -> bool {
        self.fd.load(Relaxed) == NO_FILE
    }

    /// Whether the region serves a registration with this key.
    #[inline(always)]
    pub fn serves(&self, lookup_key: &LookupKey) -> bool {
        let (has, asked) = (self.page_range(), lookup_key.page_range);
        self.pd() == lookup_key.domain.pd
            && has.start == asked.start
            && has.end.wrapping_sub(asked.end) <= lookup_key.spare
            && self.access() == lookup_key.access
            && self.is_of(lookup_key.domain)
            // Other memory has no allocation: a hit there reads no further cache line.
            && (lookup_key.access & OF_GPU == 0 || self.is_in(lookup_key.allocation))
    }

    /// Whether the region is of a GPU's memory.
    #[inline(always)]
    pub fn is_of_gpu(&self) -> bool {
        self.access() & OF_GPU != 0
    }

    /// Whether the region is of the allocation of this number.
    pub fn is_in(&self, allocation: u64) -> bool {
        self.allocation.load(Relaxed) == allocation
    }

    /// Why the region ends, if that is known, and the counter of that.
    pub fn cause(&self) -> Option<(Cause, Counter)> {
        let number = self.cause.load(Relaxed).checked_sub(1)?;
        Cause::ALL.get(number as usize).copied()
    }

    /// How many bytes of the processor's memory the region pins.
    pub fn pinned(&self) -> u64 {
        if self.is_of_gpu() {
            0
        } else {
            self.page_range().bytes()
        }
    }

    /// The region's domain, pages and access.
    #[inline(always)]
    pub fn range(&self) -> Range {
        range(self.pd(), self.page_range(), self.access())
    }

    /// The address by which the program knows the region.
    #[inline(always)]
    pub fn object(&self) -> usize {
        (&raw const *self).expose_provenance() + OBJECT_OFFSET
    }

    /// Describes the region that the kernel has just registered in this slot, as
    /// [`rdmamr_mr::Object::fill`] does: other threads may be reading the slot.
    pub fn describe(&self, request: &Request, answer: &ib_uverbs_reg_mr_resp) {
        self.set_memory(request.addr.addr() as u64, request.length as u64);
        let access = request.access.bits();
        let pairs = [
            [answer.mr_handle, answer.lkey],
            [answer.rkey, 0],
            [IBV_MR_TYPE_MR, access],
            [access, 0],
            [0, 0],
        ];
        for (word, [first, second]) in self.object[HANDLE_AND_LKEY..].iter().zip(pairs) {
            word.store(u64::from(first) | u64::from(second) << u32::BITS, Relaxed);
        }
    }

    /// Writes the program's address and length into the object.
    #[inline(always)]
    pub fn set_memory(&self, addr: u64, length: u64) {
        self.object[ADDR].store(addr, Relaxed);
        self.object[LENGTH].store(length, Relaxed);
    }

    /// Makes the object a copy of another slot's object.
    pub fn copy_object(&self, from: &Slot) {
        for (word, from) in self.object.iter().zip(&from.object) {
            word.store(from.load(Relaxed), Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::ptr::with_exposed_provenance_mut;
    use rdmamr_abi::rdma_core::{ibv_context, ibv_pd};
    use rdmamr_mr::{Access, Mr, Object};

    #[test]
    fn a_domain_is_its_address_its_device_and_its_number() {
        // SAFETY: all zeros is a slot that was never used.
        let region: Slot = unsafe { core::mem::zeroed() };
        let page_range = PageRange::new(
            START & !(page_size() - 1),
            (START & !(page_size() - 1)) + page_size(),
        );
        let numbers = [
            0,
            1,
            0xff,
            0x100,
            0xfff,
            0x1000,
            LARGE - 1,
            LARGE,
            1 << 20,
            u32::MAX,
        ];
        let lookup_key = |pd, context, number| LookupKey {
            domain: Domain::new(pd, context, number),
            page_range,
            access: 1,
            spare: 0,
            exclusive: false,
            allocation: 0,
        };
        for (had, asked) in numbers
            .into_iter()
            .flat_map(|had| numbers.map(|asked| (had, asked)))
        {
            let makes = lookup_key(8, 16, had);
            assert_eq!(makes.can_be_kept(), had < LARGE);
            if !makes.can_be_kept() {
                continue;
            }
            region.set(page_range, makes.domain, 1);
            assert_eq!(region.page_range(), page_range);
            assert_eq!(region.serves(&lookup_key(8, 16, asked)), had == asked);
            assert!(!region.serves(&lookup_key(8, 24, had)));
            assert!(!region.serves(&lookup_key(24, 16, had)));
        }
    }

    #[test]
    fn the_object_is_that_of_a_plain_region() {
        // SAFETY: all zeros is a slot that was never used.
        let slot: Slot = unsafe { core::mem::zeroed() };
        // SAFETY: zeros are a device of numbers and null pointers.
        let mut device: ibv_context = unsafe { core::mem::zeroed() };
        let mut domain = ibv_pd {
            context: &raw mut device,
            handle: 7,
        };
        // SAFETY: the domain and its device outlive the test.
        let pd = unsafe { Pd::from_c(&raw mut domain) }.unwrap();
        let addr = core::ptr::without_provenance_mut(0x1234_5008);
        let request = Request::at_address(addr, 100, Access::from_bits_retain(0x10_0007));
        let answer = ib_uverbs_reg_mr_resp {
            mr_handle: 1,
            lkey: 2,
            rkey: 3,
        };
        slot.set(PageRange::new(0x1234_5000, 0x1234_6000), Domain::of(pd), 7);
        slot.describe(&request, &answer);
        let plain = Object::allocate().unwrap();
        plain.fill(pd, &request, &answer);
        let fields = |object| {
            // SAFETY: both objects are filled.
            let mr = unsafe { Mr::from_c(with_exposed_provenance_mut(object)) }.unwrap();
            let ibv_mr {
                context,
                pd,
                addr,
                length,
                handle,
                lkey,
                rkey,
            } = mr.read();
            let pointers = [context.addr(), pd.addr(), addr.addr()];
            let is_ordinary = !mr.is_stand_in() && !mr.is_retired() && !mr.may_lack_handle();
            (
                pointers,
                length,
                [handle, lkey, rkey, mr.access()],
                is_ordinary,
            )
        };
        assert_eq!(fields(slot.object()), fields(plain.address()));
        assert!(fields(slot.object()).3);
    }
}
