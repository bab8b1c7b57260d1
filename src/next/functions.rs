// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the libraries underneath, libibverbs, libmlx5 and libfabric, looked up by name and
//! version at first use.
//!
//! A process may have several libibverbs: Python wheels bring copies under names of their own. A
//! call that concerns a device goes to the libibverbs that opened the device ([`Provider`]).
//!
//! There is no lookup at load, since most programs that inherit LD_PRELOAD have none of them.
//! There is no NEEDED entry either, which would cost every such program 200 us.

use super::domain::{Context, Pd};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::num::NonZeroUsize;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use rdmamr_abi::libfabric::fid;
use rdmamr_abi::libfabric_provider::fi_info;
use rdmamr_abi::rdma_core::*;
use rdmamr_sys::aside;
use rdmamr_sys::loaded_files;
use rdmamr_sys::symbols::{self, Function, Load, Scope};
use std::ffi::CString;

/// A library.
struct Underneath {
    file: &'static CStr,
    /// The beginning of the file name of a copy.
    stem: &'static [u8],
    /// A function that identifies a copy: no library has a reason to interpose it.
    mark: (&'static CStr, &'static CStr),
    /// The address of that function in the ordinary copy, which is the first one found; 0 before
    /// that.
    ordinary: AtomicUsize,
    /// Whether this library loads the other one if nothing else has loaded it.
    load: Load,
}

static LIBIBVERBS: Underneath = Underneath {
    file: c"libibverbs.so.1",
    stem: b"libibverbs",
    mark: (c"ibv_node_type_str", c"IBVERBS_1.1"),
    ordinary: AtomicUsize::new(0),
    load: Load::IfNeeded,
};

/// This library never loads it: a program that calls a libfabric function of this library has
/// loaded libfabric.
static LIBFABRIC: Underneath = Underneath {
    file: c"libfabric.so.1",
    stem: b"libfabric",
    mark: (c"fi_version", c"FABRIC_1.0"),
    ordinary: AtomicUsize::new(0),
    load: Load::Never,
};

/// Never loaded by us: its functions are called on devices that it has opened.
static LIBMLX5: Underneath = Underneath {
    file: c"libmlx5.so.1",
    stem: b"libmlx5",
    mark: (c"mlx5dv_query_device", c"MLX5_1.0"),
    ordinary: AtomicUsize::new(0),
    load: Load::Never,
};

/// The number of libibverbs that are told apart. Further ones count as the ordinary one.
pub const PROVIDERS: usize = 4;

/// The function `create_cq_ex` in the contexts of each ([`Context::create_cq_ex`]); 0 until one is
/// known.
static MADE: [AtomicUsize; PROVIDERS] = [const { AtomicUsize::new(0) }; PROVIDERS];

/// The libibverbs that opened a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provider(usize);

impl Provider {
    /// The libibverbs that a look-up by name finds. Most processes have no other.
    pub const ORDINARY: Provider = Provider(0);

    #[inline]
    pub fn of(context: Context) -> Provider {
        match context.create_cq_ex() {
            Some(made) if MADE[0].load(Relaxed) != made.get() => Provider::other(made),
            _ => Provider::ORDINARY,
        }
    }

    #[cold]
    fn other(made: NonZeroUsize) -> Provider {
        let known = |known: &AtomicUsize| known.load(Relaxed) == made.get();
        MADE.iter()
            .position(known)
            .map_or_else(|| Provider::identify(made), Provider)
    }

    /// As [`Provider::of`]; the ordinary one for a domain or a region without a device.
    ///
    /// # Safety
    /// `context` is NULL or an open context.
    #[inline]
    pub unsafe fn of_c(context: *mut ibv_context) -> Provider {
        // SAFETY: this function's caller promises that the context is NULL or open.
        unsafe { Context::from_c(context) }.map_or(Provider::ORDINARY, Provider::of)
    }

    #[inline]
    pub fn of_pd(pd: Pd) -> Provider {
        // SAFETY: the context of a live domain stays open as long as the domain exists.
        unsafe { Provider::of_c(pd.context()) }
    }

    /// The number, below [`PROVIDERS`].
    pub fn number(self) -> usize {
        self.0
    }

    fn identify(made: NonZeroUsize) -> Provider {
        let errno = errno::errno();
        let (name, version) = LIBIBVERBS.mark;
        let mark = find_beside(made, name, Some(version));
        let is_ordinary = mark.is_none() || mark == LIBIBVERBS.ordinary(Load::Never);
        errno::set_errno(errno);
        if is_ordinary {
            MADE[0].store(made.get(), Relaxed);
            return Provider::ORDINARY;
        }
        let takes = |free: &AtomicUsize| {
            let taken = free.compare_exchange(0, made.get(), Relaxed, Relaxed);
            taken.is_ok() || taken == Err(made.get())
        };
        let number = MADE[1..].iter().position(takes);
        number.map_or(Provider::ORDINARY, |number| Provider(number + 1))
    }
}

/// A function of such a library, looked up at first use.
pub struct Next<F> {
    library: &'static Underneath,
    name: &'static CStr,
    version: Option<&'static CStr>,
    /// By [`Provider`].
    functions: [Function<F>; PROVIDERS],
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// The library's symbol of that name and version is a function of type `F`.
    const unsafe fn new(
        library: &'static Underneath,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Self {
        Next {
            library,
            name,
            version,
            // SAFETY: this function's contract gives the type of the symbol, and only `look_up`
            // sets the address, to that symbol's.
            functions: [const { unsafe { Function::new() } }; PROVIDERS],
        }
    }

    /// The function; `None` if no loaded library has it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        self.by(Provider::ORDINARY)
    }

    /// The function of the libibverbs that opened the device; `None` if that libibverbs lacks it.
    #[inline]
    pub fn by(&self, maker: Provider) -> Option<F> {
        let function = self.functions.get(maker.0).and_then(Function::get);
        function.or_else(|| self.look_up(maker))
    }

    /// The functions of all libibverbs that have opened a device. The ordinary one's comes last: it
    /// may not be loaded yet, and the look-up remembers what it finds.
    pub fn by_each(&self) -> impl Iterator<Item = F> {
        let others = (1..PROVIDERS).filter(|&number| MADE[number].load(Relaxed) != 0);
        let makers = others.map(Provider).chain([Provider::ORDINARY]);
        makers.filter_map(|maker| self.by(maker))
    }

    #[cold]
    fn look_up(&self, maker: Provider) -> Option<F> {
        let function = self.functions.get(maker.0)?;
        function.set(find_aside(maker, self.library, self.name, self.version));
        function.get()
    }

    /// The function's name.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// As [`find_by`], on a stack with room: the dynamic linker needs several KiB. No function of
/// [`Next`], so that the library has it once, not once for each signature.
#[inline(never)]
fn find_aside(
    maker: Provider,
    library: &Underneath,
    name: &CStr,
    version: Option<&CStr>,
) -> Option<NonZeroUsize> {
    let find = || find_by(maker, library, name, version);
    aside::run(find).unwrap_or_else(find)
}

/// The symbol's address in the libibverbs that opened a device.
#[inline(never)]
fn find_by(
    maker: Provider,
    library: &Underneath,
    name: &CStr,
    version: Option<&CStr>,
) -> Option<NonZeroUsize> {
    let errno = errno::errno();
    let found = match maker {
        Provider::ORDINARY => library.find(name, version),
        Provider(number) => MADE
            .get(number)
            .and_then(|made| NonZeroUsize::new(made.load(Relaxed)))
            .and_then(|made| {
                let found = find_beside(made, name, version);
                found.or_else(|| library.find_above(made, name, version))
            }),
    };
    errno::set_errno(errno);
    found
}

/// The symbol's address in the library that has code at an address, or in one that it needs.
#[inline(never)]
fn find_beside(code: NonZeroUsize, name: &CStr, version: Option<&CStr>) -> Option<NonZeroUsize> {
    symbols::find(Scope::In(symbols::Library::with_code(code)?), name, version)
}

impl Underneath {
    /// The symbol's address in the ordinary library, or in a library that interposes it: in the
    /// next library that has the symbol, if the ordinary one is among the next.
    fn find(&self, name: &CStr, version: Option<&CStr>) -> Option<NonZeroUsize> {
        let next = |name, version| symbols::find(Scope::Next, name, version);
        let Some(ordinary) = self.ordinary(self.load) else {
            // The library lacks the mark.
            return self.find_first(self.load, name, version);
        };
        let is_next = next(self.mark.0, Some(self.mark.1)) == Some(ordinary);
        let found = is_next.then(|| next(name, version)).flatten();
        found.or_else(|| find_beside(ordinary, name, version))
    }

    /// The symbol's address in the copy that uses the libibverbs with that code.
    fn find_above(
        &self,
        made: NonZeroUsize,
        name: &CStr,
        version: Option<&CStr>,
    ) -> Option<NonZeroUsize> {
        let mark = |library| symbols::find(Scope::In(library), LIBIBVERBS.mark.0, None);
        let libibverbs = symbols::Library::with_code(made).and_then(mark)?;
        let copies = copies(self.stem).into_iter();
        copies
            .filter_map(|copy| symbols::Library::keep(&copy, Load::Never))
            .filter(|&copy| mark(copy) == Some(libibverbs))
            .find_map(|copy| symbols::find(Scope::In(copy), name, version))
    }

    /// The address of the mark in the ordinary library.
    fn ordinary(&self, load: Load) -> Option<NonZeroUsize> {
        let known = || NonZeroUsize::new(self.ordinary.load(Relaxed));
        known().or_else(|| {
            let (name, version) = self.mark;
            let found = self.find_first(load, name, Some(version))?.get();
            // If two threads look at the same time, the first result stays.
            let _ = self.ordinary.compare_exchange(0, found, Relaxed, Relaxed);
            known()
        })
    }

    /// The symbol's address in the next library that has the symbol. If there is none, the address
    /// in the library of that file name wherever it is loaded, and then in a copy of it: a plug-in
    /// may have loaded it into a scope of its own, which "next" does not reach.
    fn find_first(&self, load: Load, name: &CStr, version: Option<&CStr>) -> Option<NonZeroUsize> {
        let find_in = |file: &CStr, load| {
            let library = symbols::Library::keep(file, load)?;
            symbols::find(Scope::In(library), name, version)
        };
        // The library is usually loaded already. Keep it loaded: a plug-in that loaded it may be
        // unloaded.
        let found = symbols::find(Scope::Next, name, version).inspect(|_| {
            symbols::Library::keep(self.file, Load::Never);
        });
        found
            .or_else(|| find_in(self.file, Load::Never))
            .or_else(|| find_in(copies(self.stem).first()?, Load::Never))
            .or_else(|| find_in(self.file, load))
    }
}

/// The paths of the loaded files whose names begin so.
fn copies(stem: &[u8]) -> Vec<CString> {
    let mut paths = Vec::new();
    loaded_files::each(|file| {
        let bytes = file.name().to_bytes();
        let name = bytes
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |at| at + 1);
        if bytes.get(name..).is_some_and(|name| name.starts_with(stem)) {
            paths.push(file.name().to_owned());
        }
        ControlFlow::Continue(())
    });
    paths
}

/// Declares functions of a library, with the library's own signatures and version nodes.
macro_rules! next {
    ($library:ident: $( $(#[$meta:meta])* $name:ident = $symbol:literal $(@ $version:literal)?: fn($($arg:ty),*) -> $ret:ty; )*) => {
        $( $(#[$meta])* pub static $name: Next<unsafe extern "C" fn($($arg),*) -> $ret> =
            // SAFETY: the signature is that of the library's own header.
            unsafe { Next::new(&$library, $symbol, version!($($version)?)) }; )*
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

/// `ibv_cmd_rereg_mr`.
pub type CmdRereg = unsafe extern "C" fn(
    *mut verbs_mr,
    u32,
    *mut c_void,
    usize,
    u64,
    c_int,
    *mut ibv_pd,
    *mut c_void,
    usize,
    *mut c_void,
    usize,
) -> c_int;

next! { LIBIBVERBS:
    /// The end of every plain registration. libibverbs' own `ibv_reg_mr` and `ibv_reg_mr_iova` jump
    /// to it through libibverbs' PLT, and so reach this library again.
    REG_MR_IOVA2 = c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8":
        fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    /// For rdma-core before 28, in which the function has a body of its own.
    REG_MR_IOVA = c"ibv_reg_mr_iova" @ c"IBVERBS_1.7":
        fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    /// For rdma-core before 25, in which the function has a body of its own.
    REG_MR = c"ibv_reg_mr" @ c"IBVERBS_1.1":
        fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    /// Since rdma-core 59.
    REG_MR_EX = c"ibv_reg_mr_ex" @ c"IBVERBS_1.15":
        fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr;
    /// Since rdma-core 34.
    REG_DMABUF_MR = c"ibv_reg_dmabuf_mr" @ c"IBVERBS_1.12":
        fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    REREG_MR = c"ibv_rereg_mr" @ c"IBVERBS_1.1":
        fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    DEREG_MR = c"ibv_dereg_mr" @ c"IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    /// Part of the private interface, whose version node is named after the release.
    CMD_DEREG_MR = c"ibv_cmd_dereg_mr": fn(*mut verbs_mr) -> c_int;
    CMD_REREG_MR = c"ibv_cmd_rereg_mr": fn(
        *mut verbs_mr, u32, *mut c_void, usize, u64, c_int, *mut ibv_pd, *mut c_void, usize, *mut c_void, usize
    ) -> c_int;
    CMD_DEALLOC_PD = c"ibv_cmd_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    /// Since rdma-core 31, like the next.
    UNIMPORT_PD = c"ibv_unimport_pd" @ c"IBVERBS_1.10": fn(*mut ibv_pd) -> ();
    UNIMPORT_MR = c"ibv_unimport_mr" @ c"IBVERBS_1.10": fn(*mut ibv_mr) -> ();
    UNINIT_CONTEXT = c"verbs_uninit_context": fn(*mut c_void) -> ();
    DEALLOC_PD = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    CLOSE_DEVICE = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    FORK_INIT = c"ibv_fork_init" @ c"IBVERBS_1.1": fn() -> c_int;
    /// Since rdma-core 35.
    IS_FORK_INITIALIZED = c"ibv_is_fork_initialized" @ c"IBVERBS_1.13": fn() -> c_int;
    DONTFORK_RANGE = c"ibv_dontfork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
    GET_DEVICE_LIST = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    FREE_DEVICE_LIST = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut ibv_device) -> ();
    OPEN_DEVICE = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    QUERY_DEVICE = c"ibv_query_device" @ c"IBVERBS_1.1":
        fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ALLOC_PD = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    DOFORK_RANGE = c"ibv_dofork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
}

next! { LIBMLX5:
    /// Since rdma-core 55.
    MLX5DV_REG_DMABUF_MR = c"mlx5dv_reg_dmabuf_mr" @ c"MLX5_1.25":
        fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;
    MLX5DV_DEVX_UMEM_REG = c"mlx5dv_devx_umem_reg" @ c"MLX5_1.7":
        fn(*mut ibv_context, *mut c_void, usize, u32) -> *mut c_void;
    /// Since rdma-core 35.
    MLX5DV_DEVX_UMEM_REG_EX = c"mlx5dv_devx_umem_reg_ex" @ c"MLX5_1.19":
        fn(*mut ibv_context, *mut mlx5dv_devx_umem_in) -> *mut c_void;
    MLX5DV_DEVX_UMEM_DEREG = c"mlx5dv_devx_umem_dereg" @ c"MLX5_1.7": fn(*mut c_void) -> c_int;
}

next! { LIBFABRIC:
    FI_VERSION = c"fi_version" @ c"FABRIC_1.0": fn() -> u32;
    /// Since libfabric 1.13.
    FI_OPEN = c"fi_open" @ c"FABRIC_1.5":
        fn(u32, *const c_char, *mut c_void, usize, u64, *mut *mut fid, *mut c_void) -> c_int;
}

/// `fi_getinfo`. Each version node uses the structures of its time.
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
        // SAFETY: `fi_getinfo` has this signature at each of its version nodes.
        unsafe { Next::new(&LIBFABRIC, c"fi_getinfo", Some(version)) }
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

/// Whether libibverbs was told to treat EIO on a deregistration, which means that the device is
/// gone, as success. libibverbs decides that at start, in a variable whose version node changes
/// with every release.
pub fn allows_disassociated_destroy(maker: Provider) -> bool {
    match find_by(
        maker,
        &LIBIBVERBS,
        c"verbs_allow_disassociate_destroy",
        None,
    ) {
        // SAFETY: rdma-core declares the variable as `bool` and is never unloaded.
        Some(variable) => unsafe {
            core::ptr::with_exposed_provenance::<u8>(variable.get()).read_volatile() != 0
        },
        None => [
            c"RDMAV_ALLOW_DISASSOC_DESTROY",
            c"MLX4_DEVICE_FATAL_CLEANUP",
        ]
        .iter()
        .any(|name| {
            // SAFETY: the name ends with a NUL, and the value is read before anything can change
            // it.
            let value = unsafe { libc::getenv(name.as_ptr()) };
            // SAFETY: a non-null value is a NUL-terminated string.
            !value.is_null() && unsafe { CStr::from_ptr(value) } != c"0"
        }),
    }
}
