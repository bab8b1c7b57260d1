// SPDX-License-Identifier: MIT OR Apache-2.0
//! libibverbs, loaded at run time: most of this program is useful without it.

use crate::report::units::shown;
use anyhow::{Context as _, Error, Result, ensure};
use errno::errno;
use rdmamr_abi::rdma_core::{ibv_context, ibv_device, ibv_mr, ibv_pd};
use rdmamr_uverbs::context::{identify, most};
use rdmamr_uverbs::driver::Driver;
use rdmamr_uverbs::kernel::Uverbs;
use std::ffi::{CStr, c_int, c_void};
use std::fs;

/// A library that was loaded and is never unloaded.
#[derive(Clone, Copy)]
pub struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a library; an error is the linker's message.
    pub fn open(name: &CStr) -> Result<Loaded> {
        let mode = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: this program loads only libraries that are made to be loaded at run time.
        let handle = unsafe { libc::dlopen(name.as_ptr(), mode) };
        if !handle.is_null() {
            return Ok(Loaded(handle));
        }
        // SAFETY: dlerror has no preconditions.
        let error = unsafe { libc::dlerror() };
        // SAFETY: after a failure it is a NUL-terminated string, valid until the next call of dlerror.
        let error = unsafe { CStr::from_ptr(error) };
        Err(Error::msg(error.to_string_lossy().into_owned()))
    }

    /// The program itself and all libraries that were loaded with it; a preloaded library comes
    /// first.
    pub const WHOLE_PROGRAM: Loaded = Loaded(libc::RTLD_DEFAULT);

    /// Looks up a function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of that name.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is valid, and the name ends with a NUL.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        ensure!(!address.is_null(), "it has no {}", name.to_string_lossy());
        // SAFETY: this function's contract gives the type of the symbol, and `F` is as large as a
        // pointer.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }

    /// The path of the file that has a function of that name, with links resolved; empty if none has it.
    pub fn path_of(self, name: &CStr) -> String {
        // SAFETY: the handle is valid, and the name ends with a NUL.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: all zeros is a valid `Dl_info`.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr accepts any address, and `info` is writable.
        if address.is_null() || unsafe { libc::dladdr(address, &mut info) } == 0 {
            return String::new();
        }
        // SAFETY: dladdr has set the name to a string of the linker's.
        let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_str();
        let path = path.ok().and_then(|path| fs::canonicalize(path).ok());
        path.map_or(String::new(), |path| shown(&path))
    }
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
type OpenDevice = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
type CloseDevice = unsafe extern "C" fn(*mut ibv_context) -> c_int;
type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
/// `ibv_reg_mr`, and its relaxed counterpart.
pub type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
/// `ibv_dereg_mr`, and its relaxed counterpart.
pub type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;

/// libibverbs.
pub struct Verbs {
    pub library: Loaded,
}

/// An open device. It is never closed: the process ends soon.
pub struct Context(*mut ibv_context);

impl Verbs {
    /// Loads libibverbs.
    pub fn load() -> Result<Verbs> {
        let library = Loaded::open(c"libibverbs.so.1")?;
        Ok(Verbs { library })
    }

    /// The devices for which libibverbs has a provider.
    fn devices(&self) -> Result<Vec<(String, *mut ibv_device)>> {
        // SAFETY: the function has this type in <infiniband/verbs.h>.
        let get: GetDeviceList = unsafe { self.library.function(c"ibv_get_device_list") }?;
        let mut count = 0;
        // SAFETY: the count is writable. The list is never freed, so its devices stay valid.
        let list = unsafe { get(&mut count) };
        ensure!(!list.is_null(), errno());
        // SAFETY: the list has `count` devices, followed by a null.
        let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let named = list.iter().map(|&device| {
            // SAFETY: the device is of a list that is never freed.
            let name = unsafe { &(*device).name };
            // SAFETY: the name ends with a NUL.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            (name.to_string_lossy().into_owned(), device)
        });
        Ok(named.collect())
    }

    /// The names of the devices for which libibverbs has a provider.
    pub fn names(&self) -> Vec<String> {
        let devices = self.devices().unwrap_or_default().into_iter();
        devices.map(|device| device.0).collect()
    }

    /// Opens a device.
    pub fn open(&self, name: &str) -> Result<Context> {
        let mut devices = self.devices()?.into_iter();
        let device = devices.find(|device| device.0 == name);
        let (_, device) = device.context("libibverbs does not know it")?;
        // SAFETY: the function has this type in <infiniband/verbs.h>.
        let open: OpenDevice = unsafe { self.library.function(c"ibv_open_device") }?;
        // SAFETY: the device is of a list that is never freed.
        let context = unsafe { open(device) };
        ensure!(!context.is_null(), errno());
        Ok(Context(context))
    }

    /// The most regions that a device can have. Closes the device again: `rdmamr top` goes on.
    pub fn most_regions(&self, name: &str) -> Option<u64> {
        // SAFETY: the function has this type in <infiniband/verbs.h>.
        let close: CloseDevice = unsafe { self.library.function(c"ibv_close_device") }.ok()?;
        let context = self.open(name).ok()?;
        let facts = identify(&Uverbs, context.fd());
        let most = facts.and_then(|facts| most(&Uverbs, context.fd(), facts));
        // SAFETY: the device is open, and no other code uses it.
        unsafe { close(context.0) };
        let regions = most.ok()?.regions;
        (regions > 0).then_some(regions.into())
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self, context: &Context) -> Result<*mut ibv_pd> {
        // SAFETY: the function has this type in <infiniband/verbs.h>.
        let alloc: AllocPd = unsafe { self.library.function(c"ibv_alloc_pd") }?;
        // SAFETY: a `Context` is an open device.
        let pd = unsafe { alloc(context.0) };
        ensure!(!pd.is_null(), errno());
        Ok(pd)
    }
}

impl Context {
    /// The file descriptor of the device; negative if it has none.
    pub fn fd(&self) -> c_int {
        // SAFETY: the context is open and never closed.
        unsafe { (*self.0).cmd_fd }
    }

    /// The row of the device's driver in the library's table.
    pub fn driver(&self) -> Option<&'static Driver> {
        identify(&Uverbs, self.fd()).ok()?.driver()
    }
}
