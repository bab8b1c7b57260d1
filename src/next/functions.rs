// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the libraries underneath, libibverbs, libmlx5 and libfabric, by name and version.
//!
//! A process may have several libibverbs: Python wheels bring copies under names of their own. A
//! call that concerns a device goes to the libibverbs that opened the device ([`Maker`]).
//!
//! No call asks the dynamic linker: it holds its locks while it runs a constructor, and that may wait
//! for the thread that registers. What the process was started with is looked up when this library
//! is loaded ([`find_all`]). A library that came later is found by the device's own functions, which
//! lie in it. There is no NEEDED entry, which would cost every program that inherits LD_PRELOAD
//! 200 us.
//!
//! A library that came later may go again, so only functions by which a device's owner is reached
//! are remembered for it: an open device keeps its libibverbs loaded.

use super::domain::Context;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use libc::RTLD_NOLOAD;
use rdmamr_abi::libfabric::fid;
use rdmamr_abi::libfabric_provider::fi_info;
use rdmamr_abi::rdma_core::*;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::symbols::{self, Library, Scope};
use rdmamr_sys::thread::keep_errno;
use rdmamr_sys::{aside, function};

/// A library.
struct Underneath {
    file: &'static CStr,
    /// The beginning of the file name of a copy.
    stem: &'static [u8],
    /// A function that identifies a copy: no library has a reason to interpose it.
    mark: (&'static CStr, &'static CStr),
    /// Where the library is that the process was started with: its first and its last address. 0
    /// if it came later.
    at_load: [AtomicUsize; 2],
    /// 0 if this library loads the other one if nothing else has loaded it, else RTLD_NOLOAD.
    load: c_int,
}

static LIBIBVERBS: Underneath = Underneath {
    file: c"libibverbs.so.1",
    stem: b"libibverbs",
    mark: (c"ibv_node_type_str", c"IBVERBS_1.1"),
    at_load: [const { AtomicUsize::new(0) }; 2],
    load: 0,
};

/// This library never loads it: a program that calls a libfabric function of this library has
/// loaded libfabric.
static LIBFABRIC: Underneath = Underneath {
    file: c"libfabric.so.1",
    stem: b"libfabric",
    mark: (c"fi_version", c"FABRIC_1.0"),
    at_load: [const { AtomicUsize::new(0) }; 2],
    load: RTLD_NOLOAD,
};

/// Never loaded by us: its functions are called on devices that it has opened.
static LIBMLX5: Underneath = Underneath {
    file: c"libmlx5.so.1",
    stem: b"libmlx5",
    mark: (c"mlx5dv_query_device", c"MLX5_1.0"),
    at_load: [const { AtomicUsize::new(0) }; 2],
    load: RTLD_NOLOAD,
};

/// The number of libibverbs that are told apart. Further ones count as the ordinary one.
pub const MAKERS: usize = 4;

/// The function `create_cq_ex` in the contexts of each ([`Context::create_cq_ex`]); 0 until one is
/// known.
static MADE: [AtomicUsize; MAKERS] = [const { AtomicUsize::new(0) }; MAKERS];

/// The libibverbs that opened a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker(usize);

impl Maker {
    /// The libibverbs that the process was started with or, if that had none, the first one that
    /// opened a device. Most processes have no other.
    pub const ORDINARY: Maker = Maker(0);

    /// The ordinary one for a domain or a region without a device.
    pub fn of(context: impl Into<Option<Context>>) -> Maker {
        match context.into().and_then(Context::create_cq_ex) {
            Some(made) if MADE[0].load(Relaxed) != made.get() => Maker::other(made),
            _ => Maker::ORDINARY,
        }
    }

    #[cold]
    fn other(made: NonZeroUsize) -> Maker {
        let known = |known: &AtomicUsize| known.load(Relaxed) == made.get();
        let number = MADE.iter().position(known);
        number.map_or_else(|| Maker::identify(made), Maker)
    }

    /// The number, below [`MAKERS`].
    pub fn number(self) -> usize {
        self.0
    }

    fn identify(made: NonZeroUsize) -> Maker {
        let is_at_load = LIBIBVERBS.is_at_load();
        // The function of a library that interposes it says nothing about libibverbs.
        let is_ordinary = LIBIBVERBS.has_at_load(made)
            || !Object::with(made).is_some_and(|object| LIBIBVERBS.is(&object));
        if is_ordinary {
            if is_at_load {
                MADE[0].store(made.get(), Relaxed);
            }
            return Maker::ORDINARY;
        }
        let takes = |free: &AtomicUsize| {
            let taken = free.compare_exchange(0, made.get(), Relaxed, Relaxed);
            taken.is_ok() || taken == Err(made.get())
        };
        let first = usize::from(is_at_load);
        let number = MADE[first..].iter().position(takes);
        number.map_or(Maker::ORDINARY, |number| Maker(first + number))
    }

    /// The libibverbs; `None` if it has opened no device yet.
    fn made(self) -> Option<Object> {
        Object::with(NonZeroUsize::new(MADE.get(self.0)?.load(Relaxed))?)
    }
}

/// The name of a function of such a library, and its addresses by [`Maker`].
struct Symbol {
    library: &'static Underneath,
    name: &'static CStr,
    version: Option<&'static CStr>,
    /// 0 until an address is known.
    addresses: [AtomicUsize; MAKERS],
}

/// A function of such a library.
pub struct Next<F> {
    symbol: Symbol,
    signature: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` is a pointer type, and the library's symbol of that name and version has that type.
    const unsafe fn new(
        library: &'static Underneath,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Self {
        Next {
            symbol: Symbol {
                library,
                name,
                version,
                addresses: [const { AtomicUsize::new(0) }; MAKERS],
            },
            signature: PhantomData,
        }
    }

    /// The function for a call that concerns no device; `None` if no loaded library has it.
    pub fn get(&self) -> Option<F> {
        if self.symbol.library.is_at_load() {
            self.by(Maker::ORDINARY)
        } else {
            self.typed(self.symbol.find_anywhere())
        }
    }

    /// The function of the libibverbs that opened the device; `None` if that libibverbs lacks it.
    pub fn by(&self, maker: Maker) -> Option<F> {
        let known = self.symbol.addresses.get(maker.0)?.load(Relaxed);
        self.typed(NonZeroUsize::new(known).or_else(|| self.symbol.look_up(maker)))
    }

    /// The functions of all libibverbs that have opened a device. The ordinary one's comes last.
    pub fn by_each(&self) -> impl Iterator<Item = F> {
        let others = (1..MAKERS).filter(|&number| MADE[number].load(Relaxed) != 0);
        let makers = others.map(Maker).chain([Maker::ORDINARY]);
        makers.filter_map(|maker| self.by(maker))
    }

    #[inline(always)]
    fn typed(&self, address: Option<NonZeroUsize>) -> Option<F> {
        // SAFETY: `new` was promised that the symbol has the type `F`, and a look-up found it.
        address.map(|address| unsafe { function::typed(address) })
    }

    /// The function's name.
    pub fn name(&self) -> &'static str {
        self.symbol.name.to_str().unwrap_or_default()
    }
}

impl Symbol {
    /// The address in the libibverbs that opened the device, or in the library above it.
    #[cold]
    #[inline(never)]
    fn look_up(&self, maker: Maker) -> Option<NonZeroUsize> {
        if maker == Maker::ORDINARY && self.library.is_at_load() {
            // `find_all` has found what there is.
            return None;
        }
        let Some(made) = maker.made() else {
            return self.find_anywhere();
        };
        let found = made.find(self.name, self.version).or_else(|| {
            // Nothing is loaded for a function that the device's own libibverbs lacks.
            let is_above = |copy: &Object| copy.needs(&made);
            let above = self.library.anywhere(RTLD_NOLOAD, &is_above);
            above?.find(self.name, self.version)
        })?;
        self.addresses[maker.0].store(found.get(), Relaxed);
        Some(found)
    }

    /// The address in any such library that is loaded now.
    #[cold]
    #[inline(never)]
    fn find_anywhere(&self) -> Option<NonZeroUsize> {
        let library = self.library.anywhere(self.library.load, &|_| true);
        library?.find(self.name, self.version)
    }
}

impl Underneath {
    /// Whether the file is such a library.
    fn is(&self, file: &Object) -> bool {
        file.find(self.mark.0, Some(self.mark.1)).is_some()
    }

    fn is_at_load(&self) -> bool {
        self.at_load[1].load(Relaxed) != 0
    }

    fn has_at_load(&self, address: NonZeroUsize) -> bool {
        let [start, end] = &self.at_load;
        (start.load(Relaxed)..end.load(Relaxed)).contains(&address.get())
    }

    /// The loaded library that is the right one: the one with the ordinary name, or else a copy. If
    /// none is loaded, `load` may load libibverbs, and then the linker's lock is waited for.
    #[cold]
    #[inline(never)]
    fn anywhere(&self, load: c_int, is_right: &dyn Fn(&Object) -> bool) -> Option<Object> {
        // A library of the ordinary name may lack the mark.
        let is_it = |file: &Object| (file.is_called(self.file) || self.is(file)) && is_right(file);
        keep_errno(|| match Object::named(self.file, self.stem, &is_it) {
            Ok(Some(found)) => Some(found),
            Ok(None) if load == RTLD_NOLOAD => None,
            // Nothing is loaded, or what is loaded cannot be read.
            _ => {
                let mut mark = None;
                let find: &mut dyn FnMut() = &mut || {
                    let (name, version) = self.mark;
                    let find = |library| symbols::find(Scope::In(library), name, Some(version));
                    mark = Library::keep(self.file, load).and_then(find);
                };
                aside::run(&mut *find).unwrap_or_else(find);
                mark.and_then(Object::with).filter(is_it)
            }
        })
    }

    /// Looks up the functions if the process was started with the library. If another library
    /// interposes a function, that one is next.
    fn find_next(&self, symbols: &mut dyn Iterator<Item = &Symbol>) {
        let next = |name, version| symbols::find(Scope::Next, name, version);
        let mark = next(self.mark.0, Some(self.mark.1));
        let Some(object) = mark.and_then(Object::with) else {
            return;
        };
        // A plug-in that loaded this library and that one may be unloaded.
        Library::keep(self.file, RTLD_NOLOAD);
        for symbol in symbols {
            let found = match object.find(symbol.name, symbol.version) {
                None => next(symbol.name, symbol.version),
                own => symbols::find_existing(Scope::Next, (symbol.name, symbol.version)).or(own),
            };
            symbol.addresses[0].store(found.map_or(0, NonZeroUsize::get), Relaxed);
        }
        self.at_load[0].store(object.start, Relaxed);
        self.at_load[1].store(object.end, Release);
    }
}

/// Looks up the functions of the libraries that the process was started with. Called when this
/// library is loaded.
pub fn find_all() {
    let variable = &ALLOWS_DISASSOCIATED_DESTROY.symbol;
    LIBIBVERBS.find_next(&mut OF_LIBIBVERBS.iter().copied().chain([variable]));
    LIBMLX5.find_next(&mut OF_LIBMLX5.iter().copied());
    let getinfo = FI_GETINFO.iter().map(|next| &next.symbol);
    LIBFABRIC.find_next(&mut OF_LIBFABRIC.iter().copied().chain(getinfo));
}

/// Declares functions of a library, with the library's own signatures and version nodes, if they
/// have one.
macro_rules! next {
    ($library:ident, $all:ident: $( $(#[$meta:meta])* $name:ident = $symbol:literal $(@ $version:literal)?: fn($($arg:ty),*) -> $ret:ty; )*) => {
        $( $(#[$meta])* pub static $name: Next<unsafe extern "C" fn($($arg),*) -> $ret> =
            // SAFETY: the signature is that of the library's own header.
            unsafe { Next::new(&$library, $symbol, [$(Some($version),)? None][0]) }; )*
        static $all: &[&Symbol] = &[$( &$name.symbol ),*];
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

next! { LIBIBVERBS, OF_LIBIBVERBS:
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
    CREATE_CQ = c"ibv_create_cq" @ c"IBVERBS_1.1":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    CREATE_QP = c"ibv_create_qp" @ c"IBVERBS_1.1":
        fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    CREATE_SRQ = c"ibv_create_srq" @ c"IBVERBS_1.1":
        fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    DEALLOC_PD = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    CLOSE_DEVICE = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    FORK_INIT = c"ibv_fork_init" @ c"IBVERBS_1.1": fn() -> c_int;
    /// Since rdma-core 35.
    IS_FORK_INITIALIZED = c"ibv_is_fork_initialized" @ c"IBVERBS_1.13": fn() -> c_int;
    DONTFORK_RANGE = c"ibv_dontfork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
    GET_DEVICE_LIST = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    FREE_DEVICE_LIST = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut ibv_device) -> ();
    OPEN_DEVICE = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    ALLOC_PD = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    DOFORK_RANGE = c"ibv_dofork_range" @ c"IBVERBS_1.1": fn(*mut c_void, usize) -> c_int;
}

next! { LIBMLX5, OF_LIBMLX5:
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

next! { LIBFABRIC, OF_LIBFABRIC:
    FI_VERSION = c"fi_version" @ c"FABRIC_1.0": fn() -> u32;
    /// Without a version, as a provider takes them: the structures of the libfabric that runs.
    FI_DUPINFO = c"fi_dupinfo": fn(*const fi_info) -> *mut fi_info;
    FI_FREEINFO = c"fi_freeinfo": fn(*mut fi_info) -> ();
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

/// The variable's version node changes with every release of libibverbs.
static ALLOWS_DISASSOCIATED_DESTROY: Next<&'static AtomicBool> =
    // SAFETY: rdma-core declares the variable as `bool`, and an open device keeps it loaded.
    unsafe { Next::new(&LIBIBVERBS, c"verbs_allow_disassociate_destroy", None) };

/// Whether libibverbs was told to treat EIO on a deregistration, which means that the device is
/// gone, as success. libibverbs decides that at start.
pub fn allows_disassociated_destroy(maker: Maker) -> bool {
    let variable = ALLOWS_DISASSOCIATED_DESTROY.by(maker);
    variable.is_some_and(|variable| variable.load(Relaxed))
}
