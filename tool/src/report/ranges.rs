// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is registered again and again, and the most time that the cache could save there.
//! The library's own rule, `rdmamr-policy`, decides which registrations the cache serves.
//!
//! This is a bound and no forecast: a region that the cache makes counts as idle from its first
//! release to the end of its process, and its memory as unchanged. So no cache serves more
//! registrations from idle regions than come back here.
use super::access;
use super::durations::Durations;
use super::shape::{Again, Bound, Unserved, What};
use rdmamr_policy::{Asked, CacheMode, Range, Released};
use rdmamr_trace_format::{Call, call, how, unserved};
use std::collections::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// What the bound leaves out: the trace does not tell a GPU's allocations apart, and one region may
/// serve all of an allocation.
pub const OF_GPU: &str = "the memory is a GPU's: whether it is the same is not known";
/// A call is an outlier if it takes this many medians of its length: lengths differ by a factor of 2.
pub const OUTLIER: u64 = 8;

/// Why the cache does not serve such a registration, in words; `None` if it does.
fn refusal(call: &Call) -> Option<&'static str> {
    let asked = Asked {
        access: call.access,
        at_own_address: true,
        is_empty: call.length == 0,
    };
    let reason = match call.reason {
        _ if call.how == how::GPU => return Some(OF_GPU),
        _ if access::of_fabric(call.call) => return None,
        _ if call.how == how::FORWARDED => unserved::DEVICE,
        unserved::UNKNOWN if call.call == call::REG_DMABUF_MR => unserved::DEVICE,
        unserved::UNKNOWN => rdmamr_policy::refusal_of(CacheMode::All, asked),
        reason => reason,
    };
    let words = unserved::WORDS.get(reason as usize);
    let words = words.unwrap_or(&"a reason that this program does not know");
    (reason != unserved::NONE).then_some(words)
}

/// The registrations that a setting serves: those of `--cache=local`, those that `--cache=all`
/// adds, and libfabric's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    Local,
    Remote,
    Fabric,
}

/// How the cache serves a registration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// Not at all: the range comes for the first time.
    Plainly,
    /// By a new region.
    Anew,
    /// By an idle region, if there is one: the registration has come back.
    Again,
}

/// A registration that the cache may serve.
#[derive(Clone, Copy)]
pub struct Registration {
    process: u32,
    range: Range,
    class: Class,
    site: u32,
    served: Served,
}

/// The power of two of a length, as [`super::replay::Replay::sizes`] counts it.
pub fn bits(length: u64) -> u32 {
    u64::BITS - length.leading_zeros()
}

/// A range of a process, in an order in which those that differ only in their end lie together.
fn key(process: u32, range: &Range) -> (u32, u64, u32, u64, u64) {
    (process, range.pd, range.access, range.start, range.end)
}

/// All known ranges.
#[derive(Default)]
pub struct Ranges {
    /// The ranges that each process has registered plainly and released.
    released: HashMap<u32, Box<Released>>,
    /// The ranges of the regions that the cache has made, with their processes: domain, access, first
    /// page, end.
    regions: BTreeSet<(u32, u64, u32, u64, u64)>,
    /// The durations of the calls that came back, by their class, the power of two of their length,
    /// and what they do.
    back: HashMap<(Class, u32, What), Durations>,
    /// The same calls by the site of their registration and its access.
    pub by_caller: HashMap<(u32, u32), Again>,
    /// The registrations that the cache does not serve, by reason.
    pub unserved: HashMap<&'static str, Unserved>,
}

impl Ranges {
    /// `None` if the registration was not plain, and if the cache does not serve it.
    pub fn register(
        &mut self,
        process: u32,
        range: Range,
        site: u32,
        call: &Call,
    ) -> Option<Registration> {
        if matches!(call.how, how::HIT | how::MISS | how::PAST) {
            return None;
        }
        if let Some(reason) = refusal(call) {
            let unserved = self.unserved.entry(reason).or_default();
            unserved.reason = reason;
            unserved.registrations += 1;
            unserved.time_ns += u64::from(call.duration);
            return None;
        }
        let class = match access::of_fabric(call.call) {
            true => Class::Fabric,
            false if CacheMode::Local.wants(call.access) => Class::Local,
            false => Class::Remote,
        };
        let mut of = Registration {
            process,
            range,
            class,
            site,
            served: Served::Plainly,
        };
        let released = self.released.get(&process);
        if self.has_region(process, &range) {
            of.served = Served::Again;
        // A relaxed call says itself that its memory comes back.
        } else if class == Class::Fabric || released.is_some_and(|of| of.comes_back(&range)) {
            of.served = Served::Anew;
        }
        self.count(&of, call);
        Some(of)
    }

    /// Whether the cache has made a region that serves this range.
    fn has_region(&self, process: u32, range: &Range) -> bool {
        let least = key(process, range);
        let spare = rdmamr_policy::spare(range.access);
        let (process, pd, access, start, end) = least;
        let most = (process, pd, access, start, end.saturating_add(spare));
        self.regions.range(least..=most).next().is_some()
    }

    /// Counts a call, if it is of a registration that came back.
    fn count(&mut self, of: &Registration, call: &Call) {
        if of.served != Served::Again {
            return;
        }
        let what = What::of(call);
        let durations = self.back.entry((of.class, bits(call.length), what));
        durations.or_default().add(call.duration);
        let (access, bytes) = (of.range.access, of.range.end - of.range.start);
        let again = self.by_caller.entry((of.site, access));
        let again = again.or_insert_with(|| Again {
            access: access::words(call.call, access),
            remote: access::remote(call.call, access),
            smallest_bytes: bytes,
            ..Again::default()
        });
        again.smallest_bytes = again.smallest_bytes.min(bytes);
        again.largest_bytes = again.largest_bytes.max(bytes);
        again.registrations += u64::from(what == What::Plain);
        again.time_ns += u64::from(call.duration);
    }

    /// A registration has ended, by the deregistration `call` if the trace has it.
    pub fn release(&mut self, of: Option<Registration>, call: Option<&Call>) {
        let Some(of) = of else { return };
        if let Some(call) = call {
            self.count(&of, call);
        }
        match of.served {
            Served::Plainly => {
                let released = self.released.entry(of.process);
                let released = released.or_insert_with(|| Box::new(Released::new()));
                released.add(&of.range);
            }
            Served::Anew => {
                self.regions.insert(key(of.process, &of.range));
            }
            Served::Again => {}
        }
    }

    /// The most time that the cache saves in the calls of these classes. `sizes` has the durations
    /// of all calls.
    pub fn bound(&self, classes: &[Class], sizes: &BTreeMap<(u32, What), Durations>) -> Bound {
        let mut bound = Bound::default();
        let back = self.back.iter();
        for (&(_, bits, what), durations) in back.filter(|(of, _)| classes.contains(&of.0)) {
            let all = sizes.get(&(bits, what));
            let median = all.map_or(0, |all| all.quantile(0.5));
            let (outliers, time) = durations.above(OUTLIER * median);
            let beyond = time.saturating_sub(outliers * median);
            bound.registrations += u64::from(what == What::Plain) * durations.count;
            bound.most_ns += durations.total - beyond;
            bound.outliers += outliers;
            bound.outlier_ns += beyond;
        }
        bound
    }
}
