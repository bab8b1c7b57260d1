// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libraries underneath, libibverbs and libfabric: their functions, by name and version, found when first
//! needed.
//!
//! Never at load: most programs that inherit LD_PRELOAD have neither. Never with a NEEDED entry either, which
//! would cost every one of them 200 us.

use crate::abi::libfabric::fid;
use crate::abi::libfabric_provider::fi_info;
use crate::abi::rdma_core::*;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use once_cell::race::OnceNonZeroUsize;

/// A library.
struct Library {
    file: &'static CStr,
    /// Whether it is loaded where nobody else has.
    may_load: bool,
}

static LIBIBVERBS: Library = Library {
    file: c"libibverbs.so.1",
    may_load: true,
};

/// Whoever calls what stands in for a function of it has loaded it.
static LIBFABRIC: Library = Library {
    file: c"libfabric.so.1",
    may_load: false,
};

/// A function of such a library. The lookup is idempotent, so that threads need not wait for each other and a
/// signal handler may interrupt it.
pub struct Next<F> {
    library: &'static Library,
    name: &'static CStr,
    version: Option<&'static CStr>,
    found: OnceNonZeroUsize,
    signature: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new(
        library: &'static Library,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Self {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        Next {
            library,
            name,
            version,
            found: OnceNonZeroUsize::new(),
            signature: PhantomData,
        }
    }

    /// The function; `None` where no library is loaded that has it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let address = self
            .found
            .get_or_try_init(|| find(self.library, self.name, self.version).ok_or(()))
            .ok()?;
        let pointer = core::ptr::with_exposed_provenance::<c_void>(address.get());
        // SAFETY: `F` is the function pointer type of that symbol, by the declarations below.
        Some(unsafe { core::mem::transmute_copy(&pointer) })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// The symbol's address in the next library that has it, else in the one meant wherever it is loaded: a
/// plug-in may have brought it into a scope of its own, where "next" does not reach.
fn find(library: &Library, name: &CStr, version: Option<&CStr>) -> Option<NonZeroUsize> {
    let lookup = |handle| {
        let address = match version {
            // SAFETY: both strings end with a NUL, and the handle is one.
            Some(version) => unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) },
            // SAFETY: as above.
            None => unsafe { libc::dlsym(handle, name.as_ptr()) },
        };
        NonZeroUsize::new(address.expose_provenance())
    };
    let errno = errno::errno();
    // Loaded already, as a rule; then it also stays, since a plug-in that brought it may be unloaded.
    let found = lookup(libc::RTLD_NEXT).inspect(|_| {
        library.stays(libc::RTLD_NOLOAD);
    });
    let found = found.or_else(|| lookup(library.stays(libc::RTLD_NOLOAD)?));
    let load = || library.may_load.then(|| library.stays(0)).flatten();
    let found = found.or_else(|| lookup(load()?));
    errno::set_errno(errno);
    found
}

/// A function of another library that is loaded, by its file's name, for those who were called by it.
pub fn find_in(library: &CStr, name: &CStr) -> Option<NonZeroUsize> {
    let mode = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: nothing is loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), mode) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle, and a string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the library stays: the caller's caller is in it.
    unsafe { libc::dlclose(handle) };
    NonZeroUsize::new(address.expose_provenance())
}

impl Library {
    /// A handle to it; it is never unloaded from now on.
    fn stays(&self, mode: c_int) -> Option<*mut c_void> {
        let mode = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NODELETE | mode;
        // SAFETY: these libraries are made to be loaded at run time.
        let library = unsafe { libc::dlopen(self.file.as_ptr(), mode) };
        (!library.is_null()).then_some(library)
    }
}

/// Declares functions of a library, with its own signatures and version nodes.
macro_rules! next {
    ($library:ident: $( $(#[$meta:meta])* $name:ident = $symbol:literal $(@ $version:literal)?: fn($($arg:ty),*) -> $ret:ty; )*) => {
        $( $(#[$meta])* pub static $name: Next<unsafe extern "C" fn($($arg),*) -> $ret> =
            Next::new(&$library, $symbol, version!($($version)?)); )*
    };
}

macro_rules! version {
    () => {
        None
    };
    ($version:literal) => {
        Some($version)
    };
}

next! { LIBIBVERBS:
    /// The leaf of all plain registrations. libibverbs' own `ibv_reg_mr` and `ibv_reg_mr_iova` jump to it
    /// through libibverbs' PLT, and so back into us.
    REG_MR_IOVA2 = c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8":
        fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    /// Before rdma-core 28, where it had a body of its own.
    REG_MR_IOVA = c"ibv_reg_mr_iova" @ c"IBVERBS_1.7":
        fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    /// Before rdma-core 25, where it had a body of its own.
    REG_MR = c"ibv_reg_mr" @ c"IBVERBS_1.1":
        fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    /// rdma-core 59.
    REG_MR_EX = c"ibv_reg_mr_ex" @ c"IBVERBS_1.15":
        fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr;
    /// rdma-core 34.
    REG_DMABUF_MR = c"ibv_reg_dmabuf_mr" @ c"IBVERBS_1.12":
        fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    REREG_MR = c"ibv_rereg_mr" @ c"IBVERBS_1.1":
        fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    DEREG_MR = c"ibv_dereg_mr" @ c"IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    /// Of the private interface, whose node is named after the release.
    CMD_DEREG_MR = c"ibv_cmd_dereg_mr": fn(*mut verbs_mr) -> c_int;
    CMD_DEALLOC_PD = c"ibv_cmd_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    /// rdma-core 31, as the next.
    UNIMPORT_PD = c"ibv_unimport_pd" @ c"IBVERBS_1.10": fn(*mut ibv_pd) -> ();
    UNIMPORT_MR = c"ibv_unimport_mr" @ c"IBVERBS_1.10": fn(*mut ibv_mr) -> ();
    UNINIT_CONTEXT = c"verbs_uninit_context": fn(*mut c_void) -> ();
    DEALLOC_PD = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    CLOSE_DEVICE = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    DONTFORK_RANGE = c"ibv_dontfork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
    GET_DEVICE_LIST = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    FREE_DEVICE_LIST = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut ibv_device) -> ();
    OPEN_DEVICE = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    QUERY_DEVICE = c"ibv_query_device" @ c"IBVERBS_1.1":
        fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ALLOC_PD = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    DOFORK_RANGE = c"ibv_dofork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
}

next! { LIBFABRIC:
    FI_VERSION = c"fi_version" @ c"FABRIC_1.0": fn() -> u32;
    /// libfabric 1.13.
    FI_OPEN = c"fi_open" @ c"FABRIC_1.5":
        fn(u32, *const c_char, *mut c_void, usize, u64, *mut *mut fid, *mut c_void) -> c_int;
}

/// `fi_getinfo`. The structures are those of its version's time.
pub type Getinfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;

/// libfabric's `fi_getinfo` at each of its version nodes, up to libfabric 2.6.
pub static FI_GETINFO: [Next<Getinfo>; 7] = {
    const fn at(version: &'static CStr) -> Next<Getinfo> {
        Next::new(&LIBFABRIC, c"fi_getinfo", Some(version))
    }
    [
        at(c"FABRIC_1.0"),
        at(c"FABRIC_1.1"),
        at(c"FABRIC_1.2"),
        at(c"FABRIC_1.3"),
        at(c"FABRIC_1.7"),
        at(c"FABRIC_1.8"),
        at(c"FABRIC_1.9"),
    ]
};

/// Whether libibverbs was told to take EIO on a deregistration, which means that the device is gone, as
/// success. It decides at start, in a variable whose version node changes with every release.
pub fn allows_disassociated_destroy() -> bool {
    match find(&LIBIBVERBS, c"verbs_allow_disassociate_destroy", None) {
        // SAFETY: rdma-core declares it as `bool`, and never unloads.
        Some(variable) => unsafe {
            core::ptr::with_exposed_provenance::<u8>(variable.get()).read_volatile() != 0
        },
        None => [
            c"RDMAV_ALLOW_DISASSOC_DESTROY",
            c"MLX4_DEVICE_FATAL_CLEANUP",
        ]
        .iter()
        .any(|name| {
            // SAFETY: the name ends with a NUL; the value is looked at before anything can change it.
            let value = unsafe { libc::getenv(name.as_ptr()) };
            // SAFETY: not null, so a string.
            !value.is_null() && unsafe { CStr::from_ptr(value) } != c"0"
        }),
    }
}
