// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr explain --trace FILE --key KEY`: which region of a trace had a key, and whether an access by
//! it fits: its bytes, its moment, its rights. What the trace does not have is "not known".

use super::entry;
use crate::report::callers::{Frame, Resolver};
use crate::report::figures::name_of;
use crate::report::units::{plural, printable, program, time};
use crate::report::{access, perfetto};
use crate::trace::{Event, Trace};
use anyhow::{Context as _, ensure};
use rdmamr_abi::rdma_core::IBV_ACCESS_ZERO_BASED;
use rdmamr_trace_format::{Call, call, how, unserved};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// So many regions are shown, the likeliest first: key numbers come back.
const SHOWN: usize = 3;
/// So many regions that ended are kept.
const MOST: usize = 1 << 16;

// clap names a group after the type, and the command's own is called so too.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Look a key up in the trace of the process that registered the memory
    #[arg(long, value_name = "FILE", requires = "key", conflicts_with = "words")]
    pub trace: Option<PathBuf>,
    /// The lkey or the rkey of a work request that failed
    #[arg(long, value_parser = number, requires = "trace", conflicts_with = "words")]
    key: Option<u64>,
    /// The address of that work request
    #[arg(long, value_parser = number, requires = "key")]
    addr: Option<u64>,
    /// Its bytes
    #[arg(long, value_parser = number, requires = "addr")]
    length: Option<u64>,
}

/// A number as programs print it: 0x1234, or decimal.
fn number(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let number = hex.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    number.map_err(|_| "no number: 0x1234 is hexadecimal, 1234 decimal".to_owned())
}

/// What the trace says about the key.
pub fn explain(trace: &Path, args: &Args) -> anyhow::Result<String> {
    let key = args.key.context("no key")?;
    let key = u32::try_from(key).context("a key has 32 bits")?;
    let wanted = args.addr.map(|start| (start, args.length.unwrap_or(1)));
    let has_end = wanted.is_none_or(|(start, length)| start.checked_add(length).is_some());
    ensure!(has_end, "the access runs past the end of the address space");
    let asked = Asked { key, wanted };
    asked.answer(&Trace::of(&[trace.to_owned()])?)
}

/// What is asked: a key, and the first byte and the length of an access.
struct Asked {
    key: u32,
    wanted: Option<(u64, u64)>,
}

/// The identity of a region while it is registered: process, lkey, domain.
type Key = (u32, u32, u64);

/// A region of the trace.
struct Region {
    key: Key,
    /// The first call of the trace that is about it: its registration, if `is_made`.
    first: Event,
    is_made: bool,
    /// The cache made it, with whole pages.
    is_cached: bool,
    /// The memory that the device knows.
    memory: (u64, u64),
    /// `None` if it is not in the trace.
    access: Option<u32>,
    /// The registrations that it serves now, and has served.
    holders: u64,
    served: u64,
    /// When the last of them ended, while the cache kept the region.
    released: Option<u64>,
    /// When it ended, and by which call.
    ended: Option<(u64, u8)>,
    /// So many ends of earlier regions with this key, the cache still reports.
    late: u32,
}

/// The regions that a rule picks.
#[derive(Default)]
struct Regions {
    /// In the order of the key, so those of a process and an lkey are adjacent.
    live: BTreeMap<Key, Region>,
    ended: VecDeque<Region>,
    /// How many earlier ones are not in the list.
    forgotten: u64,
}

impl Regions {
    /// `is_it` says whether a call is about a region in question: the same for all calls on one.
    fn of(trace: &Trace, is_it: impl Fn(&Call) -> bool) -> anyhow::Result<Regions> {
        let mut regions = Regions::default();
        trace.calls(|event| {
            let call = &event.call;
            let failed = call.errno != 0 || matches!(call.call, call::NONE | call::CHANGE);
            let is_end = !call::registers(call.call) && call.call != call::CACHE;
            // Such an end found no region.
            let is_nothing = is_end && call.how == how::NONE;
            if !failed && !is_nothing && !call::is_on_umem(call.call) && is_it(call) {
                regions.see(trace, event);
            }
        })?;
        Ok(regions)
    }

    fn see(&mut self, trace: &Trace, event: &Event) {
        let call = &event.call;
        let key = (event.process, call.lkey, call.pd);
        let mut before = self.live.remove(&key);
        if before.is_none() && call.call == call::REREG_MR {
            // It may have brought another domain.
            let all = (key.0, key.1, 0)..=(key.0, key.1, u64::MAX);
            let other = self.live.range(all).next().map(|(&other, _)| other);
            before = other.and_then(|other| self.live.remove(&other));
        }
        let mut region = match before {
            Some(region) if !makes(call) => region,
            None if call.call == call::CACHE => return,
            before => {
                let mut region = Region::new(trace, event);
                if let Some(mut before) = before {
                    // The number was assigned again. Of a cached region the trace tells the end later.
                    before.ended = Some((event.effect, call::NONE));
                    region.late = before.late + u32::from(before.is_cached);
                    self.end(before);
                }
                region
            }
        };
        region.key = key;
        region.see(event);
        match region.ended {
            None => drop(self.live.insert(key, region)),
            Some(_) => self.end(region),
        }
    }

    fn end(&mut self, region: Region) {
        if self.ended.len() == MOST {
            self.ended.pop_front();
            self.forgotten += 1;
        }
        self.ended.push_back(region);
    }

    /// The last one comes first.
    fn list(self) -> Vec<Region> {
        let mut list = Vec::from(self.ended);
        list.extend(self.live.into_values());
        list.sort_by_key(|region| Reverse(region.first.effect));
        list
    }
}

/// Whether a call makes a region in the kernel.
fn makes(call: &Call) -> bool {
    call::registers(call.call) && call.how != how::HIT && call.call != call::REREG_MR
}

impl Region {
    fn new(trace: &Trace, event: &Event) -> Region {
        let call = &event.call;
        let mut region = Region {
            key: Key::default(),
            first: *event,
            is_made: makes(call),
            is_cached: matches!(call.how, how::MISS | how::HIT | how::KEPT),
            memory: (call.addr, call.length),
            access: call::registers(call.call).then_some(call.access),
            holders: u64::from(!call::registers(call.call)),
            served: 0,
            released: None,
            ended: None,
            late: 0,
        };
        if region.is_cached {
            let (start, end) = trace.processes[event.process as usize].pages(call);
            region.memory = (start, end - start);
        }
        region
    }

    fn see(&mut self, event: &Event) {
        let (call, now) = (&event.call, event.effect);
        match call.call {
            call::CACHE if self.late > 0 => self.late -= 1,
            call::CACHE => self.ended = Some((now, call::CACHE)),
            call::REREG_MR => {
                if call.length != 0 {
                    self.memory = (call.addr, call.length);
                }
                // Whether the flags changed, the trace does not say.
                self.access = self.access.filter(|&access| access == call.access);
            }
            number if call::registers(number) => {
                (self.holders, self.served) = (self.holders + 1, self.served + 1);
                self.released = None;
            }
            number => {
                self.holders = self.holders.saturating_sub(1);
                match self.holders {
                    0 if call.how == how::KEPT => self.released = Some(now),
                    0 => self.ended = Some((now, number)),
                    _ => {}
                }
            }
        }
    }

    /// The address of the first byte for a work request, and whether that is certain.
    fn base(&self) -> (Option<u64>, bool) {
        let (first, flags) = (&self.first.call, self.access.unwrap_or(0));
        if flags & IBV_ACCESS_ZERO_BASED != 0 && !access::of_fabric(first.call) {
            return (Some(0), true);
        }
        if self.is_made && first.reason == unserved::ADDRESS || self.memory.0 == 0 {
            return (None, true);
        }
        let is_plain = matches!(first.call, call::REG_MR | call::REG_MR_RELAXED);
        let is_own = self.is_made && (is_plain || first.reason == unserved::NONE);
        (Some(self.memory.0), is_own)
    }

    /// By how many bytes an access begins before the region, and ends beyond it.
    fn outside(&self, (start, length): (u64, u64)) -> Option<(u64, u64)> {
        let base = self.base().0?;
        let end = base.saturating_add(self.memory.1);
        let beyond = (start + length).saturating_sub(end);
        Some((base.saturating_sub(start), beyond))
    }

    /// By how many bytes an access is outside, as far as that is known.
    fn distance(&self, wanted: Option<(u64, u64)>) -> u64 {
        let outside = wanted.and_then(|wanted| self.outside(wanted));
        outside.map_or(0, |(before, beyond)| before.saturating_add(beyond))
    }
}

impl Asked {
    fn answer(&self, trace: &Trace) -> anyhow::Result<String> {
        let mut names = Resolver::default();
        let regions = Regions::of(trace, |call| call.lkey == self.key)?;
        let forgotten = regions.forgotten;
        let mut list = regions.list();
        // The likeliest first.
        list.sort_by_key(|region| region.distance(self.wanted));
        let fits = |region: &Region| region.ended.is_none() && region.distance(self.wanted) == 0;
        let fit = list.iter().any(fits);
        let mut text = |region: &Region| self.region(trace, &mut names, region);
        let mut texts: Vec<_> = list.iter().take(SHOWN).map(&mut text).collect();
        let more = forgotten + list.len().saturating_sub(SHOWN) as u64;
        if more > 0 {
            let regions = plural(more, "other region", "other regions");
            texts.push(format!("{regions} of the trace had this key.\n"));
        }
        if list.is_empty() {
            texts.push(self.nothing(trace)?);
        }
        if let Some((start, length)) = self.wanted.filter(|_| !fit) {
            let contains = |call: &Call| {
                let end = call.addr.saturating_add(call.length);
                call.lkey != self.key && call.addr < start + length && start < end
            };
            let others = Regions::of(trace, contains)?.list();
            texts.extend(others.iter().take(SHOWN).map(text));
        }
        Ok(texts.join("\n"))
    }

    /// No region had the key.
    fn nothing(&self, trace: &Trace) -> anyhow::Result<String> {
        let mut below = vec![
            "The trace has lkeys. The rkey of a region is the same number on most devices.".to_owned(),
            "Not known: whether a region had it before the recording began, or in a process that is not in the \
             trace."
                .to_owned(),
        ];
        let (_, dropped) = trace.count();
        if dropped > 0 {
            let calls = plural(dropped, "call is", "calls are");
            below.push(format!(
                "{calls} not in the trace, for lack of room (--trace-limit)."
            ));
        }
        below.extend(trace.damage.iter().cloned());
        let swapped = self.key.swap_bytes();
        let others = Regions::of(trace, |call| call.lkey == swapped)?.list();
        if !others.is_empty() {
            below.push(format!(
                "Likely its bytes are in the wrong order: a region had the key {swapped:#x} (ntohl)."
            ));
        }
        let heading = format!("No region of the trace had the key {:#x}", self.key);
        Ok(entry(&heading, &below, None))
    }

    fn region(&self, trace: &Trace, names: &mut Resolver, region: &Region) -> String {
        let (process, lkey, _) = region.key;
        let process = &trace.processes[process as usize];
        let number = region.first.call.call;
        let rights = region.access.map(|it| access::words(number, it));
        let rights = rights.unwrap_or("access not known".into());
        let (pid, name) = (process.pid, printable(&program(&process.command)));
        let (start, length) = region.memory;
        let heading =
            format!("Key {lkey:#x} of {name} {pid}: {length} bytes at {start:#x}, {rights}");
        let mut below = vec![self.life(trace, names, region)];
        if lkey != self.key {
            below.push("This key, not the one of the request, is that of the memory.".to_owned());
        } else {
            below.extend(self.wanted.map(|wanted| of_bytes(region, wanted)));
            below.extend(region.access.and_then(|it| of_rights(number, it)));
            below.push(
                "A queue pair of another domain or device may not use it. The trace has no queue pairs."
                    .to_owned(),
            );
        }
        entry(&heading, &below, None)
    }

    /// When the region began, and when it ended.
    fn life(&self, trace: &Trace, names: &mut Resolver, region: &Region) -> String {
        let process = &trace.processes[region.key.0 as usize];
        let at = |moment: u64| {
            let clock = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_nanos(moment));
            let since = time(moment.saturating_sub(trace.begin()));
            format!("{since} after the beginning ({clock})")
        };
        let event = &region.first;
        let mut text = match region.is_made {
            false => "Its registration is not in the trace, which begins later or lacks calls."
                .to_owned(),
            true => {
                let callers = perfetto::caller(trace, names, event);
                let callers: Vec<_> = callers.iter().map(Frame::words).collect();
                let callers = printable(&callers.join(" < "));
                let name = name_of(event.call.call);
                format!("Registered {} by {name} in {callers}.", at(event.effect))
            }
        };
        if region.served > 1 {
            text += &format!(" The cache served {} registrations by it.", region.served);
        }
        if let Some(end) = region.released.map(at) {
            text += &format!(" The last one was deregistered {end}; the cache kept the region.");
        }
        let (end, by) = region.ended.unzip();
        let end = at(end.unwrap_or(process.end));
        text + &match (by, process.ended, process.stopped) {
            (Some(call::NONE), ..) => {
                format!(" Ended before {end}, when its key was assigned again.")
            }
            (Some(call::CACHE), ..) => format!(" The cache ended it {end}."),
            (Some(by), ..) => format!(" Ended {end} by {}.", name_of(by)),
            _ if process.lacks_calls() => {
                " Not known when it ended: the trace lacks calls of the process.".to_owned()
            }
            (_, true, _) => format!(" It ended with the process, {end}."),
            (_, _, true) => format!(" It was registered when the recording stopped, {end}."),
            _ => format!(
                " Not known when it ended: the trace of the process has no end, its last call is {end}. The \
                 process ran on, was killed, or the trace is cut off."
            ),
        }
    }
}

/// By how many bytes an access is outside.
fn of_bytes(region: &Region, wanted: (u64, u64)) -> String {
    let Some((before, beyond)) = region.outside(wanted) else {
        return "Not known whether the access is inside: work requests address the region otherwise than the program \
                (iova, or an offset in a dma-buf), and the trace does not have that address."
            .to_owned();
    };
    let all = wanted.1;
    let bytes = |count| plural(count, "byte", "bytes");
    let (early, late) = (bytes(before), bytes(beyond));
    let text = match (before, beyond) {
        (0, 0) => "The access is inside the region.".to_owned(),
        (0, _) if beyond >= all => {
            let far = bytes(beyond - all);
            format!("The access begins {far} beyond the end of the region.")
        }
        (_, 0) if before >= all => {
            format!("The access ends {} before the region.", bytes(before - all))
        }
        (0, _) => format!("The access ends {late} beyond the region."),
        (_, 0) => format!("The access begins {early} before the region."),
        _ => format!("The access begins {early} before the region, and ends {late} beyond it."),
    };
    match region.base().1 {
        true => text,
        false => {
            text + " That is so if work requests use the program's address, which the trace does not say."
        }
    }
}

/// The rights that an access needs and the region lacks.
fn of_rights(number: u8, access: u32) -> Option<String> {
    let missing = access::missing(number, access);
    let missing = missing.map(|(operation, right)| format!("{operation} needs {right}"));
    let missing = missing.collect::<Vec<_>>().join("; ");
    (!missing.is_empty()).then(|| format!("Its rights refuse: {missing}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::units::controls;
    use crate::sample::{Sample, Writer, deregister, file, register};
    use anstream::adapter::strip_str;

    const MS: u64 = 1_000_000;

    /// A process that makes these calls, and ends after 1 s.
    fn answer(calls: &[Call], ends: bool, key: u32, wanted: Option<(u64, u64)>) -> String {
        let mut sample = Sample::default();
        let mut one = Writer::new(7);
        one.start(&mut sample, "/opt/app\0");
        one.calls(&mut sample, calls);
        if ends {
            one.end(&mut sample, 1000 * MS);
        }
        let (_folder, path) = file(&sample);
        let text = Asked { key, wanted }
            .answer(&Trace::open(&path).unwrap())
            .unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn says(text: &str, wanted: &[&str]) {
        for words in wanted {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    /// A trace whose content is arbitrary.
    #[test]
    fn fuzz_explain_key() {
        let mut sample = Sample::default();
        let mut one = Writer::new(7);
        one.start(&mut sample, "/opt/app\0");
        let registered = register(2 * MS, 5, 0x10000, 4096);
        let ended = deregister(7 * MS, 5, 0x10000, 4096);
        one.calls(&mut sample, &[registered, ended, registered]);
        one.end(&mut sample, 1000 * MS);
        let (_folder, path) = file(&sample);
        let content = std::fs::read(&path).unwrap();
        let target = |input: &[u8], random: &mut crate::fuzz_inputs::Random| {
            std::fs::write(&path, input).unwrap();
            let Ok(trace) = Trace::open(&path) else {
                return;
            };
            let key = [5, 0, u32::MAX, random.next() as u32][random.below(4)];
            let wanted = [None, Some((0x10000, 1)), Some((u64::MAX - 1, 1))][random.below(3)];
            if let Ok(text) = (Asked { key, wanted }).answer(&trace) {
                let text = strip_str(&text).to_string();
                assert!(!text.chars().any(|c| c != '\n' && controls(c)));
            }
        };
        crate::fuzz_inputs::each("fuzz_explain_key", 100, &[&content], target);
    }

    #[test]
    fn an_access_outside_is_counted_in_bytes() {
        let calls = [register(2 * MS, 0x1234, 0x10000, 4096)];
        let of = |start, length| answer(&calls, true, 0x1234, Some((start, length)));
        says(
            &of(0x10000, 4096),
            &[
                "Key 0x1234 of app 7: 4096 bytes at 0x10000, local_write",
                "The access is inside the region.",
            ],
        );
        says(&of(0x10000, 4097), &["ends 1 byte beyond the region."]);
        says(&of(0xfff0, 32), &["begins 16 bytes before the region."]);
        says(
            &of(0xfff0, 5000),
            &["begins 16 bytes before the region, and ends 888 bytes beyond it."],
        );
        says(
            &of(0x11000, 8),
            &["begins 0 bytes beyond the end of the region."],
        );
        says(&of(0xff00, 8), &["ends 248 bytes before the region."]);
    }

    #[test]
    fn a_region_has_a_beginning_and_an_end() {
        let calls = [
            register(2 * MS, 5, 0x10000, 4096),
            deregister(7 * MS, 5, 0x10000, 4096),
        ];
        let text = answer(&calls, true, 5, None);
        says(
            &text,
            &[
                "Registered 2.01 ms after the beginning (1970-01-01T00:16:40.002Z) by ibv_reg_mr in 0x1000.",
                "Ended 7.00 ms after the beginning",
                "by ibv_dereg_mr.",
            ],
        );
        says(
            &answer(&calls[..1], true, 5, None),
            &["It ended with the process, 1.00 s"],
        );
        says(
            &answer(&calls[..1], false, 5, None),
            &["Not known when it ended", "cut off"],
        );
        let unknown = Call {
            call: u8::MAX,
            ..calls[1]
        };
        says(
            &answer(&[calls[0], unknown], true, 5, None),
            &["by a call that this program does not know in 0x1000."],
        );
        // The buffer is registered again, so the request has an old key.
        let later = [calls[0], calls[1], register(8 * MS, 6, 0x10000, 4096)];
        let text = answer(&later, true, 5, Some((0x10000, 8)));
        says(
            &text,
            &[
                "Ended 7.00 ms",
                "Key 0x6 of app 7",
                "not the one of the request",
            ],
        );
        let text = answer(&calls[1..], true, 5, None);
        says(
            &text,
            &[
                "Its registration is not in the trace",
                "access not known",
                "Ended 7.00 ms",
            ],
        );
    }

    #[test]
    fn missing_rights_are_named() {
        let with = |call, access| Call {
            call,
            access,
            ..register(MS, 5, 0x10000, 4096)
        };
        let of = |call, access| answer(&[with(call, access)], true, 5, None);
        says(
            &of(call::REG_MR, 1 | 4),
            &["a remote write needs remote_write; a remote atomic operation needs remote_atomic."],
        );
        assert!(!of(call::REG_MR, 15).contains("refuse"));
        says(
            &of(call::REG_MR, 14),
            &["Its rights refuse: a receive or a read's result needs local_write."],
        );
        says(
            &of(call::FI_MR_REG, 1 << 13),
            &["Its rights refuse: a remote read needs FI_REMOTE_READ."],
        );
    }

    #[test]
    fn a_cached_region_has_whole_pages_and_outlives_its_registrations() {
        let with = |how, call: Call| Call { how, ..call };
        let calls = [
            with(how::MISS, register(MS, 5, 0x10010, 100)),
            with(how::HIT, register(2 * MS, 5, 0x10010, 100)),
            with(how::KEPT, deregister(3 * MS, 5, 0x10010, 100)),
            with(how::KEPT, deregister(4 * MS, 5, 0x10010, 100)),
            Call {
                call: call::CACHE,
                ..deregister(9 * MS, 5, 0x10000, 4096)
            },
        ];
        let text = answer(&calls, true, 5, Some((0x10800, 8)));
        says(
            &text,
            &[
                "4096 bytes at 0x10000",
                "The cache served 2 registrations by it. The last one was deregistered 4.00 ms",
                "The cache ended it 9.00 ms",
                "inside the region",
            ],
        );
    }

    #[test]
    fn the_cache_may_say_later_that_a_region_has_ended() {
        let miss = |at, addr| Call {
            how: how::MISS,
            ..register(at, 5, addr, 4096)
        };
        let kept = Call {
            how: how::KEPT,
            ..deregister(2 * MS, 5, 0x10000, 4096)
        };
        let ended = Call {
            call: call::CACHE,
            ..deregister(4 * MS, 5, 0x10000, 4096)
        };
        let calls = [miss(MS, 0x10000), kept, miss(3 * MS, 0x20000), ended];
        let text = answer(&calls, true, 5, None);
        says(
            &text,
            &[
                "bytes at 0x20000",
                "It ended with the process",
                "Ended before 3.01 ms",
            ],
        );
    }

    #[test]
    fn another_address_for_peers_is_not_guessed() {
        let with = |reason| Call {
            call: call::REG_MR_IOVA2,
            reason,
            ..register(MS, 5, 0x10000, 4096)
        };
        let of = |reason| answer(&[with(reason)], true, 5, Some((0x10000, 8)));
        says(
            &of(unserved::ADDRESS),
            &["Not known whether the access is inside"],
        );
        says(
            &of(unserved::FORK),
            &["inside the region. That is so if work requests use the program's address"],
        );
        assert!(!of(unserved::NONE).contains("That is so if"));
    }

    #[test]
    fn a_key_that_no_region_had() {
        let calls = [register(MS, 0x1234, 0x10000, 4096)];
        let text = answer(&calls, true, 0x3412_0000, None);
        says(
            &text,
            &[
                "No region of the trace had the key 0x34120000",
                "wrong order: a region had the key 0x1234",
            ],
        );
        let text = answer(&calls, true, 7, Some((0x10800, 8)));
        says(
            &text,
            &[
                "No region of the trace had the key 0x7",
                "Key 0x1234 of app 7",
            ],
        );
        assert!(!text.contains("order"));
        let text = answer(&calls, true, 7, Some((0xfff0, 32)));
        says(&text, &["Key 0x1234 of app 7"]);
    }

    /// If each change of a domain looked at all regions, this would take an hour.
    #[test]
    fn the_regions_are_not_searched_at_each_change_of_a_domain() {
        const REGIONS: u64 = 1 << 20;
        let mut sample = Sample::default();
        let with = |call, pd| Call {
            call,
            pd,
            ..register(MS, 5, 0x10000, 4096)
        };
        for (pid, call) in [(7, call::REG_MR), (8, call::REREG_MR)] {
            let calls: Vec<_> = (0..REGIONS).map(|pd| with(call, pd)).collect();
            Writer::new(pid).calls(&mut sample, &calls);
        }
        let (_folder, path) = file(&sample);
        let regions = Regions::of(&Trace::open(&path).unwrap(), |_| true).unwrap();
        assert_eq!(regions.live.len() as u64, REGIONS + 1);
    }

    #[test]
    fn numbers_are_hexadecimal_or_decimal() {
        assert_eq!([number("0x10"), number("10")], [Ok(16), Ok(10)]);
        assert!(number("7f00").is_err() && number("-1").is_err());
    }
}
