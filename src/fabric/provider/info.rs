// SPDX-License-Identifier: MIT OR Apache-2.0
//! The provider's offer, fi_getinfo(3): one entry for each verbs device.

use super::{NAME, devices, libfabric};
use crate::errors::{Result, ensure};
use crate::raw_key::{self, IOV_LIMIT};
use crate::refusals::*;
use core::ffi::{CStr, c_char};
use core::ptr::null_mut;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::*;
use rdmamr_cache::dispatch;
use rdmamr_mr::{Error, most_of};
use rdmamr_next::Context;
use rdmamr_stats::log::{self, Level};

/// libfabric's internal flag: a utility provider looks for a provider to stack on. This one has no
/// endpoints that a utility provider could use.
const CORE_PROV_ONLY: u64 = 1 << 59;

/// The purposes that the provider's regions serve.
const CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_ATOMIC
    | FI_READ
    | FI_WRITE
    | FI_RECV
    | FI_SEND
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;

/// The requests of an application.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    version: u32,
    caps: u64,
    /// Whether the application asked for this provider by its name.
    by_name: bool,
    domain: Option<&'a CStr>,
    mr_mode: i32,
    mode: u64,
}

/// # Safety
/// `text` is NULL or a string that lives for `'a`.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: `text` is not NULL here, and the caller promised a string.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Offers the devices that an application can use.
///
/// # Safety
/// `hints` is NULL or a `struct fi_info` of `version`, as libfabric passes it to a provider.
pub unsafe fn getinfo(
    version: u32,
    has_address: bool,
    flags: u64,
    hints: *const fi_info,
) -> Result<*mut fi_info> {
    // SAFETY: the caller keeps the promise of `by_name`.
    let by_name = unsafe { by_name(hints) };
    let offer = || {
        ensure(flags & CORE_PROV_ONLY == 0, OFFER_NO_STACKING)?;
        // SAFETY: the caller promised that `hints` is NULL or a `struct fi_info` of `version`.
        let wanted = unsafe { read(version, hints, by_name) }?;
        ensure(!has_address || by_name, OFFER_NO_ADDRESS)?;
        wanted.offer()
    };
    let offered = offer();
    // libfabric does not store why a provider makes no offer. A program that names this one wants to
    // know.
    if let Err(Error::Refused(FI_ENODATA, why)) = offered.map_err(|failure| failure.error) {
        let level = if by_name { Level::Warn } else { Level::Info };
        let name = NAME.to_string_lossy();
        log::line(level, format_args!("fi_getinfo: {name}: {why}"));
    }
    offered
}

/// # Safety
/// `hints` is NULL or a `struct fi_info` of `version`, which lives for `'a`.
unsafe fn read<'a>(version: u32, hints: *const fi_info, by_name: bool) -> Result<Wanted<'a>> {
    let mut wanted = Wanted {
        version,
        caps: 0,
        by_name,
        domain: None,
        mr_mode: FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY,
        mode: FI_LOCAL_MR,
    };
    // SAFETY: the caller promised that `hints` is NULL or valid.
    let Some(hints) = (unsafe { hints.as_ref() }) else {
        return Ok(wanted);
    };
    wanted.caps = hints.caps;
    wanted.mode = hints.mode;
    // SAFETY: `ep_attr` of valid hints is NULL or valid.
    if let Some(endpoint) = unsafe { hints.ep_attr.as_ref() } {
        let known = [0, FI_EP_RDM].contains(&endpoint.r#type);
        ensure(known, OFFER_NO_ENDPOINT)?;
    }
    // SAFETY: `fabric_attr` of valid hints is NULL or valid.
    if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
        // SAFETY: `name` of valid hints is NULL or a string.
        let name = unsafe { string(fabric.name) };
        ensure(name.is_none_or(|name| name == NAME), OFFER_OTHER_FABRIC)?;
    }
    // SAFETY: `domain_attr` of valid hints is NULL or valid.
    if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
        // SAFETY: `name` of valid hints is NULL or a string.
        wanted.domain = unsafe { string(domain.name) };
        wanted.mr_mode = domain.mr_mode;
        // The structure has `mr_iov_limit` since version 1.5.
        let too_many = version >= FI_VERSION_1_5 && domain.mr_iov_limit > IOV_LIMIT;
        ensure(!too_many, OFFER_IOV_LIMIT)?;
    }
    Ok(wanted)
}

/// Whether the program asks for this provider by its name.
///
/// # Safety
/// `hints` is NULL or a `struct fi_info`.
unsafe fn by_name(hints: *const fi_info) -> bool {
    // SAFETY: the caller promised that `hints` is NULL or valid.
    let fabric = unsafe { hints.as_ref() }.map(|hints| hints.fabric_attr);
    // SAFETY: `fabric_attr` of valid hints is NULL or valid.
    let fabric = fabric.and_then(|fabric| unsafe { fabric.as_ref() });
    // SAFETY: `prov_name` of valid hints is NULL or a string.
    let name = fabric.and_then(|fabric| unsafe { string(fabric.prov_name) });
    is_in_environment() || name.is_some_and(|name| names_us(name.to_bytes()))
}

/// Whether a list of providers names this one.
fn names_us(list: &[u8]) -> bool {
    list.split(|byte| b",;".contains(byte))
        .any(|name| name.eq_ignore_ascii_case(NAME.to_bytes()))
}

fn is_in_environment() -> bool {
    // SAFETY: the name ends with a NUL.
    let value = unsafe { libc::getenv(c"FI_PROVIDER".as_ptr()) };
    // SAFETY: getenv returned NULL or a string, read here before anything can change it.
    unsafe { string(value) }.is_some_and(|value| names_us(value.to_bytes()))
}

impl Wanted<'_> {
    /// A list with an entry for each device that the application can use.
    fn offer(&self) -> Result<*mut fi_info> {
        let mr_mode = self.agree()?;
        let (mut first, mut last): (*mut fi_info, *mut fi_info) = (null_mut(), null_mut());
        devices::find(|name, device| -> Option<()> {
            let is_wanted = self.domain.is_none_or(|wanted| wanted == name);
            let opened = is_wanted.then(|| devices::open(device).ok())??;
            let info = self.entry(name, mr_mode, opened);
            // If the device cannot be closed, the provider can do nothing about it.
            let _ = dispatch::close_device(opened);
            let info = info?;
            match first.is_null() {
                true => first = info,
                // SAFETY: `last` is the entry before, which `entry` made.
                false => unsafe { (*last).next = info },
            }
            last = info;
            None
        })?;
        ensure(!first.is_null(), OFFER_NO_DEVICE)?;
        Ok(first)
    }

    /// The mr_mode that application and provider can agree on.
    fn agree(&self) -> Result<i32> {
        ensure(self.caps & !CAPS == 0, OFFER_CAPS)?;
        // An application that wants to send messages would otherwise find a provider without
        // endpoints.
        let sends = self.caps & (FI_MSG | FI_ATOMIC) != 0;
        ensure(self.by_name || !sends, OFFER_BY_NAME)?;
        if self.version < FI_VERSION_1_5 || self.mr_mode == FI_MR_BASIC {
            let basic = [0, FI_MR_BASIC].contains(&self.mr_mode);
            ensure(basic, OFFER_BASIC)?;
            return Ok(FI_MR_BASIC);
        }
        ensure(self.mr_mode & FI_MR_ALLOCATED != 0, OFFER_ALLOCATED)?;
        let mut agreed =
            self.mr_mode & (FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_RAW);
        if self.mr_mode & FI_MR_VIRT_ADDR != 0 {
            agreed |= self.mr_mode & FI_MR_PROV_KEY;
        }
        // Only composite regions need raw keys. An application that also accepts the provider's
        // keys gets no raw keys.
        if self.mr_mode & FI_MR_PROV_KEY != 0 {
            agreed &= !FI_MR_RAW;
        }
        Ok(agreed)
    }

    /// Makes the entry of a device. `None` if no memory is left for it.
    fn entry(&self, name: &CStr, mr_mode: i32, device: Context) -> Option<*mut fi_info> {
        let entry = libfabric::allocate()?;
        let filled = self.fill(entry, name, mr_mode, device);
        let filled = filled.inspect_err(|_| libfabric::free(entry));
        filled.ok().map(|()| entry)
    }

    fn fill(
        &self,
        entry: *mut fi_info,
        name: &CStr,
        mr_mode: i32,
        device: Context,
    ) -> Result<(), Error> {
        // SAFETY: libfabric has just allocated the entry, with all its parts.
        let info = unsafe { &mut *entry };
        let caps = if self.caps == 0 { CAPS } else { self.caps };
        info.caps = caps;
        if self.version < FI_VERSION_1_5 {
            info.mode = self.mode & FI_LOCAL_MR;
        }
        macro_rules! part {
            ($part:ident) => {
                // SAFETY: a part of an entry of `allocate` is NULL or valid.
                unsafe { info.$part.as_mut() }.ok_or(Error::Memory)?
            };
        }
        part!(tx_attr).caps = caps & (FI_MSG | FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_SEND);
        part!(rx_attr).caps =
            caps & (FI_MSG | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE);
        part!(ep_attr).r#type = FI_EP_RDM;
        let domain = part!(domain_attr);
        domain.name = duplicate(name)?;
        domain.threading = FI_THREAD_SAFE;
        domain.control_progress = FI_PROGRESS_AUTO;
        domain.data_progress = FI_PROGRESS_AUTO;
        domain.resource_mgmt = FI_RM_ENABLED;
        domain.mr_mode = mr_mode;
        domain.mr_key_size = if mr_mode & FI_MR_RAW != 0 {
            raw_key::size(IOV_LIMIT)
        } else if mr_mode & FI_MR_PROV_KEY != 0 || mr_mode == FI_MR_BASIC {
            size_of::<u32>()
        } else {
            size_of::<u64>()
        };
        domain.mr_iov_limit = IOV_LIMIT;
        domain.mr_cnt = most_of(device).map_or(0, |most| most.regions as usize);
        part!(fabric_attr).name = duplicate(NAME)?;
        Ok(())
    }
}

/// Copies a string with malloc, because libfabric will free it.
fn duplicate(text: &CStr) -> Result<*mut c_char, Error> {
    // SAFETY: a `CStr` ends with a NUL.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    (!copy.is_null()).then_some(copy).ok_or(Error::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(version: u32, mr_mode: i32) -> Option<i32> {
        let wanted = Wanted {
            version,
            caps: 0,
            by_name: true,
            domain: None,
            mr_mode,
            mode: 0,
        };
        wanted.agree().ok()
    }

    #[test]
    fn only_what_the_application_takes_is_agreed_on() {
        const NEW: u32 = FI_VERSION_1_9;
        let provider = FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
        assert_eq!(
            agreed(NEW, provider | FI_MR_LOCAL),
            Some(provider | FI_MR_LOCAL)
        );
        assert_eq!(agreed(NEW, !3), Some(provider | FI_MR_LOCAL));
        assert_eq!(agreed(NEW, FI_MR_ALLOCATED), Some(FI_MR_ALLOCATED));
        assert_eq!(
            agreed(NEW, FI_MR_ALLOCATED | FI_MR_PROV_KEY),
            Some(FI_MR_ALLOCATED)
        );
        let addresses = FI_MR_ALLOCATED | FI_MR_VIRT_ADDR;
        assert_eq!(agreed(NEW, addresses), Some(addresses));
        assert_eq!(agreed(NEW, 0), None);
        assert_eq!(agreed(NEW, FI_MR_BASIC), Some(FI_MR_BASIC));
        assert_eq!(agreed(FI_VERSION_1_0, 0), Some(FI_MR_BASIC));
        assert_eq!(agreed(FI_VERSION_1_0, FI_MR_SCALABLE), None);
        for mr_mode in 0..0x1000 {
            assert!(
                agreed(NEW, mr_mode).is_none_or(|agreed| agreed & !mr_mode == 0),
                "{mr_mode:#x}"
            );
        }
    }

    #[test]
    fn lists_of_providers() {
        assert!(names_us(b"rdmamr") && names_us(b"tcp,RDMAMR"));
        assert!(!names_us(b"") && !names_us(b"^rdmamr") && !names_us(b"rdmamr2"));
    }
}
